//! The routes of text-embeddings-inference.

use std::sync::Arc;

use axum::http::StatusCode;
use millrace_proto::Ready;
use millrace_scheduler::Pooling;
use serde_json::{Value, json};

use super::{HttpConfig, Script, Server};
use crate::engine::EngineState;
use crate::service::RequestLimits;
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

/// Returns a server whose classifier has `classes` outputs with these names.
fn classifier(classes: u32, names: &[&str]) -> Server {
    let class_names = names.iter().map(|name| (*name).to_owned()).collect();
    let assets = crate::assets::Assets { class_names, ..crate::test_support::assets() };
    let limits = RequestLimits::default();
    let server = Server::serving(&assets, Script::Say("x".into()), limits, HttpConfig::default());
    let ready = Ready { classes, ..Ready::clone(&server.engine.ready()) };
    server.engine.state.send_replace(EngineState::Ready(Arc::new(ready)));
    server
}

/// The outputs of the test's classifier are 3n, 0, -4n and 0 for a prompt of n tokens.
#[tokio::test]
async fn texts_and_pairs_are_classified() {
    let mut server = classifier(3, &["good", "fair"]);
    let body = server.post("/predict", json!({"inputs": "a", "raw_scores": true})).await.json();
    let class = |label: &str, score: f64| json!({"score": score, "label": label});
    // A class without a name has the one of transformers.
    assert_eq!(body, json!([class("good", 6.0), class("fair", 0.0), class("LABEL_2", -8.0)]));
    let request = server.engine.requests.recv().await.unwrap();
    assert_eq!((request.prompt, request.pooling), (vec![BOS, 97], Some(Pooling::Classes)));

    let shares = server.post("/predict", json!({"inputs": "a"})).await.json();
    let scores: Vec<f64> = shares.as_array().unwrap().iter().map(|p| p["score"].as_f64().unwrap()).collect();
    let expected: Vec<f64> = [6f64, 0.0, -8.0].iter().map(|x| x.exp()).collect();
    let sum: f64 = expected.iter().sum();
    assert!(scores.iter().zip(&expected).all(|(a, b)| (a - b / sum).abs() < 1e-6), "{shares}");
    server.engine.requests.recv().await.unwrap();

    let pair = server.post("/predict", json!({"inputs": ["a", "b"], "raw_scores": true})).await.json();
    assert_eq!(pair[0], class("good", 15.0));
    assert_eq!(server.engine.requests.recv().await.unwrap().prompt, [BOS, 97, EOS, 98, EOS]);

    let many = json!({"inputs": [["a"], ["a", "bc"]], "raw_scores": true});
    let many = server.post("/predict", many).await.json();
    assert_eq!((&many[0][0], &many[1][0]), (&class("good", 6.0), &class("good", 18.0)));
    let one = server.post("/predict", json!({"inputs": [["a"]]})).await.json();
    assert!(one[0].is_array(), "{one}");
}

#[tokio::test]
async fn a_classifier_with_one_output_returns_its_sigmoid() {
    let server = classifier(1, &["score"]);
    let body = server.post("/predict", json!({"inputs": "a"})).await.json();
    assert_eq!(body[0]["label"], "score");
    let score = body[0]["score"].as_f64().unwrap();
    assert!((score - 1.0 / (1.0 + (-6f64).exp())).abs() < 1e-6, "{score}");
}

/// The second text of the test's tokenizer has another type, which the request has only if the
/// model has that type, too.
#[tokio::test]
async fn the_second_text_of_a_pair_has_the_second_token_type() {
    for (omits_token_types, second_token_type, start) in
        [(false, true, Some(3)), (false, false, None), (true, true, None)]
    {
        let assets = crate::assets::Assets { omits_token_types, ..crate::test_support::assets() };
        let limits = RequestLimits::default();
        let mut server = Server::serving(&assets, Script::Say("x".into()), limits, HttpConfig::default());
        let ready = Ready { second_token_type, ..Ready::clone(&server.engine.ready()) };
        server.engine.state.send_replace(EngineState::Ready(Arc::new(ready)));
        let documents = json!({"query": "a", "documents": ["b"]});
        for (path, body) in [
            ("/predict", json!({"inputs": ["a", "b"]})),
            ("/rerank", json!({"query": "a", "texts": ["b"]})),
            ("/v1/rerank", documents),
        ] {
            assert_eq!(server.post(path, body).await.status, StatusCode::OK, "{path}");
            let request = server.engine.requests.recv().await.unwrap();
            assert_eq!(request.prompt, [BOS, 97, EOS, 98, EOS]);
            assert_eq!(request.second_type_start, start, "{path}");
        }
        assert_eq!(server.post("/predict", json!({"inputs": "a"})).await.status, StatusCode::OK);
        assert_eq!(server.engine.requests.recv().await.unwrap().second_type_start, None);
    }
}

/// Both texts of a pair lose tokens, and the type begins where the second one does after that.
#[tokio::test]
async fn both_texts_of_a_long_pair_are_cut() {
    let mut server = classifier(2, &[]);
    let ready = Ready { second_token_type: true, ..Ready::clone(&server.engine.ready()) };
    server.engine.state.send_replace(EngineState::Ready(Arc::new(ready)));
    for (first, second, start) in
        [(2000, 3000, 512), (2000, 10, 1012), (10, 3000, 12), (600, 600, 512), (9000, 9000, 512)]
    {
        let inputs = ["a".repeat(first), "b".repeat(second)];
        let request = json!({"inputs": inputs, "truncate": true});
        assert_eq!(server.post("/predict", request).await.status, StatusCode::OK);
        let request = server.engine.requests.recv().await.unwrap();
        let found = (request.prompt.len(), request.second_type_start, request.prompt[start - 1]);
        assert_eq!(found, (1023, Some(start as u32), EOS), "{first} and {second}");
    }
}

/// A response has a bounded number of classes, whatever the model has.
#[tokio::test]
async fn a_model_with_many_classes_takes_fewer_texts_at_once() {
    let server = classifier(1000, &[]);
    let inputs = |count: usize| json!({"inputs": vec![["a"]; count]});
    let refused = server.post("/predict", inputs(66)).await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{}", refused.body);
    assert!(refused.body.contains("1 to 65 texts. Given: 66"), "{}", refused.body);
    // The test's shard answers with fewer numbers, which is no answer of such a model.
    let failed = server.post("/predict", inputs(65)).await;
    assert!(failed.body.contains("not finite"), "{}", failed.body);
}

#[tokio::test]
async fn texts_to_classify_are_checked() {
    let mut server = classifier(2, &[]);
    let long = "b".repeat(3000);
    for (body, word) in [
        (json!({"inputs": []}), "1 to 2048"),
        (json!({"inputs": ""}), "empty"),
        (json!({"inputs": ["a", "b", "c"]}), "list"),
        (json!({"inputs": [["a", "b", "c"]]}), "one or two"),
        (json!({"inputs": long}), "tokens"),
        (json!({"inputs": [["a"], ["a", long]]}), "the input at index 1: "),
    ] {
        let reply = server.post("/predict", body.clone()).await;
        assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY, "{}", reply.body);
        assert!(reply.body.contains(word), "{word}: {}", reply.body);
    }
    for inputs in [json!(long), json!(["a", long])] {
        let request = json!({"inputs": inputs, "truncate": true});
        assert_eq!(server.post("/predict", request).await.status, StatusCode::OK);
        assert_eq!(server.engine.requests.recv().await.unwrap().prompt.len(), 1023);
    }
    let reply = classifier(0, &[]).post("/predict", json!({"inputs": "a"})).await;
    assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(reply.body.contains("has no classifier"), "{}", reply.body);
}

#[tokio::test]
async fn sentences_are_compared_with_a_source() {
    let mut server = Server::saying("x");
    let inputs = json!({"source_sentence": "a", "sentences": ["b", "cd"]});
    let body = server.post("/similarity", json!({"inputs": inputs, "parameters": {"truncate": true}})).await;
    // The vectors of the test differ only in their length.
    let scores = floats(&body.json());
    assert!(scores.len() == 2 && scores.iter().all(|score| (score - 1.0).abs() < 1e-6), "{scores:?}");
    for prompt in [vec![BOS, 97], vec![BOS, 98], vec![BOS, 99, 100]] {
        assert_eq!(server.engine.requests.recv().await.unwrap().prompt, prompt);
    }
    for (inputs, parameters, word) in [
        (json!({"source_sentence": "a", "sentences": []}), Value::Null, "`sentences`"),
        (json!({"source_sentence": "", "sentences": ["a"]}), Value::Null, "the input at index 0: "),
        (inputs, json!({"prompt_name": "query"}), "no prompts"),
    ] {
        let reply = server.post("/similarity", json!({"inputs": inputs, "parameters": parameters})).await;
        assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY, "{}", reply.body);
        assert!(reply.body.contains(word), "{word}: {}", reply.body);
    }
}

#[tokio::test]
async fn the_kind_of_the_model_is_that_of_text_embeddings_inference() {
    let kind = |server: Server| async move { server.get("/info").await.json()["model_type"].clone() };
    let names = json!({"id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0, "yes": 1}});
    assert_eq!(kind(classifier(2, &["no", "yes"])).await, json!({"classifier": names}));
    let name = json!({"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}});
    assert_eq!(kind(classifier(1, &[])).await, json!({"reranker": name}));
    assert_eq!(kind(classifier(0, &[])).await, Value::Null);
    let server = classifier(0, &[]);
    let headless = Ready { headless: true, ..Ready::clone(&server.engine.ready()) };
    server.engine.state.send_replace(EngineState::Ready(Arc::new(headless)));
    let info = server.get("/info").await.json();
    assert_eq!(info["model_type"], json!({"embedding": {"pooling": "last_token"}}));
    let limits = ["max_input_length", "max_batch_tokens", "max_batch_requests"].map(|key| info[key].clone());
    assert_eq!(limits, [json!(1024), json!(64), json!(8)]);
    assert_eq!((&info["auto_truncate"], info["tokenization_workers"].is_u64()), (&json!(false), true));
}
