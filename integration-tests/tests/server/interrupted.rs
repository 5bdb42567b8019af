//! `millrace convert` and `millrace quantize` are killed in the middle: the next run continues, or
//! begins again, and nothing looks like a finished model before it is one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use millrace_integration_tests::{binary, signal, wait_until};
use serde_json::{Map, Value, json};

const HIDDEN: usize = 512;
const WIDTH: usize = 2048;
const LAYERS: usize = 5;
const VOCAB: usize = 1024;

/// Writes a Llama with 22 million weights, which takes a while to convert.
fn model(folder: &Path) {
    fs::create_dir(folder).unwrap();
    let config = json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16",
        "hidden_size": HIDDEN, "intermediate_size": WIDTH, "num_hidden_layers": LAYERS,
        "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": VOCAB,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": true,
    });
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let mut shapes = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
    ];
    for layer in 0..LAYERS {
        for (name, shape) in [
            ("input_layernorm", vec![HIDDEN]),
            ("post_attention_layernorm", vec![HIDDEN]),
            ("self_attn.q_proj", vec![HIDDEN, HIDDEN]),
            ("self_attn.k_proj", vec![HIDDEN / 2, HIDDEN]),
            ("self_attn.v_proj", vec![HIDDEN / 2, HIDDEN]),
            ("self_attn.o_proj", vec![HIDDEN, HIDDEN]),
            ("mlp.gate_proj", vec![WIDTH, HIDDEN]),
            ("mlp.up_proj", vec![WIDTH, HIDDEN]),
            ("mlp.down_proj", vec![HIDDEN, WIDTH]),
        ] {
            shapes.push((format!("model.layers.{layer}.{name}.weight"), shape));
        }
    }
    let (mut header, mut end) = (Map::new(), 0);
    for (name, shape) in shapes {
        let start = end;
        end += 2 * shape.iter().product::<usize>();
        header.insert(name, json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}));
    }
    let header = Value::Object(header).to_string();
    let mut bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    // Numbers between 0.0625 and 0.125 with either sign, different from place to place.
    let mut state = 1u32;
    bytes.extend((0..end / 2).flat_map(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (0x3d80 | (state >> 25) as u16 | ((state >> 16) as u16 & 0x8000)).to_le_bytes()
    }));
    fs::write(folder.join("model.safetensors"), bytes).unwrap();
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(arguments).env_remove("REVISION").stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn finished(arguments: &[&str]) -> String {
    let output: Output = command(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The number of attempts to stop a command in the middle. A test that is not run for a moment
/// finds the command at its end, and tries again.
const ATTEMPTS: usize = 20;

/// Runs a command until `is_due`, and stops it there with SIGSTOP. A run that ends before is
/// repeated without its `result`.
fn stopped(arguments: &[&str], result: &str, is_due: impl Fn() -> bool) -> Child {
    for _ in 0..ATTEMPTS {
        let mut process = command(arguments).spawn().unwrap();
        let mut has_ended = false;
        wait_until(
            &format!("{arguments:?} has come so far"),
            || {
                has_ended = process.try_wait().unwrap().is_some();
                has_ended || is_due()
            },
            String::new,
        );
        if !has_ended {
            signal(process.id(), "STOP");
            // The end may have come in between. A stopped process has not finished its result.
            if !Path::new(result).exists() {
                return process;
            }
            let _ = process.kill();
        }
        let _ = process.wait();
        remove(result);
    }
    panic!("{arguments:?} ended before it was stopped, {ATTEMPTS} times");
}

/// Runs a command until `is_due`, and kills it there.
fn killed(arguments: &[&str], result: &str, is_due: impl Fn() -> bool) {
    let mut process = stopped(arguments, result, is_due);
    process.kill().unwrap();
    assert!(!process.wait().unwrap().success());
}

fn entries(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// All files of a result, with their bytes.
fn contents(result: &Path) -> Vec<(String, Vec<u8>)> {
    if result.is_file() {
        return vec![(String::new(), fs::read(result).unwrap())];
    }
    entries(result).into_iter().map(|name| (name.clone(), fs::read(result.join(name)).unwrap())).collect()
}

#[test]
fn a_killed_conversion_is_continued() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let source = path("source");
    model(Path::new(&source));
    for (name, flags) in [
        ("gguf", &["--to", "gguf", "--dtype", "f32"][..]),
        ("flm", &["--to", "flm", "--dtype", "f32"]),
        ("llama2c", &["--to", "llama2c"]),
        ("folder", &["--dtype", "f32", "--max-shard-size", "30M"]),
    ] {
        let (whole, result) = (path("whole"), path(name));
        finished(&[&["convert", &source, &whole], flags].concat());
        let partial = folder.path().join(format!(".{name}.partial"));
        let journal = partial.join("journal");
        let has_recorded = || fs::metadata(&journal).is_ok_and(|journal| journal.len() > 0);
        let arguments = [&["convert", &source, &result], flags].concat();

        killed(&arguments, &result, has_recorded);
        assert!(!Path::new(&result).exists(), "{name} looks finished");
        let before = entries(folder.path());
        assert!(before.contains(&format!(".{name}.partial")), "{before:?}");
        let said = finished(&arguments);
        assert!(said.contains("an interrupted run had written"), "{name}: {said}");
        assert!(contents(Path::new(&result)) == contents(Path::new(&whole)), "{name}");
        assert!(!partial.exists(), "{name}");
        remove(&result);

        // With other options, or another source, nothing is continued.
        killed(&arguments, &result, has_recorded);
        let changed = fs::read(Path::new(&source).join("config.json")).unwrap();
        let changed = String::from_utf8(changed).unwrap().replace("\"vocab_size\"", " \"vocab_size\"");
        fs::write(Path::new(&source).join("config.json"), changed).unwrap();
        let said = finished(&arguments);
        assert!(!said.contains("an interrupted run"), "{name}: {said}");
        let weights = |result: &str| {
            let mut all = contents(Path::new(result));
            all.retain(|(name, _)| name != "config.json");
            all
        };
        assert!(weights(&result) == weights(&whole), "{name}");
        assert!(!partial.exists(), "{name}");
        remove(&result);
        remove(&whole);
    }
}

fn remove(result: &str) {
    let path = PathBuf::from(result);
    if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
}

#[test]
fn a_killed_quantization_leaves_nothing_that_looks_finished() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let [source, result, whole] = [path("source"), path("result"), path("whole")];
    model(Path::new(&source));
    let arguments = |to| ["quantize", source.as_str(), to, "--format", "int8"];
    let partial = folder.path().join(".result.partial");
    let has_begun = || fs::read_dir(partial.join("result")).is_ok_and(|entries| entries.count() > 0);
    killed(&arguments(&result), &result, has_begun);
    assert_eq!(entries(folder.path()), [".result.partial", "source"]);
    // The folder of the partial result is none that can be served.
    let served = command(&["inspect", "--model-id", partial.to_str().unwrap()]).output().unwrap();
    assert!(!served.status.success());
    finished(&arguments(&result));
    finished(&arguments(&whole));
    assert!(contents(Path::new(&result)) == contents(Path::new(&whole)));
    assert_eq!(entries(folder.path()), ["result", "source", "whole"]);
}

#[test]
fn two_processes_do_not_write_the_same_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let [source, result] = [path("source"), path("result.gguf")];
    model(Path::new(&source));
    let arguments = ["convert", &source, &result];
    let job = folder.path().join(".result.gguf.partial/job");
    let has_begun = || fs::metadata(&job).is_ok_and(|job| job.len() > 0);
    let mut first = stopped(&arguments, &result, has_begun);
    let second = command(&arguments).output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && said.contains("another process is writing"), "{said}");
    signal(first.id(), "CONT");
    assert!(first.wait().unwrap().success());
    assert_eq!(entries(folder.path()), ["result.gguf", "source"]);
}
