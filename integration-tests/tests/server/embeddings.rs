//! Tests embeddings with the real binary: they do not depend on other requests, on chunking, or on
//! the number of shards.

use std::path::{Path, PathBuf};
use std::process::Command;

use millrace_integration_tests::{Server, binary, post};
use serde_json::{Value, json};

const PATH: &str = "/v1/embeddings";

fn inputs() -> Vec<String> {
    (0..40).map(|n| format!("{} lemons {}", n, "Rosa bought more lemons on Monday. ".repeat(n % 9))).collect()
}

fn ask(server: &Server, body: &Value) -> Value {
    let answer = post(&server.url(PATH), body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body
}

fn vectors(server: &Server, inputs: &[String]) -> Vec<Vec<f64>> {
    let answer = ask(server, &json!({"input": inputs}));
    let of = |of: &Value| {
        of["embedding"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
    };
    answer["data"].as_array().unwrap().iter().map(of).collect()
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
}

#[test]
fn a_text_has_one_vector() {
    let inputs = inputs();
    let mut kinds = Vec::new();
    for pooling in ["last", "mean"] {
        let flags = ["--dtype", "float32", "--pooling", pooling];
        let server = Server::start(&flags);
        let together = vectors(&server, &inputs);
        for (input, vector) in inputs.iter().zip(&together) {
            assert!((distance(vector, &vec![0.0; vector.len()]) - 1.0).abs() < 1e-5);
            let alone = vectors(&server, std::slice::from_ref(input)).remove(0);
            // The second request finds its prefix in the cache.
            assert!(alone == *vector, "{pooling} of {input}");
        }
        // The text is computed in many small steps beside other texts.
        let small = [&flags[..], &["--max-batch-prefill-tokens", "8", "--max-batch-size", "3"]].concat();
        assert!(vectors(&Server::start(&small), &inputs) == together, "{pooling} in pieces");
        let shards = [&flags[..], &["--num-shard", "2"]].concat();
        for (split, vector) in vectors(&Server::start(&shards), &inputs).iter().zip(&together) {
            assert!(distance(split, vector) < 1e-4, "{pooling} on two shards");
        }
        assert_eq!(server.metric("millrace_kv_blocks_used"), 0.0);
        kinds.push(together);
    }
    assert!(distance(&kinds[0][5], &kinds[1][5]) > 0.01, "last and mean are not the same");

    let server = Server::start(&["--dtype", "float32"]);
    let short = ask(&server, &json!({"input": inputs[3], "dimensions": 7}));
    let short: Vec<f64> = serde_json::from_value(short["data"][0]["embedding"].clone()).unwrap();
    let length = kinds[0][3][..7].iter().map(|value| value * value).sum::<f64>().sqrt();
    let cut: Vec<f64> = kinds[0][3][..7].iter().map(|value| value / length).collect();
    assert!(distance(&short, &cut) < 1e-6);
    let refused = post(&server.url(PATH), &json!({"input": "a", "dimensions": 100_000}));
    assert_eq!((refused.status, &refused.body["error"]["param"]), (400, &json!("dimensions")));
}

/// Writes the demo model as a GGUF file whose pooling has this number, unless it exists. The added
/// keys have 64 bytes, so that the tensors stay aligned.
fn gguf_with_pooling(folder: &Path, number: u32) -> PathBuf {
    let path = folder.join(format!("pooling-{number}.gguf"));
    if path.exists() {
        return path;
    }
    let convert = ["convert", "demo", path.to_str().unwrap(), "--dtype", "f32"];
    assert!(Command::new(binary()).args(convert).output().unwrap().status.success());
    let mut bytes = std::fs::read(&path).unwrap();
    // The magic number, the version, the number of tensors, and the number of keys.
    let keys = u64::from_le_bytes(bytes[16..24].try_into().unwrap());
    bytes[16..24].copy_from_slice(&(keys + 2).to_le_bytes());
    let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let (count, string) = (4u32.to_le_bytes(), 8u32.to_le_bytes());
    let pooling = [text("llama.pooling_type"), count.to_vec(), number.to_le_bytes().to_vec()].concat();
    let added = [pooling, text("x"), string.to_vec(), text("padding!!")].concat();
    assert_eq!(added.len(), 64);
    bytes.splice(24..24, added);
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn the_pooling_of_a_gguf_file_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let inputs = &inputs()[..9];
    let mean = vectors(&Server::start(&["--dtype", "float32", "--pooling", "mean"]), inputs);
    let serve = |number: u32, more: &[&str]| {
        let file = gguf_with_pooling(folder.path(), number);
        let flags = ["--model-id", file.to_str().unwrap(), "--dtype", "float32"];
        Server::start(&[&flags[..], more].concat())
    };
    let server = serve(1, &[]);
    let info: Value = serde_json::from_str(&server.get("/info").1).unwrap();
    let embeddings = &info["embeddings"];
    assert_eq!(embeddings["pooling"], json!(["mean"]), "{info}");
    assert_eq!(embeddings["pooling_source"], "llama.pooling_type of the GGUF file", "{info}");
    let found = vectors(&server, inputs);
    // The file has the rows of query and key in another order.
    assert!(found.iter().zip(&mean).all(|(found, mean)| distance(found, mean) < 1e-4));

    // The score of a classifier is no vector; texts are generated nevertheless.
    let server = serve(4, &[]);
    let refused = post(&server.url(PATH), &json!({"input": "Rosa"}));
    let error = refused.body.to_string();
    assert_eq!(refused.status, 400, "{error}");
    assert!(
        error.contains("llama.pooling_type of the GGUF file: the pooling `4 (rank)` is not supported"),
        "{error}"
    );
    assert_eq!(post(&server.url("/v1/completions"), &json!({"prompt": "Rosa", "max_tokens": 2})).status, 200);
    assert_eq!(post(&serve(4, &["--pooling", "last"]).url(PATH), &json!({"input": "Rosa"})).status, 200);
}
