//! Tests embeddings with the real binary: they do not depend on other requests, on chunking, or on
//! the number of shards.

use millrace_integration_tests::{Server, post};
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
