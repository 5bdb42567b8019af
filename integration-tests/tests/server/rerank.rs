//! Tests an encoder with the real binary: scores of pairs are those of transformers, alone, beside
//! other texts and on several shards, and vectors of texts do not depend on other requests.

use std::path::{Path, PathBuf};

use millrace_integration_tests::{Server, post};
use serde_json::{Value, json};

const QUERY: &str = "w5 w6";

/// An encoder with a classifier.
const SCORES: &str = "xlm_roberta_scores";

/// Encoders with a classifier, and with another token type for the second text of a pair.
const TYPED: [&str; 4] = ["bert_scores", "xlm_roberta_types", "nomic_bert_scores", "jina_v3_scores"];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden-encoders").join(name)
}

/// The texts of the golden file, and the outputs of the classifier for them.
fn expected(name: &str) -> (Vec<String>, Vec<f64>) {
    let pairs: Vec<Value> =
        serde_json::from_slice(&std::fs::read(folder(name).join("pairs.json")).unwrap()).unwrap();
    assert!(pairs.len() == 2 && pairs.iter().all(|pair| pair["query"] == QUERY));
    let pair = |pair: &Value| (pair["text"].as_str().unwrap().to_owned(), pair["output"].as_f64().unwrap());
    pairs.iter().map(pair).unzip()
}

fn start(name: &str, flags: &[&str]) -> Server {
    let model = folder(name);
    Server::start(&[&["--model-id", model.to_str().unwrap()], flags].concat())
}

fn scores(server: &Server, texts: &[String]) -> Vec<f64> {
    let body = json!({"query": QUERY, "texts": texts, "raw_scores": true});
    let answer = post(&server.url("/rerank"), &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let mut scores = vec![f64::NAN; texts.len()];
    let ranks = answer.body.as_array().unwrap();
    assert!(ranks.is_sorted_by(|a, b| a["score"].as_f64() >= b["score"].as_f64()), "{ranks:?}");
    for rank in ranks {
        scores[rank["index"].as_u64().unwrap() as usize] = rank["score"].as_f64().unwrap();
    }
    scores
}

#[test]
fn scores_are_those_of_transformers() {
    for name in [SCORES, "modernbert_scores", "modernbert_scores_mean"].into_iter().chain(TYPED) {
        check_scores(name);
    }
}

fn check_scores(name: &str) {
    let (texts, outputs) = expected(name);
    let server = start(name, &[]);
    let found = scores(&server, &texts);
    for (found, expected) in found.iter().zip(&outputs) {
        assert!((found - expected).abs() < 1e-4 * (1.0 + expected.abs()), "{found} is not {expected}");
    }
    // Other texts of a step change no bit, and neither do steps with room for one text.
    let many: Vec<String> = (0..40).map(|n| texts[n % 2].clone()).collect();
    let narrow = start(name, &["--max-batch-prefill-tokens", "40", "--max-batch-size", "3"]);
    for server in [&server, &narrow] {
        let all = scores(server, &many);
        assert!(all.iter().zip(found.iter().cycle()).all(|(a, b)| a == b), "{all:?}");
    }
    for (split, found) in scores(&start(name, &["--num-shard", "2"]), &texts).iter().zip(&found) {
        assert!((split - found).abs() < 1e-4, "{split} on two shards, and {found} on one");
    }
    assert_eq!(server.metric("millrace_kv_blocks_used"), 0.0);
}

/// A pair that is too long loses tokens of the longer text first, as in transformers, and its
/// second text keeps its type.
#[test]
fn scores_of_pairs_that_are_cut_are_those_of_transformers() {
    for name in TYPED {
        let pairs = std::fs::read(folder(name).join("cut_pairs.json")).unwrap();
        let pairs: Vec<Value> = serde_json::from_slice(&pairs).unwrap();
        assert!(pairs.len() >= 10, "{name}");
        let server = start(name, &[]);
        for pair in &pairs {
            let mut body = json!({"query": pair["query"], "texts": [pair["text"]], "raw_scores": true});
            let words = |key: &str| pair[key].as_str().unwrap().split(' ').count();
            if words("query") + words("text") > 46 {
                let refused = post(&server.url("/rerank"), &body);
                assert_eq!(refused.status, 422, "{name}: {}", refused.body);
            }
            body["truncate"] = json!(true);
            body["truncation_direction"] = pair["side"].clone();
            let answer = post(&server.url("/rerank"), &body);
            let (found, expected) = (answer.body[0]["score"].as_f64(), pair["output"].as_f64().unwrap());
            let error = (found.expect("a score") - expected).abs();
            assert!(error < 1e-4 * (1.0 + expected.abs()), "{name}: {answer:?} is not {pair}");
        }
    }
}

/// A shard that replaces a lost one gets the types with the tokens.
#[test]
fn pairs_keep_their_types_when_a_shard_is_lost() {
    let server = start(TYPED[0], &["--heartbeat-timeout", "86400"]);
    let (texts, outputs) = expected(TYPED[0]);
    server.signal_shards("STOP");
    let found = std::thread::scope(|scope| {
        let asked = scope.spawn(|| scores(&server, &texts));
        server.wait_until("both pairs are in a step", |server| {
            server.metric("vllm:num_requests_running") == texts.len() as f64
        });
        server.signal_shards("KILL");
        asked.join().unwrap()
    });
    for (found, expected) in found.iter().zip(&outputs) {
        assert!((found - expected).abs() < 1e-4 * (1.0 + expected.abs()), "{found} is not {expected}");
    }
    server.wait_for_restarts(1);
}

/// Clients of Cohere and Jina get the same scores between 0 and 1, and vectors of such a model have
/// the similarity of their angle.
#[test]
fn other_routes_serve_a_model_with_token_types() {
    let server = start(TYPED[0], &[]);
    let (texts, outputs) = expected(TYPED[0]);
    let answer = post(&server.url("/v1/rerank"), &json!({"query": QUERY, "documents": texts}));
    for result in answer.body["results"].as_array().unwrap() {
        let output = outputs[result["index"].as_u64().unwrap() as usize];
        let error = result["relevance_score"].as_f64().unwrap() - 1.0 / (1.0 + (-output).exp());
        assert!(error.abs() < 1e-4, "{result} is not the sigmoid of {output}");
    }
    let vectors = post(&server.url("/embed"), &json!({"inputs": texts})).body;
    let vector = |index: usize| -> Vec<f64> {
        vectors[index].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
    };
    let cosine: f64 = vector(0).iter().zip(vector(1)).map(|(a, b)| a * b).sum();
    let inputs = json!({"inputs": {"source_sentence": texts[0], "sentences": [texts[1]]}});
    let similarity = post(&server.url("/similarity"), &inputs).body[0].as_f64().unwrap();
    assert!((similarity - cosine).abs() < 1e-4, "{similarity} is not {cosine}");
}

#[test]
fn classes_are_those_of_transformers() {
    for name in
        ["bert_classes", "bert_pairs", "bert_many_classes", "xlm_roberta_classes", "modernbert_classes"]
    {
        let cases = std::fs::read(folder(name).join("classes.json")).unwrap();
        let cases: Vec<Value> = serde_json::from_slice(&cases).unwrap();
        let server = start(name, &[]);
        for case in &cases {
            for (raw_scores, key) in [(true, "logits"), (false, "shares")] {
                let body = json!({"inputs": case["inputs"], "raw_scores": raw_scores});
                let answer = post(&server.url("/predict"), &body);
                assert_eq!(answer.status, 200, "{name}: {}", answer.body);
                let classes = answer.body.as_array().unwrap();
                let sorted = classes.is_sorted_by(|a, b| a["score"].as_f64() >= b["score"].as_f64());
                assert!(sorted && classes.len() == case["names"].as_array().unwrap().len(), "{classes:?}");
                for class in classes {
                    let place = case["names"].as_array().unwrap().iter().position(|n| *n == class["label"]);
                    let expected = case[key][place.unwrap()].as_f64().unwrap();
                    let error = (class["score"].as_f64().unwrap() - expected).abs();
                    assert!(error < 1e-4 * (1.0 + expected.abs()), "{name}: {class} is not {expected}");
                }
            }
        }
        let pair = post(&server.url("/predict"), &json!({"inputs": ["w5", "w6"]}));
        assert_eq!(pair.status, 200, "{}", pair.body);
    }
}

#[test]
fn an_encoder_makes_vectors_and_no_tokens() {
    let server = start(SCORES, &["--max-batch-prefill-tokens", "20"]);
    let embed = |inputs: Value| post(&server.url("/embed"), &json!({"inputs": inputs}));
    let together = embed(json!(["w7 w8", "w9 w10 w11"]));
    assert_eq!(together.status, 200, "{}", together.body);
    for (index, text) in ["w7 w8", "w9 w10 w11"].iter().enumerate() {
        assert_eq!(embed(json!(text)).body[0], together.body[index], "{text}");
    }
    // The text and two special tokens do not fit a step.
    let long = vec!["w7"; 20].join(" ");
    let refused = embed(json!(long));
    assert_eq!(refused.status, 422, "{}", refused.body);
    assert_eq!(embed(json!(vec!["w7"; 19].join(" "))).status, 200);
    let refused = post(&server.url("/generate"), &json!({"inputs": "w7"}));
    assert_eq!(refused.status, 422, "{}", refused.body);
    assert!(refused.body["error"].as_str().unwrap().contains("has no head"), "{}", refused.body);
}
