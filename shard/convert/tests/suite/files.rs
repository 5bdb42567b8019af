//! Models that are written as files of FastLLM and llama2.c, and read again.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use millrace_convert::convert::{ConvertTarget, FlmKind, GgufKind, convert};
use millrace_formats::{Checkpoint, Source};
use millrace_model::families::{self, Overrides};
use millrace_numbers::{DType, Part};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration-tests/golden").join(name)
}

fn folder(path: PathBuf) -> Source {
    Source::Directory(path)
}

fn write(from: &Source, to: &Path, target: ConvertTarget) -> Result<(), String> {
    convert(from, to, target, &mut |_, _| {}).map(|_| ()).map_err(|error| error.to_string())
}

const SAFETENSORS: ConvertTarget =
    ConvertTarget::Safetensors { dtype: Some(DType::F32), max_file_bytes: 1 << 30, vocabulary: None };

/// Compares all tensors of two folders.
fn assert_same_tensors(case: &str, a: &Source, b: &Source) {
    let [a, b] = [a, b].map(|source| Checkpoint::open(source).unwrap());
    let is_stored = |name: &String| !name.ends_with("rotary_emb.inv_freq");
    let names: Vec<String> = a.tensors().map(|info| info.name).filter(is_stored).collect();
    assert_eq!(names, b.tensors().map(|info| info.name).collect::<Vec<_>>(), "{case}");
    for name in names {
        let [a, b] = [&a, &b].map(|checkpoint| checkpoint.find(&name).unwrap());
        assert_eq!(a.shape, b.shape, "{case} {name}");
        assert!(a.bytes == b.bytes, "{case} {name}");
    }
}

/// A Qwen 2 whose vectors are made as its modules say.
fn embedder() -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    let modules = r#"[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
        {"idx": 3, "name": "3", "path": "../elsewhere", "type": "sentence_transformers.models.Normalize"}]"#;
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(golden("qwen2").join(name), copy.path().join(name)).unwrap();
    }
    for (name, text) in [
        ("modules.json", modules),
        ("1_Pooling/config.json", r#"{"pooling_mode_lasttoken": true}"#),
        ("2_Dense/config.json", r#"{"in_features": 32}"#),
        ("2_Dense/model.safetensors", "weights"),
    ] {
        let path = copy.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    copy
}

#[test]
fn modules_of_vectors_move_with_the_model() {
    let (embedder, place) = (embedder(), tempfile::tempdir().unwrap());
    let from = folder(embedder.path().to_owned());
    let copy = place.path().join("copy");
    write(&from, &copy, SAFETENSORS).unwrap();
    for name in ["modules.json", "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"]
    {
        let [old, new] = [embedder.path(), &copy].map(|folder| std::fs::read(folder.join(name)).unwrap());
        assert!(old == new, "{name}");
    }

    let gguf = place.path().join("x.gguf");
    let target = ConvertTarget::Gguf { kind: GgufKind::Dense(DType::F32) };
    let report = convert(&from, &gguf, target, &mut |_, _| {}).unwrap();
    let note = "GGUF has no place for the module Dense of vectors, which is left out";
    assert!(report.notes.iter().any(|text| text == note), "{:?}", report.notes);
    let config: serde_json::Value =
        serde_json::from_slice(&Source::File(gguf.clone()).config().unwrap()).unwrap();
    assert_eq!(config["millrace"]["pooling"]["type"], 3, "{config}");

    let target = ConvertTarget::Flm { kind: FlmKind::F32 };
    let report = convert(&from, &place.path().join("x.flm"), target, &mut |_, _| {}).unwrap();
    let note = "the format has no place for the pooling and modules of vectors";
    assert!(report.notes.iter().any(|text| text == note), "{:?}", report.notes);

    let back = place.path().join("back");
    write(&Source::File(gguf), &back, SAFETENSORS).unwrap();
    let read = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(back.join(name)).unwrap()).unwrap()
    };
    assert_eq!(read("1_Pooling/config.json")["pooling_mode"], "lasttoken");
    assert_eq!(read("modules.json")[1]["path"], "1_Pooling");
}

#[test]
fn single_precision_comes_back_as_it_was() {
    let flm = || ConvertTarget::Flm { kind: FlmKind::F32 };
    let llama2c = |version| ConvertTarget::Llama2c { version };
    let mut cases: Vec<(&str, ConvertTarget)> = vec![
        ("llama_gqa", llama2c(0)),
        ("llama_gqa", llama2c(1)),
        ("llama_tied", llama2c(0)),
        ("llama_tied", llama2c(1)),
        ("llama_sharded", llama2c(1)),
    ];
    // A file of FastLLM can hold any family, as it has the whole configuration.
    for name in [
        "llama_gqa",
        "llama_tied",
        "llama_llama3",
        "llama_yarn",
        "qwen2_sliding",
        "qwen3",
        "qwen3_moe",
        "mistral_sliding",
        "gemma2",
        "gpt2",
        "bloom",
        "falcon_new",
        "baichuan_7b",
        "chatglm2",
        "phi3_long",
        "deepseek_v3",
        "granitemoe",
    ] {
        cases.push((name, flm()));
    }
    for (name, target) in cases {
        let case = format!("{name} as {target:?}");
        let new = tempfile::tempdir().unwrap();
        let (file, back) = (new.path().join("model"), new.path().join("back"));
        let from = folder(golden(name));
        write(&from, &file, target).unwrap_or_else(|error| panic!("{case}: {error}"));
        let file = Source::File(file);
        write(&file, &back, SAFETENSORS).unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_same_tensors(&case, &from, &folder(back));
    }
}

fn values(part: &Part) -> Vec<f32> {
    let mut all = vec![0.0; part.elements()];
    for (row, values) in all.chunks_exact_mut(part.cols.len()).enumerate() {
        part.read_row(row, values);
    }
    all
}

/// Rounded weights are as near as their format allows.
#[test]
fn rounded_weights_stay_close() {
    let flm = |kind| ConvertTarget::Flm { kind };
    for (target, steps) in [
        (flm(FlmKind::F16), 2048.0),
        (flm(FlmKind::Int8), 255.0),
        (flm(FlmKind::Int4), 15.0),
        (ConvertTarget::Llama2c { version: 2 }, 254.0),
    ] {
        for name in ["llama_gqa", "llama_tied", "llama_bf16"] {
            let case = format!("{name} as {target:?}");
            let new = tempfile::tempdir().unwrap();
            let (file, from) = (new.path().join("model"), folder(golden(name)));
            write(&from, &file, target.clone()).unwrap_or_else(|error| panic!("{case}: {error}"));
            let file = Source::File(file);
            let [read, dense] =
                [&file, &from].map(|source| families::load(source, &Overrides::default()).unwrap());
            for slot in dense.spec.slots().into_iter().filter(|slot| !slot.is_vector()) {
                let all = |parts: Vec<Part>| parts.iter().map(values).collect::<Vec<_>>();
                let (read, dense) = (read.weights.parts(slot).unwrap(), dense.weights.parts(slot).unwrap());
                // Rows of query and key may have another order in the file.
                let sorted = |mut numbers: Vec<f32>| {
                    numbers.sort_by(f32::total_cmp);
                    numbers
                };
                for (read, dense) in all(read).into_iter().zip(all(dense)) {
                    let largest = dense.iter().fold(0f32, |largest, weight| largest.max(weight.abs()));
                    // A range reaches from the smallest to the largest weight.
                    let step = 2.0 * largest / steps;
                    for (read, dense) in sorted(read).iter().zip(sorted(dense)) {
                        assert!((read - dense).abs() <= 1.01 * step, "{case} {slot:?}: {read} for {dense}");
                    }
                }
            }
        }
    }
}

#[test]
fn an_independent_reader_finds_the_weights() {
    let script =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration-tests/oracle/read_model_file.py");
    let new = tempfile::tempdir().unwrap();
    for name in ["llama_gqa", "llama_tied", "llama_bf16"] {
        for (format, target) in [
            ("llama2.c-0", ConvertTarget::Llama2c { version: 0 }),
            ("llama2.c-1", ConvertTarget::Llama2c { version: 1 }),
            ("llama2.c-2", ConvertTarget::Llama2c { version: 2 }),
            ("flm-f32", ConvertTarget::Flm { kind: FlmKind::F32 }),
            ("flm-f16", ConvertTarget::Flm { kind: FlmKind::F16 }),
            ("flm-int8", ConvertTarget::Flm { kind: FlmKind::Int8 }),
            ("flm-int4", ConvertTarget::Flm { kind: FlmKind::Int4 }),
        ] {
            let file = new.path().join(format!("{name}-{format}"));
            write(&folder(golden(name)), &file, target).unwrap();
            let mut python = Command::new("python3");
            let run = python.arg(&script).arg(format).arg(&file).arg(golden(name)).output();
            let output = match run {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    println!("skipped: there is no python3");
                    return;
                }
                run => run.unwrap(),
            };
            assert!(output.status.success(), "{format}: {}", String::from_utf8_lossy(&output.stderr));
            let worst: f64 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
            let is_exact = ["llama2.c-0", "llama2.c-1", "flm-f32"].contains(&format);
            // A rounded zero point moves the end of a range by half a step.
            let bound = if format == "llama2.c-2" || format == "flm-f16" { 0.501 } else { 1.001 };
            assert!(worst < bound && (worst == 0.0) == (is_exact), "{name} {format}: {worst}");
        }
    }
}

#[test]
fn what_a_format_cannot_express_is_refused_and_nothing_is_left() {
    let llama2c = || ConvertTarget::Llama2c { version: 1 };
    let int8 = || ConvertTarget::Flm { kind: FlmKind::Int8 };
    for (name, target, reason) in [
        ("qwen2", llama2c(), "llama2.c has models of llama and mistral, not of qwen2"),
        ("mistral_sliding", llama2c(), "its layers have a sliding window"),
        ("llama_head_dim", llama2c(), "its heads do not have as many features together as a token"),
        ("llama_bias", llama2c(), "llama2.c has no place for its tensor model.layers.0.mlp.down_proj.bias"),
        ("llama_linear", llama2c(), "its rotation is scaled (linear)"),
        ("gpt2", int8(), "its matrices are stored transposed"),
        ("gpt_oss_mxfp4", int8(), "is quantized (mxfp4)"),
        ("gpt_oss_mxfp4", llama2c(), "is quantized (mxfp4)"),
    ] {
        let new = tempfile::tempdir().unwrap();
        let error = write(&folder(golden(name)), &new.path().join("model"), target).unwrap_err();
        assert!(error.contains(reason), "{name}: {error}");
        assert_eq!(std::fs::read_dir(new.path()).unwrap().count(), 0, "{name}");
    }
}

/// The result would compute other numbers than the file.
#[test]
fn files_whose_weights_are_reordered_are_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration-tests/golden-gguf");
    for (case, key) in
        [("qwen3_5", "strided_value_heads"), ("gpt_neox", "stacked_qkv"), ("gpt2", "by_output")]
    {
        let place = tempfile::tempdir().unwrap();
        let from = Source::File(folder.join(format!("{case}.gguf")));
        let error = write(&from, &place.path().join("new"), SAFETENSORS).unwrap_err().to_string();
        assert!(error.contains(&format!("reordered the weights ({key})")), "{error}");
        assert!(!place.path().join("new").exists());
    }
}
