//! Whole models: the configuration and the tensors as those of a folder.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::test_writer::{TestFile, TestValue};
use crate::{Checkpoint, DType, Error, Source};

/// Returns the keys of a Llama.
pub(super) fn keys(architecture: &str) -> TestFile {
    let key = |name: &str| format!("{architecture}.{name}");
    TestFile::new(3)
        .key("general.architecture", TestValue::Text(architecture))
        .key(&key("context_length"), TestValue::U32(128))
        .key(&key("embedding_length"), TestValue::U32(8))
        .key(&key("block_count"), TestValue::U32(1))
        .key(&key("feed_forward_length"), TestValue::U32(12))
        .key(&key("attention.head_count"), TestValue::U32(2))
        .key(&key("attention.head_count_kv"), TestValue::U32(1))
        .key(&key("attention.layer_norm_rms_epsilon"), TestValue::F32(0.5))
        .key(&key("rope.freq_base"), TestValue::F32(500.0))
}

pub(super) fn with_tensors(file: TestFile) -> TestFile {
    file.tensor("token_embd.weight", &[8, 3], 0, &[0; 96])
        .tensor("blk.0.attn_q.weight", &[8, 8], 1, &[1; 128])
        .tensor("blk.0.unknown", &[4], 0, &[0; 16])
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn with(files: &[(&str, TestFile)]) -> Folder {
        let folder = tempfile::tempdir().unwrap();
        for (name, file) in files {
            std::fs::write(folder.path().join(name), file.bytes()).unwrap();
        }
        Folder(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn source(&self, name: &str) -> Source {
        Source::File(self.path(name))
    }
}

pub(super) fn config(file: TestFile) -> Value {
    let folder = Folder::with(&[("x.gguf", file)]);
    serde_json::from_slice(&folder.source("x.gguf").config().unwrap()).unwrap()
}

pub(super) fn refusal(file: TestFile) -> String {
    let folder = Folder::with(&[("x.gguf", file)]);
    folder.source("x.gguf").config().unwrap_err().to_string()
}

#[test]
fn metadata_become_a_configuration() {
    let found = config(with_tensors(keys("llama")));
    let want = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float16",
        "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 4, "intermediate_size": 12, "vocab_size": 3, "max_position_embeddings": 128,
        "rms_norm_eps": 0.5, "tie_word_embeddings": true, "rope_theta": 500.0, "attention_bias": false,
        "mlp_bias": false, "millrace": {"rope_interleaved": true},
    });
    assert_eq!(found, want);

    let more = with_tensors(keys("llama"))
        .key("llama.attention.key_length", TestValue::U32(6))
        .key("llama.rope.dimension_count", TestValue::U32(3))
        .key("llama.attention.sliding_window", TestValue::U32(64))
        .key("llama.rope.scaling.type", TestValue::Text("yarn"))
        .key("llama.rope.scaling.factor", TestValue::F32(4.0))
        .key("llama.rope.scaling.original_context_length", TestValue::U32(32))
        .key("tokenizer.ggml.bos_token_id", TestValue::U32(1))
        .key("tokenizer.ggml.eos_token_id", TestValue::U32(2))
        .key("tokenizer.ggml.eot_token_id", TestValue::U32(0))
        .tensor("output.weight", &[8, 3], 0, &[0; 96])
        .tensor("blk.0.attn_q.bias", &[8], 0, &[0; 32]);
    let found = config(more);
    for (key, value) in [
        ("model_type", json!("mistral")),
        ("sliding_window", json!(64)),
        ("head_dim", json!(6)),
        ("partial_rotary_factor", json!(0.5)),
        ("tie_word_embeddings", json!(false)),
        ("attention_bias", json!(true)),
        ("bos_token_id", json!(1)),
        ("eos_token_id", json!([2, 0])),
        (
            "rope_scaling",
            json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32.0}),
        ),
    ] {
        assert_eq!(found[key], value, "{key}");
    }
    // Qwen has halves of heads, and no rows are reordered.
    let qwen = config(with_tensors(keys("qwen2")));
    assert_eq!((&qwen["model_type"], qwen.get("millrace")), (&json!("qwen2"), None));
    let pooled = config(with_tensors(keys("qwen2")).key("qwen2.pooling_type", TestValue::U32(3)));
    assert_eq!(pooled["millrace"], json!({"pooling": {"key": "qwen2.pooling_type", "type": 3}}));
}

/// Layers that predict further tokens come last. The configuration says how many there are.
#[test]
fn later_layers_follow_the_model() {
    let file = |nextn| {
        with_tensors(keys("qwen2"))
            .key("qwen2.nextn_predict_layers", TestValue::U32(nextn))
            .tensor("blk.0.attn_k.weight", &[8, 4], 1, &[1; 64])
            .tensor("blk.1.attn_k.weight", &[8, 4], 1, &[1; 64])
            .tensor("blk.1.nextn.eh_proj.weight", &[8, 4], 1, &[1; 64])
            .tensor("blk.1.nextn.shared_head_norm.weight", &[4], 0, &[1; 16])
    };
    let found = |nextn| -> (Vec<String>, Value) {
        let folder = Folder::with(&[("x.gguf", file(nextn))]);
        let checkpoint = Checkpoint::open(&folder.source("x.gguf")).unwrap();
        let names = checkpoint.tensors().map(|tensor| tensor.name).filter(|name| name.contains("layers."));
        (names.collect(), config(file(nextn)))
    };
    for nextn in [0, 1] {
        let (names, config) = found(nextn);
        let layer = |name: &str| format!("model.layers.{name}.weight");
        for name in ["0.self_attn.k_proj", "1.self_attn.k_proj", "1.eh_proj", "1.shared_head.norm"] {
            assert!(names.contains(&layer(name)), "{name}: {names:?}");
        }
        assert_eq!(config["num_hidden_layers"], json!(1 - nextn));
        let later = (nextn > 0).then(|| (json!(nextn), json!({"later_layers": true})));
        let keys = ["num_nextn_predict_layers", "millrace"].map(|key| config.get(key).cloned());
        assert_eq!(keys, later.map_or([None, None], |(count, own)| [Some(count), Some(own)]));
    }
    let refused = refusal(file(2));
    assert!(refused.contains("nextn_predict_layers is 2, but there are only 1 layers"), "{refused}");
}

/// The keys of Qwen3.5's recurrent layers, whose values have `width` features.
fn delta_net(width: u32) -> TestFile {
    let sizes = [("conv_kernel", 4), ("state_size", 3), ("group_count", 2), ("time_step_rank", 4)];
    let file = with_tensors(keys("qwen35")).key("qwen35.ssm.inner_size", TestValue::U32(width));
    sizes
        .into_iter()
        .fold(file, |file, (name, size)| file.key(&format!("qwen35.ssm.{name}"), TestValue::U32(size)))
}

#[test]
fn recurrent_layers_are_described() {
    let found = config(delta_net(20));
    let sizes = ["linear_num_key_heads", "linear_num_value_heads", "linear_value_head_dim"];
    assert_eq!(sizes.map(|key| &found[key]), [&json!(2), &json!(4), &json!(5)]);
    assert_eq!(found["layer_types"], json!(["linear_attention"]));
    assert_eq!(found["millrace"], json!({"strided_value_heads": true}));
    let uneven = refusal(delta_net(22));
    assert!(uneven.contains("qwen35.ssm.inner_size is 22, which is no multiple of 4"), "{uneven}");
    let never = refusal(delta_net(20).key("qwen35.full_attention_interval", TestValue::U32(0)));
    assert!(never.contains("qwen35.full_attention_interval is 0"), "{never}");
}

/// A file's layers may have MLPs of two widths, if the wide ones are those of the last layers.
#[test]
fn mlps_of_other_widths_than_gemma_4_has_are_refused() {
    let count =
        |file: TestFile, (key, count): (&str, u32)| file.key(&format!("gemma4.{key}"), TestValue::U32(count));
    let sizes = [
        ("context_length", 128),
        ("embedding_length", 8),
        ("block_count", 2),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
        ("attention.key_length", 4),
    ];
    for (readers, widths) in [(1, [12, 13]), (1, [12, 36]), (0, [12, 24]), (2, [24, 12])] {
        let file = TestFile::new(3).key("general.architecture", TestValue::Text("gemma4"));
        let file = sizes.into_iter().chain([("attention.shared_kv_layers", readers)]).fold(file, count);
        let file = with_tensors(file)
            .key("gemma4.attention.layer_norm_rms_epsilon", TestValue::F32(0.5))
            .key("gemma4.feed_forward_length", TestValue::I32s(&widths));
        let refused = refusal(file);
        assert!(refused.contains("gemma4.feed_forward_length differs between layers"), "{refused}");
    }
}

/// The file has a tenth of the factor, and no function of the router if it is old.
#[test]
fn latent_attention_is_described() {
    let sizes = [("kv_lora_rank", 4), ("key_length_mla", 5), ("value_length_mla", 3)];
    let file = sizes.into_iter().fold(with_tensors(keys("deepseek2")), |file, (name, size)| {
        file.key(&format!("deepseek2.attention.{name}"), TestValue::U32(size))
    });
    let experts = ["expert_count", "expert_used_count", "expert_feed_forward_length", "expert_shared_count"];
    let file = experts
        .into_iter()
        .chain(["leading_dense_block_count"])
        .fold(file, |file, name| file.key(&format!("deepseek2.{name}"), TestValue::U32(1)));
    let file = file
        .key("deepseek2.expert_weights_scale", TestValue::F32(1.5))
        .key("deepseek2.rope.dimension_count", TestValue::U32(2))
        .key("deepseek2.rope.scaling.type", TestValue::Text("yarn"))
        .key("deepseek2.rope.scaling.factor", TestValue::F32(4.0))
        .key("deepseek2.rope.scaling.yarn_log_multiplier", TestValue::F32(0.125));
    let found = config(file);
    for (key, value) in [
        ("model_type", json!("deepseek_v2")),
        ("qk_nope_head_dim", json!(3)),
        ("qk_rope_head_dim", json!(2)),
        ("v_head_dim", json!(3)),
        ("q_lora_rank", Value::Null),
        ("topk_method", json!("greedy")),
        ("rope_scaling", json!({"rope_type": "yarn", "factor": 4.0, "mscale": 1.25, "mscale_all_dim": 1.25})),
    ] {
        assert_eq!(found[key], value, "{key}");
    }
}

/// Gate and up may be one tensor, and numbers of experts are no matrices.
#[test]
fn gate_and_up_of_experts_are_divided() {
    let bytes: Vec<u8> = (0..2 * 4 * 2 * 4).map(|x| x as u8).collect();
    let file = with_tensors(keys("qwen3moe"))
        .key("qwen3moe.expert_count", TestValue::U32(2))
        .key("qwen3moe.expert_used_count", TestValue::U32(1))
        .key("qwen3moe.expert_feed_forward_length", TestValue::U32(2))
        .tensor("blk.0.ffn_gate_up_exps.weight", &[2, 4, 2], 0, &bytes);
    let folder = Folder::with(&[("x.gguf", file)]);
    let checkpoint = Checkpoint::open(&folder.source("x.gguf")).unwrap();
    for (expert, part, first) in [(0, "gate", 0), (0, "up", 16), (1, "gate", 32), (1, "up", 48)] {
        let name = format!("model.layers.0.mlp.experts.{expert}.{part}_proj.weight");
        let tensor = checkpoint.tensor(&name, &[2, 2]).unwrap();
        assert_eq!(*tensor.bytes, bytes[first..first + 16], "{name}");
    }
}

#[test]
fn divisors_of_frequencies_become_a_scaling() {
    let divisors: Vec<u8> = [1.0f32, 2.5].iter().flat_map(|x| x.to_le_bytes()).collect();
    let file = || with_tensors(keys("llama"));
    let found = config(file().tensor("rope_freqs.weight", &[2], 0, &divisors));
    assert_eq!(found["rope_scaling"], json!({"rope_type": "divisors", "divisors": [1.0, 2.5]}));
    let nan = refusal(file().tensor("rope_freqs.weight", &[1], 0, &f32::NAN.to_le_bytes()));
    assert!(nan.contains("the tensor rope_freqs.weight has a number that is no positive divisor"), "{nan}");
    let both = file().key("llama.rope.scaling.type", TestValue::Text("linear")).tensor(
        "rope_freqs.weight",
        &[2],
        0,
        &divisors,
    );
    assert!(
        refusal(both).contains("llama.rope.scaling.type is linear, but the file has rope_freqs.weight too")
    );
}

/// Returns the little-endian bytes of two numbers.
fn pair(numbers: [f32; 2]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

#[test]
fn divisors_of_long_and_short_texts_become_a_scaling() {
    let long = |file: TestFile| file.tensor("rope_factors_long.weight", &[2], 0, &pair([2.0, 4.0]));
    let short = |file: TestFile| file.tensor("rope_factors_short.weight", &[2], 0, &pair([1.0, 1.5]));
    let file = || with_tensors(keys("phi3"));
    let original = "phi3.rope.scaling.original_context_length";
    let found = config(
        short(long(file()))
            .key(original, TestValue::U32(16))
            .key("phi3.rope.scaling.attn_factor", TestValue::F32(1.25)),
    );
    let want = json!({
        "rope_type": "longrope", "long_factor": [2.0, 4.0], "short_factor": [1.0, 1.5],
        "original_max_position_embeddings": 16, "attention_factor": 1.25,
    });
    assert_eq!((&found["rope_scaling"], &found["original_max_position_embeddings"]), (&want, &json!(16)));
    let plain = config(short(long(file())));
    assert_eq!(plain["rope_scaling"]["original_max_position_embeddings"], 128);
    assert!(plain["rope_scaling"].get("attention_factor").is_none());
    let kind = |file: TestFile, kind| file.key("phi3.rope.scaling.type", TestValue::Text(kind));
    for (file, reason) in [
        (long(file()), "is none, and of rope_factors_long.weight and rope_factors_short.weight, the second"),
        (short(file()), "the first is missing"),
        (kind(file(), "longrope"), "the first is missing"),
        (kind(short(long(file())), "linear"), "is linear, but the file has rope_factors_long.weight too"),
    ] {
        let text = refusal(file);
        assert!(text.contains("phi3.rope.scaling.type") && text.contains(reason), "{text}");
    }
}

#[test]
fn numbers_of_layers_become_tensors() {
    let file = |numbers: &[f32]| {
        ["alpha_p", "alpha_n", "beta", "eps"].iter().fold(with_tensors(keys("apertus")), |file, part| {
            file.key(&format!("xielu.{part}"), TestValue::F32s(numbers))
        })
    };
    let folder = Folder::with(&[("x.gguf", file(&[0.75]))]);
    let checkpoint = Checkpoint::open(&folder.source("x.gguf")).unwrap();
    let beta = checkpoint.tensor("model.layers.0.mlp.act_fn.beta", &[1]).unwrap();
    assert_eq!(beta.bytes, 0.75f32.to_le_bytes());
    assert!(refusal(file(&[0.75, 0.5])).contains("xielu.alpha_p has 2 entries for 1 layers"));
    assert!(refusal(with_tensors(keys("apertus"))).contains("the key xielu.alpha_p is missing"));
}

#[test]
fn older_families_are_refused_by_what_they_lack() {
    let file = |architecture: &str| {
        let epsilon = format!("{architecture}.attention.layer_norm_epsilon");
        with_tensors(keys(architecture)).key(&epsilon, TestValue::F32(0.5))
    };
    assert_eq!(config(file("starcoder"))["multi_query"], true);
    let norm = file("falcon").tensor("blk.0.attn_norm_2.weight", &[8], 0, &[0; 32]);
    for (file, reason) in [
        (norm, "blk.0.attn_norm_2.weight belongs to a model with two norms before its branches"),
        (file("mpt"), "mpt.attention.max_alibi_bias is 0, and learned positions are not supported"),
        (
            file("gpt2").key("gpt2.attention.max_alibi_bias", TestValue::F32(8.0)),
            "gpt2.attention.max_alibi_bias says that the model has ALiBi positions",
        ),
    ] {
        let text = refusal(file);
        assert!(text.contains(reason), "{text}");
    }
    let found = config(file("mpt").key("mpt.attention.max_alibi_bias", TestValue::F32(4.0)));
    assert_eq!(found["attn_config"], json!({"alibi": true, "alibi_bias_max": 4.0, "clip_qkv": null}));
    assert_eq!(config(file("gpt2"))["millrace"], json!({"by_output": true}));
    assert_eq!(config(file("gptneox"))["millrace"], json!({"stacked_qkv": true}));
}

#[test]
fn models_that_cannot_be_served_are_refused_by_their_keys() {
    let unknown = refusal(with_tensors(keys("mamba")));
    assert!(
        unknown.contains("general.architecture is mamba, and GGUF files can be served of llama"),
        "{unknown}"
    );
    let experts = refusal(with_tensors(keys("qwen2")).key("qwen2.expert_count", TestValue::U32(8)));
    assert!(experts.contains("qwen2.expert_count says that the model has a mixture of experts"), "{experts}");
    let none = refusal(TestFile::new(3).key("general.architecture", TestValue::Text("llama")));
    assert!(none.contains("the key llama.embedding_length is missing"), "{none}");
    let embedding = refusal(keys("llama"));
    assert!(embedding.contains("the tensor token_embd.weight is missing"), "{embedding}");
    let window = with_tensors(keys("qwen3")).key("qwen3.attention.sliding_window", TestValue::U32(64));
    assert!(
        refusal(window).contains("qwen3.attention.sliding_window is 64, but the file does not say which")
    );
}

#[test]
fn tensors_have_the_names_of_hugging_face() {
    let folder = Folder::with(&[("x.gguf", with_tensors(keys("llama")))]);
    let checkpoint = Checkpoint::open(&folder.source("x.gguf")).unwrap();
    let query = checkpoint.tensor("model.layers.0.self_attn.q_proj.weight", &[8, 8]).unwrap();
    assert_eq!((query.dtype, query.bytes), (&DType::F16, &[1; 128][..]));
    assert!(
        checkpoint.contains("model.embed_tokens.weight") && checkpoint.contains("model.layers.0.unknown")
    );
    assert!(checkpoint.verify().is_ok());
    // Another file in its place is noticed.
    std::fs::write(folder.path("x.gguf"), b"GGUF").unwrap();
    assert!(matches!(checkpoint.verify(), Err(Error::Changed { .. })));
}

#[test]
fn a_file_that_is_cut_while_it_is_mapped_is_an_error() {
    let big = keys("llama").tensor("token_embd.weight", &[8, 4096], 0, &vec![7; 131_072]);
    let folder = Folder::with(&[("x.gguf", big)]);
    let checkpoint = Checkpoint::open(&folder.source("x.gguf")).unwrap();
    std::fs::File::options().write(true).open(folder.path("x.gguf")).unwrap().set_len(4096).unwrap();
    let tensor = checkpoint.find("model.embed_tokens.weight").unwrap();
    let last = tensor.bytes.last().copied();
    if cfg!(target_os = "linux") {
        assert_eq!(last, Some(0));
        assert!(matches!(checkpoint.check_readable(), Err(Error::Cut { .. })));
    }
}

/// Writes a model in two parts, with the metadata of the format.
fn parts(numbers: [u32; 2], count: u32, tensors: u32) -> Folder {
    let split = |file: TestFile, number: u32| {
        file.key("split.no", TestValue::U32(number))
            .key("split.count", TestValue::U32(count))
            .key("split.tensors.count", TestValue::U32(tensors))
    };
    let second = TestFile::new(3).tensor("blk.0.attn_k.weight", &[8, 4], 0, &[2; 128]);
    Folder::with(&[
        ("m-00001-of-00002.gguf", split(with_tensors(keys("llama")), numbers[0])),
        ("m-00002-of-00002.gguf", split(second, numbers[1])),
    ])
}

#[test]
fn split_models_are_read_from_all_parts() {
    let folder = parts([0, 1], 2, 4);
    let checkpoint = Checkpoint::open(&folder.source("m-00001-of-00002.gguf")).unwrap();
    let key = checkpoint.tensor("model.layers.0.self_attn.k_proj.weight", &[4, 8]).unwrap();
    assert_eq!(key.bytes, [2; 128]);
    assert_eq!(checkpoint.files().count(), 2);
    assert!(checkpoint.identity().contains("m-00002-of-00002.gguf"));

    let refused = |folder: &Folder, name: &str| {
        Checkpoint::open(&folder.source(name)).map(|_| ()).unwrap_err().to_string()
    };
    let second = refused(&folder, "m-00002-of-00002.gguf");
    assert!(second.contains("give the file whose name ends with -00001-of-00002.gguf"), "{second}");
    let count = refused(&parts([0, 1], 3, 4), "m-00001-of-00002.gguf");
    assert!(count.contains("its name says that there are 2 parts, but split.count is 3"), "{count}");
    let tensors = refused(&parts([0, 1], 2, 9), "m-00001-of-00002.gguf");
    assert!(tensors.contains("should have 9 tensors, but have 4"), "{tensors}");
    let order = refused(&parts([0, 0], 2, 4), "m-00001-of-00002.gguf");
    assert!(order.contains("split.no is not 1, as its name says"), "{order}");
    std::fs::remove_file(folder.path("m-00002-of-00002.gguf")).unwrap();
    let missing = refused(&folder, "m-00001-of-00002.gguf");
    assert!(missing.contains("m-00002-of-00002.gguf is missing beside it"), "{missing}");
}

#[test]
fn other_files_are_no_models() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |bytes: &[u8]| {
        let path = folder.path().join("x");
        std::fs::write(&path, bytes).unwrap();
        Source::File(path).config().unwrap_err().to_string()
    };
    assert!(refused(b"").contains("it has no format of models that is known"));
    assert!(refused(b"version https://git-lfs.github.com/spec/v1\n").contains("it is a Git LFS pointer"));
    let missing = Source::File(Path::new("/nowhere/x.gguf").to_owned()).config().unwrap_err().to_string();
    assert!(missing.contains("/nowhere/x.gguf does not exist"), "{missing}");
}

/// A mixture of experts with `experts` stacked matrices of one row.
fn experts(experts: u32, shape: &[usize], bytes: &[u8]) -> TestFile {
    with_tensors(keys("llama"))
        .key("llama.expert_count", TestValue::U32(experts))
        .key("llama.expert_used_count", TestValue::U32(1))
        .tensor("blk.0.ffn_up_exps.weight", shape, 0, bytes)
}

#[test]
fn stacked_experts_become_one_tensor_each() {
    let numbers: Vec<u8> = (0..12).flat_map(|number| (number as f32).to_le_bytes()).collect();
    let folder = Folder::with(&[("x.gguf", experts(3, &[2, 2, 3], &numbers))]);
    let config: Value = serde_json::from_slice(&folder.source("x.gguf").config().unwrap()).unwrap();
    assert_eq!((&config["model_type"], &config["num_local_experts"]), (&json!("mixtral"), &json!(3)));
    let checkpoint = Checkpoint::open(&folder.source("x.gguf")).unwrap();
    for expert in 0..3 {
        let name = format!("model.layers.0.block_sparse_moe.experts.{expert}.w3.weight");
        let tensor = checkpoint.find(&name).unwrap();
        assert_eq!((tensor.shape, tensor.bytes), (&[2, 2][..], &numbers[expert * 16..][..16]));
    }
    for shape in [&[2, 6][..], &[0, 2, 1 << 40], &[2, 2, 3, 1]] {
        let elements: usize = shape.iter().product();
        let file = experts(3, shape, &vec![0; 4 * elements.min(12)]);
        let folder = Folder::with(&[("x.gguf", file)]);
        let refused = Checkpoint::open(&folder.source("x.gguf")).unwrap_err().to_string();
        assert!(refused.contains("ffn_up_exps"), "{refused}");
    }
}

#[test]
fn the_one_that_a_converter_adds_to_norms_is_taken_back() {
    let scales: Vec<u8> = [1.5f32, 0.75, 1.0, 3.0].iter().flat_map(|scale| scale.to_le_bytes()).collect();
    for (architecture, want) in [("gemma", [0.5, -0.25, 0.0, 2.0]), ("qwen2", [1.5, 0.75, 1.0, 3.0])] {
        let file = with_tensors(keys(architecture)).tensor("blk.0.attn_norm.weight", &[4], 0, &scales);
        let folder = Folder::with(&[("x.gguf", file)]);
        let checkpoint = Checkpoint::open(&folder.source("x.gguf")).unwrap();
        let bytes = checkpoint.find("model.layers.0.input_layernorm.weight").unwrap().bytes;
        let found: Vec<f32> = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        assert_eq!(found, want, "{architecture}");
    }
}

/// The converter has reordered query and key for positions of several dimensions.
#[test]
fn sections_of_positions_mean_another_rotation() {
    let plain = with_tensors(keys("glm4"));
    assert_eq!(config(plain).get("millrace"), None);
    let sections =
        with_tensors(keys("glm4")).key("glm4.rope.dimension_sections", TestValue::I32s(&[2, 1, 1, 0]));
    assert_eq!(config(sections)["millrace"], json!({"rope_interleaved": false}));
}

#[test]
fn what_a_family_cannot_express_is_refused_by_key() {
    let file = |architecture: &str| with_tensors(keys(architecture));
    let pattern = "exaone4.attention.sliding_window_pattern";
    for (file, key, reason) in [
        (
            file("minimax-m2").key("minimax-m2.expert_gating_func", TestValue::U32(1)),
            "minimax-m2.expert_gating_func",
            "is 1, and the family has only sigmoids",
        ),
        (
            file("exaone4").key(pattern, TestValue::Bools(&[true, false])),
            pattern,
            "has 2 entries for 1 layers",
        ),
        (
            file("llama").key("llama.nextn_predict_layers", TestValue::U32(2)),
            "llama.nextn_predict_layers",
            "is 2, but there are only 1 layers",
        ),
        (
            file("llama4").key("llama4.attention.sliding_window", TestValue::U32(0)),
            "llama4.attention.sliding_window",
            "says that no layer has chunks",
        ),
        (
            file("hunyuan-moe")
                .key("hunyuan-moe.expert_count", TestValue::U32(4))
                .key("hunyuan-moe.expert_used_count", TestValue::U32(2))
                .key("hunyuan-moe.expert_feed_forward_length", TestValue::U32(12))
                .key("hunyuan-moe.expert_shared_feed_forward_length", TestValue::U32(6)),
            "hunyuan-moe.expert_shared_feed_forward_length",
            "is 6, and the experts have 12 features",
        ),
    ] {
        let text = refusal(file);
        assert!(text.contains(key) && text.contains(reason), "{text}");
    }
}

#[test]
fn a_tensor_of_query_key_and_value_becomes_three() {
    let fused = |rows: usize| {
        let numbers: Vec<u8> = (0..8 * rows).flat_map(|at| (at as f32).to_le_bytes()).collect();
        let file = keys("qwen3").tensor("token_embd.weight", &[8, 3], 0, &[0; 96]);
        Folder::with(&[("x.gguf", file.tensor("blk.0.attn_qkv.weight", &[8, rows], 0, &numbers))])
    };
    let folder = fused(16);
    let checkpoint = Checkpoint::open(&folder.source("x.gguf")).unwrap();
    for (name, rows, first) in [("q", 8, 0.0_f32), ("k", 4, 64.0), ("v", 4, 96.0)] {
        let name = format!("model.layers.0.self_attn.{name}_proj.weight");
        let tensor = checkpoint.tensor(&name, &[rows, 8]).unwrap();
        assert_eq!(tensor.bytes[..4], first.to_le_bytes(), "{name}");
    }
    let error = Checkpoint::open(&fused(15).source("x.gguf")).unwrap_err().to_string();
    assert!(error.contains("blk.0.attn_qkv.weight"), "{error}");
}
