//! Golden checkpoints that are written as GGUF files. The tests of the shard compute with them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use millrace_convert::convert::{ConvertTarget, GgufKind, convert};
use millrace_formats::vocabulary::{PieceKind, TokenizerData};
use millrace_formats::{Checkpoint, DType as StoredDType, Source, Tensor};
use millrace_model::families;
use millrace_numbers::{BlockType, DType};
use serde_json::json;

const F32: GgufKind = GgufKind::Dense(DType::F32);

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration-tests")
}

fn write(from: &Source, to: &Path, kind: GgufKind) -> Result<(), String> {
    let target = ConvertTarget::Gguf { kind };
    convert(from, to, target, &mut |_, _| {}).map(|_| ()).map_err(|error| error.to_string())
}

/// Returns the checkpoints in `folder`, sorted.
fn checkpoints(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(tests().join(folder)).unwrap();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.join("config.json").exists());
    found.sort();
    found
}

fn name(path: &Path) -> String {
    path.file_stem().unwrap().to_string_lossy().into_owned()
}

fn numbers(tensor: &Tensor<'_>) -> Vec<f32> {
    tensor.bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// Compares the tensors of two files. Those of files of older converters, which have keys and
/// values from latents in one tensor, are in the first file only, and so are those of a layer that
/// predicts further tokens.
fn assert_same_tensors(case: &str, expected: &Source, found: &Source) {
    let later = format!("model.layers.{}.", families::spec(expected).unwrap().layers.len());
    let [expected, found] = [expected, found].map(|source| Checkpoint::open(source).unwrap());
    let split = |name: &str| {
        name.contains(".kv_b_proj.") || name.contains(".k_b_proj.") || name.contains(".v_b_proj.")
    };
    let names = |checkpoint: &Checkpoint| -> BTreeSet<String> {
        let names = checkpoint.tensors().map(|info| info.name);
        names.filter(|name| !split(name) && !name.starts_with(&later)).collect()
    };
    assert_eq!(names(&found), names(&expected), "{case}");
    for name in names(&expected) {
        let (expected, found) = (expected.find(&name).unwrap(), found.find(&name).unwrap());
        assert_eq!(found.shape, expected.shape, "{case} {name}");
        // The scripts that wrote the files compute exponentials and factors in single precision.
        let is_near = |(a, b): (&f32, &f32)| (a - b).abs() <= 4e-7 * b.abs().max(0.5);
        let is_same = match name.ends_with("A_log") || case.starts_with("falcon_h1") {
            true => numbers(&found).iter().zip(&numbers(&expected)).all(is_near),
            false => found.bytes == expected.bytes,
        };
        assert!(is_same, "{case} {name}");
    }
}

/// The files of the package `gguf` have the same weights under its names, and describe the same
/// model by the keys that are read.
#[test]
fn written_files_are_those_of_the_package_gguf() {
    let mut compared = 0;
    for (checkpoints_folder, files) in
        [("golden", "golden-gguf"), ("golden-encoders", "golden-gguf/encoders")]
    {
        for from in checkpoints(checkpoints_folder) {
            let case = name(&from);
            let golden = Source::File(tests().join(files).join(format!("{case}.gguf")));
            let Source::File(path) = &golden else { unreachable!() };
            // The tensors by which GLM-5 chooses keys are not written, and the text part of a
            // GLM-4.1V is written as a GLM-4.
            if !path.exists() || case.starts_with("glm_moe_dsa") || case == "glm4v" {
                continue;
            }
            let place = tempfile::tempdir().unwrap();
            let new = place.path().join("new.gguf");
            write(&Source::Directory(from), &new, F32).unwrap();
            let new = Source::File(new);
            assert_same_tensors(&case, &golden, &new);
            let mut spec = families::spec(&golden).unwrap();
            let written = families::spec(&new).unwrap();
            if case.starts_with("mamba2") {
                // The configuration of a Mamba-2 has no length of the context.
                spec.max_positions = written.max_positions;
            }
            assert!(written == spec, "{case}: {written:?} instead of {spec:?}");
            compared += 1;
        }
    }
    assert!(compared >= 118, "{compared} files");
}

/// A file is written without the head that predicts further tokens, and says so. A folder keeps it.
#[test]
fn heads_are_kept_or_reported() {
    let place = tempfile::tempdir().unwrap();
    let [from, to] =
        ["golden-mtp/glm4_moe", "golden/glm4_moe"].map(|from| Source::Directory(tests().join(from)));
    let target = || ConvertTarget::Gguf { kind: F32 };
    for (index, (from, has_head)) in [(&from, true), (&to, false)].into_iter().enumerate() {
        let file = place.path().join(format!("{index}.gguf"));
        let report = convert(from, &file, target(), &mut |_, _| {}).unwrap();
        let is_reported = report.notes.iter().any(|note| note.contains("(mtp) is left out"));
        assert_eq!(is_reported, has_head, "{:?}", report.notes);
    }
    let folder = |case: &str| {
        let from = Source::File(tests().join(format!("golden-gguf/mtp/{case}.gguf")));
        let to = place.path().join(case);
        let target = ConvertTarget::Safetensors { dtype: None, max_file_bytes: usize::MAX, vocabulary: None };
        convert(&from, &to, target, &mut |_, _| {}).unwrap();
        Source::Directory(to)
    };
    for case in ["glm4_moe", "deepseek_v3", "qwen3_next"] {
        let folder = folder(case);
        families::load(&folder, &families::Overrides::default()).unwrap();
        let head = families::load_mtp(&folder, &families::Overrides::default()).unwrap();
        assert_eq!(head.spec.layers.len(), 1, "{case}");
    }
}

/// Reasons why checkpoints are refused, and the checkpoints. What is particular about them is in no
/// key of GGUF, or the family is in no file.
const REFUSED: &[(&str, &[&str])] = &[
    (
        "Millrace knows no GGUF architecture for models of the type",
        &[
            "cwm",
            "cwm_bias",
            "cwm_layers",
            "deepseek_v32",
            "deepseek_v32_layers",
            "deepseek_v32_yarn",
            "gptj",
            "gptj_gelu",
            "gptj_rotary",
            "hy_v3",
            "hy_v3_layers",
            "hy_v3_tied",
            "mimo",
            "mimo_heads",
            "mimo_theta",
            "minimax_m3",
            "minimax_m3_all",
            "minimax_m3_mqa",
            "mpnet",
            "mpnet_heads",
            "mpnet_masked",
            "olmo",
            "olmo_bias",
            "olmo_clip",
            "opt",
            "opt_350m",
            "opt_after_sums",
            "opt_gelu",
            "opt_no_bias",
            "opt_wide_embedding",
            "phi_msft",
            "phi_msft_rotary",
        ],
    ),
    (
        "cannot describe the rotation of queries and keys",
        &[
            "deepseek_v2_lite",
            "deepseek_v3_half",
            "glm4_moe_lite_half",
            "internlm2_dynamic",
            "deepseek_v3_yarn",
            "gemma4_square_experts",
            "gemma4_values",
            "llama_dynamic",
            "llama_dynamic_v4",
            "llama_yarn_no_truncate",
            "mistral4_half",
            "kimi_k2_yarn",
            "youtu_yarn",
        ],
    ),
    (
        "but the file does not say which layers have this window",
        &["dots1_sliding", "qwen2_moe_sliding", "qwen2_sliding", "qwen2_sliding_v4", "qwen3_moe_sparse"],
    ),
    (
        "cannot describe the attention of layer",
        &[
            "internlm3_qkv_bias",
            "falcon_alibi",
            "falcon_refined_web_alibi",
            "gemma2_layers",
            "gemma2_no_caps",
            "gemma3_both_ways_wide",
            "gpt2_scales",
            "gpt_oss_layers",
            "kimi_linear_groups",
            "kimi_linear_ranks",
            "llama4",
            "llama4_experts",
            "llama4_images",
            "llama4_two_experts",
            "minicpm3_yarn",
            "mpt_scale",
            "olmoe_clip",
            "olmoe_clip_bias",
            "smollm3_bias",
            "smollm3_listed",
        ],
    ),
    (
        "cannot describe the MLP of layer",
        &[
            "bert_relu",
            "bert_tanh",
            "ernie4_5_moe_layers",
            "exaone_moe_layers",
            "glm4_moe_lite_layers",
            "gpt2_inner",
            "gpt_oss",
            "gpt_oss_bf16",
            "hunyuan_v1_moe_layers",
            "jina_v3_masked",
            "lfm2_moe",
            "lfm2_moe_plain",
            "nemotron_h_bias",
            "nomic_bert_masked",
            "olmoe_normed",
            "phi_mha",
            "phimoe",
            "phimoe_bias",
            "phimoe_long",
            "qwen2_moe_normed",
            "qwen3_moe_stacked",
            "qwen3_next_grouped",
            "qwen3_next_heads",
            "qwen3_vl_moe_sparse",
        ],
    ),
    (
        "a file needs the tensors by which it chooses keys",
        &["glm_moe_dsa", "glm_moe_dsa_shared", "glm_moe_dsa_tied"],
    ),
    ("cannot describe the residual stream", &["falcon_new", "falcon_refined_web"]),
    ("cannot describe the embedding", &["minicpm3", "minicpm3_long"]),
    ("its head is the embedding, and both have different factors", &["falcon_h1_norm"]),
    ("is quantized (mxfp4)", &["gpt_oss_mxfp4", "gpt_oss_mxfp4_wide"]),
    ("starcoder.attention.head_count_kv is 4", &["gpt_bigcode_mha"]),
    ("the key mistral3.rope.scaling.type is missing", &["ministral3_sliding"]),
    (
        "which has no name in GGUF",
        &["jina_v3_scores", "nomic_bert_scores", "phi_head_norms", "phi_head_norms_mha"],
    ),
];

#[test]
fn every_checkpoint_is_written_or_refused_with_a_reason() {
    let mut refused = BTreeSet::new();
    for from in ["golden", "golden-encoders"].into_iter().flat_map(checkpoints) {
        let (case, place) = (name(&from), tempfile::tempdir().unwrap());
        let new = place.path().join("new.gguf");
        let reason = REFUSED.iter().find(|(_, cases)| cases.contains(&&*case)).map(|(reason, _)| *reason);
        match (write(&Source::Directory(from), &new, F32), reason) {
            (Ok(()), None) => {
                families::load(&Source::File(new), &families::Overrides::default())
                    .unwrap_or_else(|error| panic!("{case}: {error}"));
            }
            (Err(error), Some(reason)) => {
                assert!(error.contains(reason), "{case}: {error}");
                assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0, "{case}");
                refused.insert(case);
            }
            (Ok(()), Some(reason)) => panic!("{case} was written, although {reason}"),
            (Err(error), None) => panic!("{case}: {error}"),
        }
    }
    let listed: usize = REFUSED.iter().map(|(_, cases)| cases.len()).sum();
    assert_eq!(refused.len(), listed, "checkpoints that do not exist are listed");
}

/// The orders that a file has are those of another file of the same architecture, so that nothing
/// is put back.
#[test]
fn files_are_written_from_files() {
    for case in [
        "qwen3_5_text",
        "kimi_linear",
        "gpt_neox",
        "gpt2",
        "bloom",
        "falcon_h1",
        "llama_gqa",
        "granitemoehybrid",
        "mamba2",
    ] {
        let place = tempfile::tempdir().unwrap();
        let (old, new) = (place.path().join("old.gguf"), place.path().join("new.gguf"));
        write(&Source::Directory(tests().join("golden").join(case)), &old, F32).unwrap();
        write(&Source::File(old.clone()), &new, F32).unwrap();
        assert_same_tensors(case, &Source::File(old), &Source::File(new));
    }
}

/// The converter of llama.cpp has reordered query and key, and this is not undone.
#[test]
fn files_with_sections_of_positions_are_not_converted() {
    let file = Source::File(tests().join("golden-gguf/glm4v.gguf"));
    let place = tempfile::tempdir().unwrap();
    let error = write(&file, &place.path().join("new.gguf"), F32).unwrap_err();
    assert!(error.contains("cannot describe the rotation of queries and keys"), "{error}");
    let target = ConvertTarget::Safetensors { dtype: None, max_file_bytes: 1 << 30, vocabulary: None };
    let error = convert(&file, &place.path().join("new"), target, &mut |_, _| {}).unwrap_err().to_string();
    assert!(error.contains("its converter has reordered query and key"), "{error}");
}

/// These families have no checkpoint beside their file, which the package `gguf` has written.
#[test]
fn files_of_renamed_families_are_written_from_files() {
    for (architecture, case) in [("internlm2", "llama_gqa"), ("qwen", "qwen2")] {
        let place = tempfile::tempdir().unwrap();
        let old = tests().join(format!("golden-gguf/{architecture}/{case}.gguf"));
        let new = place.path().join("new.gguf");
        write(&Source::File(old.clone()), &new, F32).unwrap();
        assert_same_tensors(architecture, &Source::File(old), &Source::File(new.clone()));
        let config: serde_json::Value = serde_json::from_slice(&Source::File(new).config().unwrap()).unwrap();
        assert_eq!(config["model_type"], architecture);
    }
}

#[test]
fn matrices_get_the_type_that_was_asked_for() {
    let place = tempfile::tempdir().unwrap();
    let new = place.path().join("new.gguf");
    write(&Source::Directory(tests().join("golden/qwen3_moe")), &new, GgufKind::Q8_0).unwrap();
    let checkpoint = Checkpoint::open(&Source::File(new)).unwrap();
    let dtype = |name: &str| checkpoint.find(&format!("model.layers.0.{name}.weight")).unwrap().dtype.clone();
    assert_eq!(dtype("self_attn.q_proj"), StoredDType::Blocks(BlockType::Q8_0));
    assert_eq!(dtype("mlp.experts.1.gate_proj"), StoredDType::Blocks(BlockType::Q8_0));
    // The rows of 8 features are not whole blocks.
    assert_eq!(dtype("mlp.experts.1.down_proj"), StoredDType::F16);
    for precise in ["mlp.gate", "input_layernorm", "self_attn.q_norm"] {
        assert_eq!(dtype(precise), StoredDType::F32, "{precise}");
    }
}

/// Returns a copy of a golden checkpoint with this `tokenizer.json`.
fn with_tokenizer(checkpoint: &str, tokenizer: &serde_json::Value) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(tests().join(checkpoint).join(name), copy.path().join(name)).unwrap();
    }
    std::fs::write(copy.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    copy
}

fn tokenizer_of(checkpoint: &str, tokenizer: &serde_json::Value) -> TokenizerData {
    let from = with_tokenizer(checkpoint, tokenizer);
    let new = from.path().join("new.gguf");
    write(&Source::Directory(from.path().to_owned()), &new, F32).unwrap();
    Source::File(new).tokenizer_data().unwrap().unwrap()
}

#[test]
fn tokens_of_word_pieces_mark_the_begin_of_words() {
    let added = |id: usize, text: &str| json!({"id": id, "content": text, "special": true});
    let tokenizer = json!({
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "vocab": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "play": 5, "##ing": 6, "[unused1]": 7},
        },
        "added_tokens": [added(0, "[PAD]"), added(1, "[UNK]"), added(2, "[CLS]"), added(3, "[SEP]"), added(4, "[MASK]")],
    });
    let data = tokenizer_of("golden-encoders/bert", &tokenizer);
    assert_eq!(data.model, "bert");
    assert_eq!(
        data.tokens[..9],
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "\u{2581}play", "ing", "[unused1]", "[PAD8]"]
    );
    let special = data.special;
    assert_eq!((special.cls, special.separator, special.mask), (Some(2), Some(3), Some(4)));
    assert_eq!((special.padding, special.unknown, special.bos), (Some(0), Some(1), Some(2)));
    assert_eq!(data.huggingface_json, Some(tokenizer.to_string()));
}

#[test]
fn gemma_4_has_merges_where_others_have_scores() {
    let tokenizer = json!({
        "model": {
            "type": "BPE", "byte_fallback": true, "unk_token": "<unk>",
            "vocab": {"<unk>": 0, "<0x0A>": 1, "a": 2, "b": 3, "ab": 4}, "merges": [["a", "b"]],
        },
    });
    let gemma4 = tokenizer_of("golden/gemma4_text", &tokenizer);
    assert_eq!(
        (&*gemma4.model, &gemma4.merges[..], gemma4.scores.len()),
        ("gemma4", &["a b".to_owned()][..], 0)
    );
    assert_eq!(gemma4.kinds[1], PieceKind::Byte);
    let gemma = tokenizer_of("golden/gemma", &tokenizer);
    assert_eq!((&*gemma.model, gemma.merges.len(), gemma.scores[4]), ("llama", 0, 0.0));
    assert_eq!(gemma.scores[2], -1.0);
}

#[test]
fn unigram_tokenizers_are_written_with_their_scores() {
    let added = |id: usize, text: &str| json!({"id": id, "content": text, "special": true});
    let around = |ids: &[&str]| -> Vec<serde_json::Value> {
        ids.iter()
            .map(|id| match *id {
                "A" | "B" => json!({"Sequence": {"id": id, "type_id": 0}}),
                token => json!({"SpecialToken": {"id": token, "type_id": 0}}),
            })
            .collect()
    };
    let tokenizer = json!({
        "added_tokens": [added(0, "<s>"), added(1, "<pad>"), added(2, "</s>"), added(3, "<unk>")],
        "normalizer": null,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always"},
        "post_processor": {
            "type": "TemplateProcessing", "single": around(&["<s>", "A", "</s>"]),
            "pair": around(&["<s>", "A", "</s>", "</s>", "B", "</s>"]),
        },
        "model": {"type": "Unigram", "unk_id": 3, "vocab": [
            ["<s>", 0.0], ["<pad>", 0.0], ["</s>", 0.0], ["<unk>", 0.0], ["\u{2581}a", -1.5], ["b", -2.25],
        ]},
    });
    let data = tokenizer_of("golden-encoders/xlm_roberta", &tokenizer);
    assert_eq!((&*data.model, &data.scores[..6]), ("t5", &[0.0, 0.0, 0.0, 0.0, -1.5, -2.25][..]));
    assert_eq!(data.tokens[4..7], ["\u{2581}a", "b", "[PAD6]"]);
    use PieceKind::{Control, Normal, Unknown, Unused};
    assert_eq!(data.kinds[..7], [Control, Control, Control, Unknown, Normal, Normal, Unused]);
    assert_eq!((data.add_bos, data.add_eos, data.add_sep), (Some(true), Some(true), Some(true)));
    assert_eq!((data.special.separator, data.special.padding), (Some(2), Some(1)));
    assert_eq!((data.add_space_prefix, data.remove_extra_whitespaces), (Some(true), Some(false)));
}
