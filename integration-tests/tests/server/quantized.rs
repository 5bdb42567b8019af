//! Weights that are quantized while they are loaded, on the CPU.

use millrace_integration_tests::{Server, post, start_small_server};
use serde_json::{Value, json};

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

fn mean_distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).sum::<f64>() / a.len() as f64
}

/// Every format changes the logprobs of a text that the model wrote only slightly, with one shard
/// and with two, and two shards are close to one.
#[test]
fn quantized_weights_score_close_to_16_bits() {
    let exact = start_small_server("demo", "cpu", &["--dtype", "bfloat16"]);
    let prompt = "Once upon a time";
    let body = json!({"prompt": prompt, "max_tokens": 100, "temperature": 0.8, "seed": 7});
    let text = format!("{prompt}{}", completion(&exact, &body)["text"].as_str().unwrap());
    let want = scores(&exact, &text);
    assert!(want.len() > 40, "{} tokens", want.len());
    // The bounds are about twice the distances on a CPU with AVX-512.
    for (format, bound) in [
        ("q8_0", 0.01),
        ("int8", 0.015),
        ("int4", 0.09),
        ("q4_0", 0.1),
        ("q4_k", 0.1),
        ("q5_k", 0.01),
        ("q6_k", 0.01),
        ("fp8", 0.02),
        ("nf4", 0.1),
    ] {
        let found: Vec<Vec<f64>> = ["1", "2"]
            .iter()
            .map(|shards| {
                let flags = ["--dtype", "bfloat16", "--quantize", format, "--num-shard", shards];
                let server = start_small_server("demo", "cpu", &flags);
                let head = if ["fp8", "nf4"].contains(&format) { "" } else { ", head as q8_0" };
                server.wait_for_log(&format!("matrices of layers as {format}{head} on"));
                scores(&server, &text)
            })
            .collect();
        let (one, two) = (mean_distance(&found[0], &want), mean_distance(&found[1], &want));
        let between = mean_distance(&found[0], &found[1]);
        println!("{format}: {one:.4} and {two:.4} from bfloat16, {between:.4} apart");
        assert!(one < bound && two < bound && between < bound, "{format}: {one} {two} {between}");
    }
    let flags = ["--dtype", "bfloat16", "--quantize", "q8_0", "--dense-head"];
    let server = start_small_server("demo", "cpu", &flags);
    server.wait_for_log("matrices of layers as q8_0 on");
    assert!(mean_distance(&scores(&server, &text), &want) < 0.01);
}

/// An int8 KV cache changes the logprobs of a text only slightly, with one shard and with two.
/// Blocks that other requests use as a prefix keep their scales.
#[test]
fn an_int8_kv_cache_scores_close_to_16_bits() {
    let exact = start_small_server("demo", "cpu", &["--dtype", "bfloat16"]);
    let prompt = "Once upon a time";
    let body = json!({"prompt": prompt, "max_tokens": 100, "temperature": 0.8, "seed": 7});
    let text = format!("{prompt}{}", completion(&exact, &body)["text"].as_str().unwrap());
    let want = scores(&exact, &text);
    for shards in ["1", "2"] {
        let flags = ["--dtype", "bfloat16", "--kv-cache-dtype", "int8", "--num-shard", shards];
        let server = start_small_server("demo", "cpu", &flags);
        server.wait_for_log("tokens of KV cache as int8 in");
        let found = scores(&server, &text);
        let distance = mean_distance(&found, &want);
        println!("{shards} shards: {distance:.4} from bfloat16");
        assert!(distance < 0.003, "{shards}: {distance}");

        // The second answer reuses the blocks of the first.
        let body = json!({"prompt": text, "max_tokens": 30, "temperature": 0});
        let first = completion(&server, &body)["text"].clone();
        assert_eq!(completion(&server, &body)["text"], first);
    }
}
