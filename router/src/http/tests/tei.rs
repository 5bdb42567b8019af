//! The routes of text-embeddings-inference.

use std::sync::Arc;

use axum::http::StatusCode;
use millrace_proto::Ready;
use serde_json::{Value, json};

use super::Server;
use crate::engine::EngineState;
use crate::scheduler::Pooling;
use crate::test_support::BOS;

const PATH: &str = "/embed";

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

#[tokio::test]
async fn every_text_becomes_a_vector() {
    let mut server = Server::saying("x");
    let body = server.post(PATH, json!({"inputs": ["a", "bc"]})).await.json();
    let rows = body.as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for (row, ids) in rows.iter().zip([vec![BOS, 97], vec![BOS, 98, 99]]) {
        let length: f64 = floats(row).iter().map(|value| value * value).sum();
        assert!((length - 1.0).abs() < 1e-6, "{row}");
        let request = server.engine.requests.recv().await.unwrap();
        assert_eq!((&request.prompt, request.max_new_tokens), (&ids, 0));
        assert_eq!(request.pooling, Some(Pooling::Last));
    }
}

#[tokio::test]
async fn vectors_may_keep_their_length_and_lose_features() {
    let server = Server::saying("x");
    let body = server.post(PATH, json!({"inputs": "a", "normalize": false, "dimensions": 3})).await.json();
    let raw = floats(&body[0]);
    let body = server.post(PATH, json!({"inputs": "a", "dimensions": 3})).await.json();
    let unit = floats(&body[0]);
    let length = raw.iter().map(|value| value * value).sum::<f64>().sqrt();
    assert!(length > 1.5, "the test's vector is not of length 1: {raw:?}");
    assert!(raw.iter().zip(&unit).all(|(raw, unit)| (raw / length - unit).abs() < 1e-6), "{raw:?} {unit:?}");
}

#[tokio::test]
async fn long_texts_are_refused_or_lose_their_beginning() {
    let mut server = Server::saying("x");
    let long = "a".repeat(3000);
    for truncate in [json!(false), json!(true), Value::Null] {
        let reply = server.post(PATH, json!({"inputs": long, "truncate": truncate})).await;
        assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY, "{}", reply.body);
        assert_eq!(reply.json()["error_type"], "validation");
    }
    let request = json!({"inputs": long, "truncate": true, "truncation_direction": "Left"});
    assert_eq!(server.post(PATH, request).await.status, StatusCode::OK);
    let prompt = server.engine.requests.recv().await.unwrap().prompt;
    assert!(prompt.len() < 3000 && prompt.iter().all(|&id| id == 97), "{}", prompt.len());
}

#[tokio::test]
async fn what_is_not_supported_is_refused_by_name() {
    let server = Server::saying("x");
    for (body, word) in [
        (json!({"inputs": []}), "`inputs`"),
        (json!({"inputs": "a", "prompt_name": "query"}), "`prompt_name`"),
        (json!({"inputs": "a", "dimensions": 0}), "`dimensions`"),
    ] {
        let reply = server.post(PATH, body.clone()).await;
        assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY, "{body}: {}", reply.body);
        assert!(reply.body.contains(word), "{}", reply.body);
    }
}

/// A checkpoint for vectors has no head, so that its logits would mean nothing.
#[tokio::test]
async fn a_model_without_a_head_makes_vectors_and_no_tokens() {
    let server = Server::saying("x");
    let EngineState::Ready(ready) = server.engine.state.borrow().clone() else { panic!("not ready") };
    let headless = Ready { headless: true, ..Ready::clone(&ready) };
    server.engine.state.send_replace(EngineState::Ready(Arc::new(headless)));
    for path in [PATH, "/generate"] {
        let reply = server.post(path, json!({"inputs": "a"})).await;
        let expected = if path == PATH { StatusCode::OK } else { StatusCode::UNPROCESSABLE_ENTITY };
        assert_eq!(reply.status, expected, "{path}: {}", reply.body);
    }
    let reply =
        server.post("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "a"}]})).await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST);
    assert!(reply.body.contains("has no head"), "{}", reply.body);
}
