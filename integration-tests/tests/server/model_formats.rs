//! Serves models in files of other formats than safetensors. The packages that define the formats
//! write the files; `cargo xtask clients` installs them.

use std::path::{Path, PathBuf};
use std::process::Command;

use millrace_integration_tests::{Server, binary, post, start_small_server, test_data};
use serde_json::{Value, json};

const TEXT: &str =
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park.";

/// Writes the model in `from` in a format, and the same weights as safetensors. Returns the folders
/// of both.
fn written(folder: &Path, format: &str, from: &Path) -> [PathBuf; 2] {
    let installed = std::env::var_os("MILLRACE_CLIENTS").map(PathBuf::from);
    let installed = installed.expect("MILLRACE_CLIENTS names the folder of the clients");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/model_files.py");
    let target = folder.join(format);
    let mut python = Command::new(installed.join("python/bin/python"));
    let status = python.arg(script).arg(format).arg(from).arg(&target).status().unwrap();
    assert!(status.success(), "{format}: {status}");
    ["file", "twin"].map(|name| target.join(name))
}

fn completion(server: &Server, body: &Value) -> Value {
    let answer = post(&server.url("/v1/completions"), body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["choices"][0].clone()
}

/// Returns the logprobs of the tokens of [`TEXT`], and a greedy continuation of its begin.
fn results(server: &Server) -> (Vec<f64>, String) {
    let scored = completion(server, &json!({"prompt": TEXT, "echo": true, "logprobs": 1, "max_tokens": 0}));
    let logprobs = scored["logprobs"]["token_logprobs"].as_array().unwrap().iter();
    let greedy = completion(server, &json!({"prompt": "Once upon a", "max_tokens": 40, "temperature": 0}));
    (logprobs.filter_map(Value::as_f64).collect(), greedy["text"].as_str().unwrap().to_owned())
}

/// Compares a model file with its twin. Both compute in float32, so that only the order of sums
/// differs.
fn assert_same(format: &str, [file, twin]: [&Path; 2], more: &[&str]) {
    let flags = ["--dtype", "float32", "--activations", "exact"];
    let serve =
        |model: &Path| start_small_server(model.to_str().unwrap(), "cpu", &[&flags[..], more].concat());
    let (want, text) = results(&serve(twin));
    let (found, same) = results(&serve(file));
    assert_eq!(same, text, "{format} {more:?}");
    assert_eq!(found.len(), want.len());
    let worst = found.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    println!("{format} {more:?}: {worst:.2e} apart over {} tokens", want.len());
    assert!(worst < 1e-4, "{format} {more:?}: {worst}");
    // The text must say something about the weights.
    assert!(want.iter().any(|logprob| *logprob < -0.1), "{want:?}");
}

/// Compares a model file on the simulated GPU, where some types are kept and others are not, with
/// its twin there.
fn assert_close_on_a_gpu(format: &str, [file, twin]: [&Path; 2]) {
    let serve =
        |model: &Path| start_small_server(model.to_str().unwrap(), "cuda-sim", &["--dtype", "bfloat16"]);
    let file_server = serve(file);
    if format == "K" {
        // Those of type Q2_K; all others are kept.
        file_server.wait_for_log("2 of 8 quantized matrices (blocks of GGML) are converted to bfloat16");
    }
    let ((want, _), (found, _)) = (results(&serve(twin)), results(&file_server));
    assert!(!file_server.log().contains("of device memory more than planned"), "{}", file_server.log());
    assert_eq!(found.len(), want.len());
    let mean = found.iter().zip(&want).map(|(a, b)| (a - b).abs()).sum::<f64>() / want.len() as f64;
    println!("{format} on a GPU: {mean:.2e} apart on average over {} tokens", want.len());
    assert!(mean < 0.05, "{format}: {mean}");
}

#[test]
#[ignore = "needs the clients, which `cargo xtask clients` installs and runs, and MILLRACE_TEST_DATA"]
fn gguf_files_give_what_their_weights_give_as_safetensors() {
    let folder = tempfile::tempdir().unwrap();
    let stories = test_data("stories260k");
    for format in ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"] {
        let [file, twin] = written(folder.path(), format, &stories);
        assert_same(format, [&file.join("model.gguf"), &twin], &[]);
    }
    // A folder whose only model is a GGUF file.
    let [file, twin] = ["file", "twin"].map(|name| folder.path().join("Q8_0").join(name));
    assert_same("Q8_0", [&file, &twin], &[]);
    // The tokenizer in the file is the same.
    std::fs::remove_file(file.join("tokenizer.json")).unwrap();
    assert_same("Q8_0 with its own tokenizer", [&file, &twin], &[]);
}

#[test]
#[ignore = "needs the clients, which `cargo xtask clients` installs and runs, and MILLRACE_TEST_DATA"]
fn older_files_give_what_their_weights_give_as_safetensors() {
    let folder = tempfile::tempdir().unwrap();
    for format in ["llama2.c-0", "llama2.c-1", "llama2.c-2", "ggmf-F16", "ggjt-Q8_0", "ggjt-Q4_0"] {
        let [file, twin] = written(folder.path(), format, &test_data("stories260k"));
        assert_same(format, [&file.join("model.bin"), &twin], &[]);
    }
}

#[test]
#[ignore = "needs the clients, which `cargo xtask clients` installs and runs, and MILLRACE_TEST_DATA"]
fn files_of_fastllm_give_what_their_weights_give_as_safetensors() {
    let folder = tempfile::tempdir().unwrap();
    for format in ["flm-f32", "flm-f16", "flm-int8", "flm-int4", "flm-int4g"] {
        let [file, twin] = written(folder.path(), format, &test_data("stories260k"));
        assert_same(format, [&file.join("model.flm"), &twin], &[]);
        std::fs::remove_file(file.join("tokenizer.json")).unwrap();
        assert_same(&format!("{format} with its own tokenizer"), [&file.join("model.flm"), &twin], &[]);
    }
}

#[test]
#[ignore = "needs the clients, which `cargo xtask clients` installs and runs"]
fn the_package_gguf_reads_what_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let installed = PathBuf::from(std::env::var_os("MILLRACE_CLIENTS").unwrap());
    let read = |kind: &str| -> Value {
        let file = folder.path().join(format!("{kind}.gguf"));
        let mut convert = Command::new(binary());
        assert!(
            convert.args(["convert", "demo"]).arg(&file).args(["--dtype", kind]).status().unwrap().success()
        );
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/read_gguf.py");
        let output =
            Command::new(installed.join("python/bin/python")).arg(script).arg(&file).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let exact = read("f32");
    assert_eq!((&exact["architecture"], &exact["tokens"]), (&json!("llama"), &json!(1024)));
    for (kind, name) in [("f16", "F16"), ("bf16", "BF16"), ("q8_0", "Q8_0")] {
        let found = read(kind);
        let pairs = exact["tensors"].as_array().unwrap().iter().zip(found["tensors"].as_array().unwrap());
        for (want, found) in pairs {
            let is_vector = want[0].as_str().unwrap().contains("norm");
            assert_eq!((&found[0], &found[1]), (&want[0], &json!(if is_vector { "F32" } else { name })));
            let (want, sum) = (want[2].as_f64().unwrap(), found[2].as_f64().unwrap());
            assert!((want - sum).abs() < 1.0 + want.abs() * 0.02, "{kind} {found}: {want}");
        }
    }
}

/// The demo model's tokenizer is enough for random weights.
#[test]
#[ignore = "needs the clients, which `cargo xtask clients` installs and runs"]
fn super_blocks_give_what_their_weights_give_as_safetensors() {
    let folder = tempfile::tempdir().unwrap();
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo");
    for format in ["K", "IQ"] {
        let [file, twin] = written(folder.path(), format, &demo);
        for shards in ["1", "2"] {
            // A rank's share of the columns may end within a super-block.
            assert_same(format, [&file.join("model.gguf"), &twin], &["--num-shard", shards]);
        }
        assert_close_on_a_gpu(format, [&file.join("model.gguf"), &twin]);
    }
}
