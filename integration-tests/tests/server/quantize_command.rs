//! `millrace quantize`: its output is served, and read by a program that shares no code with it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use millrace_integration_tests::{Server, binary, post, start_small_server};
use serde_json::{Value, json};

fn quantize(arguments: &[&str]) -> Output {
    Command::new(binary()).arg("quantize").args(arguments).env_remove("REVISION").output().unwrap()
}

fn error_text(arguments: &[&str]) -> String {
    let output = quantize(arguments);
    assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn text(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo")
}

/// Returns the relative error of each tensor from lines of JSON.
fn errors(lines: &str) -> BTreeMap<String, f64> {
    let objects = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let quantized = objects.filter(|object| object["relative_error"].is_number());
    quantized
        .map(|object| {
            (object["tensor"].as_str().unwrap().to_owned(), object["relative_error"].as_f64().unwrap())
        })
        .collect()
}

fn completion(server: &Server, body: &Value) -> Value {
    let answer = post(&server.url("/v1/completions"), body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["choices"][0].clone()
}

/// Returns the logprobs of the tokens of a text.
fn scores(server: &Server, text: &str) -> Vec<f64> {
    let body = json!({"prompt": text, "echo": true, "logprobs": 1, "max_tokens": 0});
    let logprobs = completion(server, &body)["logprobs"]["token_logprobs"].clone();
    logprobs.as_array().unwrap().iter().filter_map(Value::as_f64).collect()
}

/// The weights that an independent reader finds are as far from the dense ones as the command says,
/// and the checkpoint is served.
#[test]
fn new_checkpoints_are_read_by_others_and_served() {
    let folder = tempfile::tempdir().unwrap();
    let dense = start_small_server("demo", "cpu", &[]);
    let prompt = "Once upon a time";
    let body = json!({"prompt": prompt, "max_tokens": 100, "temperature": 0.8, "seed": 7});
    let story = format!("{prompt}{}", completion(&dense, &body)["text"].as_str().unwrap());
    let exact = scores(&dense, &story);
    assert!(exact.len() > 40, "{} tokens", exact.len());
    let reader = Path::new(env!("CARGO_MANIFEST_DIR")).join("oracle/read_quantized.py");
    let formats: [(&[&str], usize, f64); 7] = [
        (&["int8"], 35, 0.015),
        (&["int4", "--group-size", "32"], 35, 0.1),
        (&["int4"], 35, 0.1),
        (&["int4", "--symmetric"], 35, 0.12),
        (&["fp8"], 35, 0.02),
        // Keys and values have 64 rows.
        (&["fp8-block"], 20, 0.02),
        (&["nf4"], 35, 0.1),
    ];
    for (index, (flags, matrices, bound)) in formats.into_iter().enumerate() {
        let place = folder.path().join(index.to_string());
        let to = place.to_str().unwrap();
        let output = quantize(&[&["demo", to, "--json", "--format"], flags].concat());
        let said = errors(&text(output));
        assert_eq!(said.len(), matrices, "{flags:?}");
        match Command::new("python3").arg(&reader).arg(demo()).arg(&place).output() {
            Ok(output) => {
                let found = errors(&text(output));
                assert_eq!(found.len(), matrices, "{flags:?}");
                for (tensor, error) in found {
                    let distance = (error - said[&tensor]).abs();
                    assert!(distance < 1e-4 * error, "{flags:?} {tensor}: {error} {}", said[&tensor]);
                }
            }
            Err(error) => println!("skipped: python3: {error}"),
        }
        let found = scores(&start_small_server(to, "cpu", &[]), &story);
        assert_eq!(found.len(), exact.len());
        let distances = found.iter().zip(&exact).map(|(a, b)| (a - b).abs());
        let distance = distances.sum::<f64>() / exact.len() as f64;
        println!("{flags:?}: {distance:.4} from the dense checkpoint");
        assert!(distance < bound, "{flags:?}: {distance}");
    }
}

#[test]
fn the_table_names_the_worst_matrices_and_the_dense_ones() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("new");
    let said = text(quantize(&["demo", to.to_str().unwrap(), "--format", "fp8-block"]));
    for expected in [
        "new: 20 matrices as fp8-block, ",
        "\nRelative error of the weights (root mean square): 0.02",
        " in all; the largest:\n  model.layers.",
        "\n15 matrices are left dense:\n",
        "  model.layers.0.self_attn.k_proj.weight  64 x 128 is not a multiple of blocks of 128 x 128\n",
        "\n  and 5 more\n",
    ] {
        assert!(said.contains(expected), "{said}\nshould contain\n{expected}");
    }
    assert_eq!(said.lines().filter(|line| line.contains("0.02")).count(), 11, "{said}");
}

#[test]
fn wrong_flags_and_places_are_one_clear_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (new, file) = (path("new"), path("file"));
    std::fs::write(&file, "text").unwrap();
    for (arguments, expected) in [
        (vec!["demo", &new], "--format <FORMAT>"),
        (
            vec!["demo", &new, "--format", "q4_k"],
            "`millrace convert` writes GGUF files; `millrace serve MODEL --quantize q4_k` quantizes while loading",
        ),
        (vec!["demo", &new, "--format", "exl2"], "not one of int8, int4, fp8, fp8-block, nf4"),
        (vec!["demo", &new, "--format", "int4", "--group-size", "48"], "not 32, 64 or 128"),
        (
            vec!["demo", &new, "--format", "nf4", "--group-size", "64"],
            "--group-size is for --format int4, not nf4",
        ),
        (vec!["demo", &new, "--format", "int8", "--symmetric"], "--symmetric is for --format int4, not int8"),
        (vec!["demo", &file, "--format", "nf4"], "file exists and is not an empty folder"),
        (vec!["demo", "/nowhere/new", "--format", "nf4"], "error: /nowhere/new: No such file or directory"),
        (vec!["/nowhere/model", &new, "--format", "nf4"], "error: /nowhere/model: there is no such folder"),
        (vec![&file, &new, "--format", "nf4"], "file is a model in one file; give the folder"),
    ] {
        let error = error_text(&arguments);
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}
