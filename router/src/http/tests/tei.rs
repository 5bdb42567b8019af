//! The routes of text-embeddings-inference.

use std::sync::Arc;

use axum::http::StatusCode;
use millrace_proto::Ready;
use millrace_scheduler::Pooling;
use serde_json::{Value, json};

use super::Server;
use crate::engine::EngineState;
use crate::test_support::{BOS, EOS};

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
async fn long_texts_are_refused_or_lose_one_side() {
    let mut server = Server::saying("x");
    // Texts that are tokenized as a whole, and in chunks.
    for count in [1500, 50_000] {
        let long = format!("{}{}", "a".repeat(count), "b".repeat(count));
        for truncate in [json!(false), Value::Null] {
            let reply = server.post(PATH, json!({"inputs": ["c", long], "truncate": truncate})).await;
            assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY, "{}", reply.body);
            assert_eq!(reply.json()["error_type"], "validation");
            assert!(reply.body.contains("the input at index 1: "), "{}", reply.body);
        }
        for (direction, letter) in [(json!("Right"), 'a'), (json!("Left"), 'b'), (Value::Null, 'a')] {
            let mut request = json!({"inputs": long, "truncate": true});
            if !direction.is_null() {
                request["truncation_direction"] = direction.clone();
            }
            assert_eq!(server.post(PATH, request).await.status, StatusCode::OK, "{direction}");
            let prompt = server.engine.requests.recv().await.unwrap().prompt;
            assert_eq!(prompt.len(), 1023, "{direction}");
            // The token in front of the text stays, since a vector may be its state.
            assert_eq!(prompt[0], BOS);
            assert!(prompt[1..].iter().all(|&id| id == letter as u32), "{direction}: {prompt:?}");
        }
    }
}

#[tokio::test]
async fn what_is_not_supported_is_refused_by_name() {
    let server = Server::saying("x");
    for (body, word) in [
        (json!({"inputs": []}), "`inputs`"),
        (json!({"inputs": "a", "prompt_name": "query"}), "no prompts"),
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

/// The first element of the test's vector is 3 times the length of the prompt.
#[tokio::test]
async fn texts_are_ordered_by_their_scores() {
    let mut server = Server::saying("x");
    let body = json!({"query": "a", "texts": ["b", "cde", "fg"], "raw_scores": true, "return_text": true});
    let ranks = server.post("/rerank", body).await.json();
    let rank = |index, text: &str, score| json!({"index": index, "text": text, "score": score});
    assert_eq!(ranks, json!([rank(1, "cde", 21.0), rank(2, "fg", 18.0), rank(0, "b", 15.0)]));
    let request = server.engine.requests.recv().await.unwrap();
    assert_eq!(request.prompt, [BOS, 97, EOS, 98, EOS]);
    assert_eq!((request.pooling, request.max_new_tokens), (Some(Pooling::Classes), 0));
    let ranks = server.post("/rerank", json!({"query": "a", "texts": ["b"]})).await.json();
    assert_eq!(ranks[0].as_object().unwrap().len(), 2);
    let score = ranks[0]["score"].as_f64().unwrap();
    assert!((1.0 - score - (-15f64).exp()).abs() < 1e-7, "{score}");
}

#[tokio::test]
async fn texts_that_are_too_long_lose_their_end_if_asked() {
    let mut server = Server::saying("x");
    let texts = json!(["b".repeat(3000)]);
    let reply = server.post("/rerank", json!({"query": "a", "texts": texts})).await;
    assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY, "{}", reply.body);
    let reply = server.post("/rerank", json!({"query": "a", "texts": texts, "truncate": true})).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    let prompt = server.engine.requests.recv().await.unwrap().prompt;
    assert_eq!((prompt.len(), prompt[1022]), (1023, EOS));
    assert_eq!(prompt[..4], [BOS, 97, EOS, 98]);
    let texts = json!(["c", "c".repeat(2000) + &"b".repeat(2000)]);
    let mut request = json!({"query": "a", "texts": texts, "truncate": true, "truncation_direction": "Left"});
    assert_eq!(server.post("/rerank", request.clone()).await.status, StatusCode::OK);
    server.engine.requests.recv().await.unwrap();
    let prompt = server.engine.requests.recv().await.unwrap().prompt;
    assert_eq!((prompt.len(), prompt[3], prompt[1022]), (1023, 98, EOS));
    request["truncate"] = json!(false);
    let reply = server.post("/rerank", request).await;
    assert!(reply.body.contains("the input at index 1: "), "{}", reply.body);
}

#[tokio::test]
async fn a_model_without_a_classifier_scores_nothing() {
    let server = Server::saying("x");
    let ready = Ready { classes: 0, ..Ready::clone(&server.engine.ready()) };
    server.engine.state.send_replace(EngineState::Ready(Arc::new(ready)));
    let reply = server.post("/rerank", json!({"query": "a", "texts": ["b"]})).await;
    assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(reply.body.contains("does not score texts"), "{}", reply.body);
    for body in [json!({"query": "a", "texts": []}), json!({"query": "", "texts": ["b"]})] {
        let reply = Server::saying("x").post("/rerank", body.clone()).await;
        assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY, "{body}: {}", reply.body);
    }
}

#[tokio::test]
async fn documents_are_ordered_for_clients_of_cohere_and_jina() {
    let server = Server::saying("x");
    let body = json!({"query": "a", "documents": ["b", {"text": "cde"}, "fg"], "top_n": 2});
    for path in ["/v1/rerank", "/v2/rerank"] {
        let reply = server.post(path, body.clone()).await.json();
        let places: Vec<_> = reply["results"].as_array().unwrap().iter().map(|r| &r["index"]).collect();
        assert_eq!(places, [1, 2], "{reply}");
        assert_eq!(reply["usage"], json!({"prompt_tokens": 18, "total_tokens": 18}));
        assert!(reply["results"][0]["relevance_score"].as_f64().unwrap() <= 1.0, "{reply}");
        assert_eq!(reply["results"][0].as_object().unwrap().len(), 2, "{reply}");
    }
    let body = json!({"query": "a", "documents": ["b"], "return_documents": true});
    let reply = server.post("/v1/rerank", body).await.json();
    assert_eq!(reply["results"][0]["document"], json!({"text": "b"}), "{reply}");
    for (field, value) in [
        ("documents", json!([])),
        ("documents", json!([{"title": "b"}])),
        ("documents", json!(["b".repeat(3000)])),
        ("top_n", json!(0)),
    ] {
        let mut body = json!({"query": "a", "documents": ["b"]});
        body[field] = value;
        let reply = server.post("/v1/rerank", body).await;
        assert!(reply.status.is_client_error(), "{field}: {} {}", reply.status, reply.body);
        assert!(reply.body.contains(field), "{field}: {}", reply.body);
    }
}
