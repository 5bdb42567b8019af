//! `millrace convert`: a converted model gives what the model gives.

use std::path::Path;
use std::process::{Command, Output};

use millrace_integration_tests::{Server, binary, post, start_small_server, test_data};
use serde_json::{Value, json};

fn convert(arguments: &[&str]) -> Output {
    Command::new(binary()).arg("convert").args(arguments).env_remove("REVISION").output().unwrap()
}

fn converted(arguments: &[&str]) -> String {
    let output = convert(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn refusal(arguments: &[&str]) -> String {
    let output = convert(arguments);
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Returns the logprobs of a text, and a greedy continuation.
fn results(model: &str) -> (Vec<f64>, Value) {
    let server = start_small_server(model, "cpu", &["--dtype", "float32", "--activations", "exact"]);
    let completion = |server: &Server, body: &Value| {
        let answer = post(&server.url("/v1/completions"), body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body["choices"][0].clone()
    };
    let text = "Once upon a time, there was a fox. It's 12 years old.";
    let body = json!({"prompt": text, "echo": true, "logprobs": 1, "max_tokens": 0});
    let logprobs = completion(&server, &body)["logprobs"]["token_logprobs"].clone();
    let logprobs = logprobs.as_array().unwrap().iter().filter_map(Value::as_f64).collect();
    let greedy = json!({"prompt": "Once upon a", "max_tokens": 30, "temperature": 0});
    (logprobs, completion(&server, &greedy)["text"].clone())
}

fn worst(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[test]
fn converted_models_give_what_the_model_gives() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (want, text) = results("demo");
    // bfloat16 is a part of float32, and a GGUF file has the rows of query and key in another
    // order.
    let [gguf, back, split] = [path("demo.gguf"), path("back"), path("split")];
    let said = converted(&["demo", &gguf, "--dtype", "f32"]);
    assert!(said.contains("demo.gguf: 47 tensors"), "{said}");
    converted(&[&gguf, &back, "--dtype", "bf16"]);
    converted(&["demo", &split, "--max-shard-size", "300k"]);
    for model in [&gguf, &back, &split] {
        let (found, same) = results(model);
        assert_eq!(same, text, "{model}");
        assert!(worst(&found, &want) < 1e-4, "{model}: {}", worst(&found, &want));
    }
    let names = |folder: &str| {
        let entries = std::fs::read_dir(folder).unwrap();
        entries
            .filter(|entry| {
                entry.as_ref().unwrap().path().extension().is_some_and(|end| end == "safetensors")
            })
            .count()
    };
    assert!(names(&split) > 3 && names(&back) == 1);
    let config: Value =
        serde_json::from_slice(&std::fs::read(Path::new(&back).join("config.json")).unwrap()).unwrap();
    assert_eq!((config.get("millrace"), &config["torch_dtype"]), (None, &json!("bfloat16")));

    // 8 bits are a little less exact. Rows in a wrong order would be several units apart.
    let small = path("small.gguf");
    converted(&["demo", &small, "--dtype", "q8_0"]);
    let (found, _) = results(&small);
    let apart = worst(&found, &want);
    assert!(apart > 1e-6 && apart < 0.5, "{apart}");
}

/// The formats of other programs than llama.cpp.
#[test]
fn files_of_fastllm_and_llama2c_give_what_the_model_gives() {
    let folder = tempfile::tempdir().unwrap();
    files_give_what_the_model_gives("demo", folder.path());
}

#[test]
#[ignore = "needs the published checkpoints of MILLRACE_TEST_DATA"]
fn published_weights_give_the_same_text_through_each_format() {
    let folder = tempfile::tempdir().unwrap();
    let stories = test_data("stories260k");
    files_give_what_the_model_gives(stories.to_str().unwrap(), folder.path());
}

fn files_give_what_the_model_gives(model: &str, folder: &Path) {
    let (want, text) = results(model);
    for (name, flags, bound) in [
        ("gguf", &["--to", "gguf", "--dtype", "f32"][..], 1e-4),
        ("flm-f32", &["--to", "flm", "--dtype", "f32"], 1e-4),
        ("flm-f16", &["--to", "flm"], 0.02),
        ("flm-int8", &["--to", "flm", "--dtype", "int8"], 0.5),
        ("flm-int4", &["--to", "flm", "--dtype", "int4"], 20.0),
        ("llama2c-v0", &["--to", "llama2c-v0"], 1e-4),
        ("llama2c-v1", &["--to", "llama2c"], 1e-4),
        ("llama2c-v2", &["--to", "llama2c", "--dtype", "int8"], 0.5),
    ] {
        let place = folder.join(name);
        std::fs::create_dir(&place).unwrap();
        let file = place.join("model");
        let said = converted(&[&[model, file.to_str().unwrap()], flags].concat());
        // These formats have no tokenizer, or not this one.
        if said.contains("put tokenizer.json beside the file") {
            let from = match model {
                "demo" => Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo"),
                folder => folder.into(),
            };
            std::fs::copy(from.join("tokenizer.json"), place.join("tokenizer.json")).unwrap();
        }
        let (found, same) = results(file.to_str().unwrap());
        let apart = worst(&found, &want);
        println!("{name}: {apart:.2e} apart");
        assert!(apart < bound, "{name}: {apart}");
        // Rounded weights may prefer another token, and exact ones may not.
        if bound < 0.1 {
            assert_eq!(same, text, "{name}");
        }
        // The folder of a file is none in which another file is written.
        let refused = refusal(&[&[model, file.to_str().unwrap()], flags].concat());
        assert!(refused.contains("exists; give the path of a new file"), "{refused}");
    }
}

/// Returns the best tokens at each place of a text, with their logprobs.
fn best(model: &str) -> Vec<Value> {
    let server = start_small_server(model, "cpu", &["--dtype", "float32", "--activations", "exact"]);
    let text = "Once upon a time, there was a fox. It's 12 years old.";
    let body = json!({"prompt": text, "echo": true, "logprobs": 5, "max_tokens": 0});
    let answer = post(&server.url("/v1/completions"), &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["choices"][0]["logprobs"]["top_logprobs"].as_array().unwrap().clone()
}

#[test]
fn a_smaller_vocabulary_gives_the_remaining_tokens_what_they_had() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let read = |folder: &str, name: &str| -> Value {
        serde_json::from_slice(&std::fs::read(Path::new(folder).join(name)).unwrap()).unwrap()
    };
    let [whole, small, kept] = [path("whole"), path("small"), path("kept")];
    converted(&["demo", &whole]);
    let count = read(&whole, "config.json")["vocab_size"].as_u64().unwrap();
    // The last third of the merged tokens, but for what other files name.
    let said = converted(&[&whole, &small, "--drop-ids", &format!("{}..{count}", count * 2 / 3)]);
    let smaller = read(&small, "config.json")["vocab_size"].as_u64().unwrap();
    assert!(smaller < count && smaller >= count * 2 / 3, "{smaller} of {count}");
    assert!(said.contains(&format!("{smaller} of {count} rows of the vocabulary stay")), "{said}");
    // The other flag says the same with what stays.
    std::fs::write(path("ids"), format!("0..{}\n\n1\n", count * 2 / 3)).unwrap();
    converted(&[&whole, &kept, "--keep-vocab", &path("ids")]);
    for file in ["config.json", "tokenizer.json"] {
        assert_eq!(read(&kept, file), read(&small, file), "{file}");
    }

    let vocabulary = read(&small, "tokenizer.json")["model"]["vocab"].clone();
    let (before, after) = (best(&whole), best(&small));
    let tokens = |best: &Value| -> Vec<(String, f64)> {
        let best = best.as_object().into_iter().flatten();
        best.map(|(token, logprob)| (token.clone(), logprob.as_f64().unwrap())).collect()
    };
    // A text of other tokens is another input; the first tokens are the same.
    let mut compared = 0;
    for (before, after) in before.iter().zip(&after).skip(1).take(3) {
        let (before, after) = (tokens(before), tokens(after));
        let moves: Vec<f64> = before
            .iter()
            .filter_map(|(token, was)| Some(after.iter().find(|(other, _)| other == token)?.1 - was))
            .collect();
        // Logits are the same, and only their sum has fewer parts.
        assert!(moves.iter().all(|&by| by > -1e-4 && (by - moves[0]).abs() < 1e-4), "{moves:?}");
        compared += moves.len();
    }
    assert!(compared > 6, "{compared}: {before:?} {after:?} {vocabulary}");

    for (arguments, want) in [
        (["--drop-ids", "9..9"], "9..9 has no ids"),
        (["--drop-ids", "x"], "\"x\" is no id of a token"),
        (["--keep-vocab", "/nowhere/ids"], "/nowhere/ids"),
    ] {
        let said = refusal(&[&[whole.as_str(), path("new").as_str()][..], &arguments].concat());
        assert!(said.contains(want), "{said}");
    }
    std::fs::write(path("ids"), "1\n2..x\n").unwrap();
    let said = refusal(&[&whole, &path("new"), "--keep-vocab", &path("ids")]);
    assert!(said.contains("ids, line 2: \"x\" is no id of a token"), "{said}");
    let said = refusal(&[&whole, &path("new.gguf"), "--drop-ids", "5"]);
    assert!(said.contains("are for safetensors"), "{said}");
}

#[test]
fn what_cannot_be_converted_is_refused_and_nothing_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let flags = refusal(&["demo", &path("a"), "--dtype", "q8_0"]);
    assert!(flags.contains("--dtype q8_0 is for GGUF"), "{flags}");
    for (file, flags, want) in [
        ("a.flm", &["--dtype", "bf16"][..], "--to flm takes --dtype f32, f16, int8 or int4"),
        ("a.bin", &["--to", "llama2c", "--dtype", "f16"], "--to llama2c takes --dtype f32 or int8"),
        ("a.gguf", &["--dtype", "int4"], "--to gguf takes --dtype f32, f16, bf16 or q8_0"),
        ("a", &["--dtype", "int8"], "`millrace quantize` writes quantized safetensors"),
        ("a.flm", &["--max-shard-size", "1G"], "--max-shard-size is for safetensors"),
    ] {
        let said = refusal(&[&["demo", &path(file)], flags].concat());
        assert!(said.contains(want), "{said}");
    }
    std::fs::write(path("there.gguf"), "x").unwrap();
    let there = refusal(&["demo", &path("there.gguf")]);
    assert!(there.contains("there.gguf exists; give the path of a new file"), "{there}");
    let quantized = path("quantized");
    let status =
        Command::new(binary()).args(["quantize", "demo", &quantized, "--format", "int8"]).output().unwrap();
    assert!(status.status.success());
    let twice = refusal(&[&quantized, &path("b.gguf")]);
    assert!(twice.contains("is quantized (compressed-tensors)"), "{twice}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}
