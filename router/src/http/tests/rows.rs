//! Routes, statuses and headers, checked in tables. The texts of validation errors are in `tgi`.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use futures::StreamExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::{HttpConfig, Script, Server, post};
use crate::http::ApiKeys;

/// A request for each POST route that is answered with 200.
pub(super) fn posts() -> Vec<(&'static str, Value)> {
    let chat = json!({"messages": [{"role": "user", "content": "a"}]});
    let mut message = chat.clone();
    message["max_tokens"] = json!(9);
    let tensor = json!({"name": "input", "datatype": "BYTES", "data": ["a"]});
    vec![
        ("/", json!({"inputs": "a"})),
        ("/generate", json!({"inputs": "a"})),
        ("/generate_stream", json!({"inputs": "a"})),
        ("/tokenize", json!({"inputs": "a"})),
        ("/detokenize", json!({"tokens": [97]})),
        ("/chat_tokenize", chat.clone()),
        ("/invocations", json!({"inputs": "a"})),
        ("/vertex", json!({"instances": [{"inputs": "a"}]})),
        ("/v1/completions", json!({"prompt": "a"})),
        ("/v1/chat/completions", chat.clone()),
        ("/embed", json!({"inputs": "a"})),
        ("/predict", json!({"inputs": "a"})),
        ("/rerank", json!({"query": "a", "texts": ["b"]})),
        ("/similarity", json!({"inputs": {"source_sentence": "a", "sentences": ["b"]}})),
        ("/v1/rerank", json!({"query": "a", "documents": ["b"]})),
        ("/v2/rerank", json!({"query": "a", "documents": ["b"]})),
        ("/v1/embeddings", json!({"input": "a"})),
        ("/v1/responses", json!({"input": "a"})),
        ("/v1/messages", message),
        ("/v1/messages/count_tokens", chat),
        ("/v2/models/tgi/infer", json!({"inputs": [tensor]})),
    ]
}

/// The paths at which a GET is answered with 200.
pub(super) const GETS: &[&str] = &[
    "/",
    "/health",
    "/ping",
    "/ready",
    "/info",
    "/tokenizer_info",
    "/version",
    "/metrics",
    "/v1/models",
    "/v1/models/org/model",
    "/v2",
    "/v2/health/live",
    "/v2/health/ready",
    "/v2/models/tgi",
    "/v2/models/tgi/ready",
    "/v2/models/tgi/versions/1",
];

/// Returns whether a route below `/v1/` generates text.
fn generates(path: &str) -> bool {
    !path.ends_with("tokens") && path != "/v1/embeddings" && !path.ends_with("/rerank")
}

#[tokio::test]
async fn every_post_needs_the_key_and_no_get_does() {
    let config =
        HttpConfig { api_keys: ApiKeys::new(&["key".parse().unwrap()], None), ..HttpConfig::default() };
    let server = Server::with(Script::Say("x".into()), 8, config);
    for (path, body) in posts() {
        let reply = server.post(path, body.clone()).await;
        assert_eq!(reply.status, StatusCode::UNAUTHORIZED, "{path}");
        let error = match path {
            "/v1/messages" | "/v1/messages/count_tokens" => reply.json()["error"]["type"].clone(),
            path if path.starts_with("/v1/") || path == "/v2/rerank" => reply.json()["error"]["code"].clone(),
            _ => json!(reply.body),
        };
        assert!(
            ["", "invalid_api_key", "authentication_error"].contains(&error.as_str().unwrap()),
            "{error}"
        );
        let mut request = post(path, body.to_string());
        request.headers_mut().insert("authorization", "Bearer key".parse().unwrap());
        assert_eq!(server.send(request).await.status, StatusCode::OK, "{path}");
    }
    for path in GETS {
        assert_eq!(server.get(path).await.status, StatusCode::OK, "{path}");
    }
}

#[tokio::test]
async fn wrong_methods_and_bodies_have_their_statuses() {
    let server = Server::saying("x");
    for (path, body) in posts() {
        assert_eq!(server.post(path, body).await.status, StatusCode::OK, "{path}");
        if path != "/" {
            let reply = server.get(path).await;
            assert_eq!(
                (reply.status, reply.header("allow")),
                (StatusCode::METHOD_NOT_ALLOWED, "POST"),
                "{path}"
            );
        }
        let without_type = Request::post(path).body(Body::from("{}")).unwrap();
        assert_eq!(server.send(without_type).await.status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{path}");
        let other_type = Request::post(path).header("content-type", "text/plain").body(Body::from("{}"));
        let reply = server.send(other_type.unwrap()).await;
        assert_eq!(reply.status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{path}");
        assert_eq!(server.post_text(path, "{").await.status, StatusCode::BAD_REQUEST, "{path}");
        let reply = server.post_text(path, "[7]").await;
        let wrong = if path.starts_with("/v1") || path == "/v2/rerank" { 400 } else { 422 };
        assert_eq!(reply.status.as_u16(), wrong, "{path}: {}", reply.body);
        let reply = server.post_text(path, format!("\"{}\"", "a".repeat(2_000_000))).await;
        assert_eq!(reply.status, StatusCode::PAYLOAD_TOO_LARGE, "{path}");
        if path.starts_with("/v1/") {
            assert!(!reply.json()["error"]["message"].as_str().unwrap().is_empty(), "{path}");
        }
    }
    for path in GETS {
        let request = Request::builder().method(Method::DELETE).uri(*path).body(Body::empty()).unwrap();
        let reply = server.send(request).await;
        assert_eq!(reply.status, StatusCode::METHOD_NOT_ALLOWED, "{path}");
    }
}

#[tokio::test]
async fn complete_answers_have_headers_with_their_costs() {
    let server = Server::saying("abc");
    for (path, body) in posts() {
        let reply = server.post(path, body).await;
        match path {
            "/"
            | "/generate"
            | "/invocations"
            | "/v1/completions"
            | "/v1/chat/completions"
            | "/v1/responses"
            | "/v1/messages" => {
                assert_eq!(reply.header("x-compute-type"), "cpu", "{path}");
                assert_eq!(reply.header("x-generated-tokens"), "4", "{path}");
                assert_eq!(reply.header("x-cached-tokens"), "3", "{path}");
                assert_eq!(reply.header("x-queue-time"), "2", "{path}");
                for name in ["x-compute-characters", "x-prompt-tokens"] {
                    assert!(reply.header(name).parse::<u64>().unwrap() > 0, "{path} {name}");
                }
                for name in ["x-total-time", "x-validation-time", "x-inference-time", "x-time-per-token"] {
                    reply.header(name).parse::<u64>().unwrap();
                }
                reply.header("x-compute-time").parse::<f64>().unwrap();
            }
            "/generate_stream" => {
                assert_eq!(
                    (reply.header("x-compute-type"), reply.header("x-compute-characters")),
                    ("cpu", "1")
                );
                assert!(!reply.headers.contains_key("x-generated-tokens"));
            }
            _ => assert!(!reply.headers.contains_key("x-compute-type"), "{path}"),
        }
    }
    let several = server.post("/v1/completions", json!({"prompt": ["ab", "cde"]})).await;
    assert_eq!((several.header("x-compute-characters"), several.header("x-prompt-tokens")), ("5", "7"));
    assert_eq!(several.header("x-generated-tokens"), "8");
    for (path, mut body) in
        posts().into_iter().filter(|(path, _)| path.starts_with("/v1/") && generates(path))
    {
        body["stream"] = json!(true);
        let reply = server.post(path, body).await;
        assert_eq!(
            (reply.header("x-compute-type"), reply.header("x-accel-buffering")),
            ("cpu", "no"),
            "{path}"
        );
        assert!(reply.header("x-compute-characters").parse::<u64>().unwrap() > 0, "{path}");
    }
    let refused = server.post("/generate", json!({"inputs": ""})).await;
    assert!(!refused.headers.contains_key("x-compute-type"));
}

#[tokio::test(start_paused = true)]
async fn a_silent_stream_sends_a_keep_alive_every_15_seconds() {
    for (path, mut body) in posts() {
        if !path.starts_with("/v1/") && path != "/generate_stream" || !generates(path) {
            continue;
        }
        // Anthropic's API has an event for this. Claude Code closes a stream without events after
        // some minutes.
        let ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n";
        let expected = if path == "/v1/messages" { ping } else { ":\n\n" };
        let server = Server::new(Script::Silence("a".into()));
        body["stream"] = json!(true);
        let response = server.app.clone().oneshot(post(path, body.to_string())).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let mut pieces = response.into_body().into_data_stream();
        let mut since: Option<tokio::time::Instant> = None;
        for _ in 0..4 {
            let piece = tokio::time::timeout(Duration::from_secs(20), pieces.next()).await.unwrap();
            let now = tokio::time::Instant::now();
            let piece = String::from_utf8(piece.unwrap().unwrap().to_vec()).unwrap();
            if let Some(since) = since {
                assert_eq!(piece, expected, "{path}");
                assert_eq!((now - since).as_millis() / 100, 150, "{path}");
            } else {
                assert!(piece.contains("data: {"), "{path}: {piece}");
            }
            since = Some(now);
        }
    }
}
