//! Tests encoders in GGUF files with the real binary: a file gives the same vectors as the same
//! checkpoint in safetensors, with the pooling and the tokenizer that the file has, and the same
//! scores of classifiers.

use std::fs;
use std::path::{Path, PathBuf};

use millrace_integration_tests::{Server, post};
use serde_json::{Value, json};
use tempfile::TempDir;

const TEXTS: [&str; 3] = ["a cat", "b", "a bad dog ran"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn start(model: &Path, flags: &[&str]) -> Server {
    let model = ["--model-id", model.to_str().unwrap(), "--dtype", "float32"];
    Server::start(&[&model[..], flags].concat())
}

/// Returns a folder with the checkpoint in safetensors, and the tokenizer that the GGUF files of
/// BERT have inside.
fn twin(name: &str) -> TempDir {
    let twin = tempfile::tempdir().unwrap();
    let from = folder().join("golden-encoders").join(name);
    for file in ["config.json", "model.safetensors"] {
        fs::copy(from.join(file), twin.path().join(file)).unwrap();
    }
    let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"].map(str::to_owned);
    let words = ('a'..='z').map(String::from);
    let parts = ('a'..='z').map(|letter| format!("##{letter}"));
    let unused = (0..4).map(|index| format!("[unused{index}]"));
    let tokens: Vec<String> = special.into_iter().chain(words).chain(parts).chain(unused).collect();
    fs::write(twin.path().join("vocab.txt"), tokens.join("\n")).unwrap();
    twin
}

/// Returns the vectors by `/embed` and by `/v1/embeddings`, which have the length 1.
fn vectors(server: &Server) -> Vec<Vec<f64>> {
    let answer = post(&server.url("/embed"), &json!({"inputs": TEXTS}));
    assert_eq!(answer.status, 200, "{}", answer.body);
    let vectors: Vec<Vec<f64>> = serde_json::from_value(answer.body).unwrap();
    let answer = post(&server.url("/v1/embeddings"), &json!({"input": TEXTS}));
    assert_eq!(answer.status, 200, "{}", answer.body);
    let data = answer.body["data"].as_array().unwrap();
    for (vector, object) in vectors.iter().zip(data) {
        let other: Vec<f64> = serde_json::from_value(object["embedding"].clone()).unwrap();
        assert!(distance(vector, &other) < 1e-6, "{other:?} is not {vector:?}");
    }
    vectors
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
}

/// Compares the vectors of a file with those of its twin. `pooling` is the one that the file names.
fn check(name: &str, pooling: &str, other: &str) {
    let twin = twin(name);
    let file = folder().join("golden-gguf/encoders").join(format!("{name}.gguf"));
    let server = start(&file, &[]);
    let info: Value = serde_json::from_str(&server.get("/info").1).unwrap();
    let source = info["embeddings"]["pooling_source"].as_str().unwrap();
    assert!(source.ends_with(".pooling_type of the GGUF file"), "{name}: {info}");
    assert_eq!(info["embeddings"]["pooling"], json!([pooling]), "{name}");
    let found = vectors(&server);
    let expected = vectors(&start(twin.path(), &["--pooling", pooling]));
    for ((found, expected), text) in found.iter().zip(&expected).zip(TEXTS) {
        assert!(distance(found, expected) < 1e-5, "{name}: {text}: {found:?} is not {expected:?}");
    }
    // Another pooling gives other vectors, so the one of the file was used.
    let others = vectors(&start(&file, &["--pooling", other]));
    assert!(distance(&others[2], &expected[2]) > 1e-2, "{name}: {other} is not seen");
}

#[test]
fn vectors_of_bert_files_are_those_of_safetensors() {
    check("bert", "cls", "mean");
    check("nomic_bert", "mean", "cls");
}

#[test]
fn vectors_of_modernbert_and_gemma_files_are_those_of_safetensors() {
    check("modernbert", "cls", "mean");
    check("gemma3_both_ways", "lasttoken", "mean");
}

/// Returns the scores of texts for a query, and the outputs of the classifier for pairs of texts.
fn outputs(server: &Server, path: &str) -> Vec<(String, f64)> {
    let query = TEXTS[0];
    let body = match path {
        "/rerank" => json!({"query": query, "texts": TEXTS, "raw_scores": true}),
        _ => json!({"inputs": TEXTS.map(|text| [query, text]), "raw_scores": true}),
    };
    let answer = post(&server.url(path), &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let mut found = Vec::new();
    let mut open = vec![&answer.body];
    while let Some(value) = open.pop() {
        match value {
            Value::Array(values) => open.extend(values),
            one => {
                let name = one.get("label").or(one.get("index")).map(Value::to_string).unwrap();
                found.push((name, one["score"].as_f64().unwrap()));
            }
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    found
}

#[test]
fn scores_of_classifier_files_are_those_of_safetensors() {
    for (name, path, count) in [
        ("bert_scores", "/rerank", 3),
        ("bert_pairs", "/predict", 9),
        ("modernbert_scores", "/rerank", 3),
        ("modernbert_scores_mean", "/rerank", 3),
    ] {
        let (twin, file) = (twin(name), folder().join("golden-gguf/encoders").join(format!("{name}.gguf")));
        let found = outputs(&start(&file, &[]), path);
        let expected = outputs(&start(twin.path(), &[]), path);
        assert_eq!(found.len(), count, "{name}: {found:?}");
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found.0, expected.0, "{name}");
            assert!((found.1 - expected.1).abs() < 1e-5, "{name}: {found:?} is not {expected:?}");
        }
    }
}
