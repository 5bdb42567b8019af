//! Details that TGI's users rely on: the order of checks, defaults, and fields that are left out.

use axum::body::Body;
use axum::http::{HeaderValue, Request, StatusCode};
use serde_json::{Value, json};

use super::{HttpConfig, RequestLimits, Script, Server};
use crate::service::{ModelInfo, PayloadLimit, Service};
use crate::test_support::{self, FakeEngine};

#[tokio::test]
async fn the_first_of_several_mistakes_is_reported() {
    // The order is TGI's. Each mistake is corrected before the next check.
    let mistakes = [
        ("best_of", json!(3), json!(1), "`best_of` must be"),
        ("temperature", json!(0), json!(1), "`temperature` must be"),
        ("repetition_penalty", json!(0), json!(1), "`repetition_penalty` must be"),
        ("frequency_penalty", json!(3), json!(1), "`frequency_penalty` must be"),
        ("top_p", json!(2), json!(0.5), "`top_p` must be > 0.0 and < 1.0"),
        ("typical_p", json!(2), json!(0.5), "`typical_p` must be"),
        ("top_k", json!(0), json!(1), "`top_k` must be"),
        ("max_new_tokens", json!(0), json!(2000), "`max_new_tokens` must be strictly"),
        ("stop", json!(["a", "b", "c", "d", "e"]), json!([]), "`stop` supports up to 4"),
        ("top_n_tokens", json!(9), json!(1), "`top_n_tokens` must be"),
        ("truncate", json!(0), json!(9), "`truncate` must be"),
        ("max_new_tokens", json!(2000), json!(2), "`inputs` tokens + `max_new_tokens`"),
        ("grammar", json!({"type": "regex", "value": "("}), json!(null), "grammar is not valid"),
    ];
    let server = Server::saying("x");
    let mut parameters = json!({"do_sample": true});
    for (field, wrong, _, _) in mistakes.iter().rev() {
        parameters[*field] = wrong.clone();
    }
    for (field, _, right, text) in mistakes {
        let reply = server.post("/generate", json!({"inputs": "a", "parameters": parameters})).await;
        let error = reply.json()["error"].as_str().unwrap().to_owned();
        assert!(error.starts_with(&format!("Input validation error: {text}")), "{field}: {error}");
        parameters[field] = right;
    }
    let reply = server.post("/generate", json!({"inputs": "a", "parameters": parameters})).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
}

#[tokio::test]
async fn the_operator_may_allow_only_one_answer() {
    let limits = RequestLimits { max_best_of: Some(1), ..RequestLimits::default() };
    let assets = test_support::assets();
    let server = Server::serving(&assets, Script::Say("x".into()), limits, HttpConfig::default());
    let body = json!({"inputs": "a", "parameters": {"best_of": 2, "do_sample": true}});
    let reply = server.post("/generate", body).await.json();
    assert_eq!(reply["error"], "Input validation error: `best_of` != 1 is not allowed for this endpoint");
}

#[tokio::test]
async fn a_prompt_may_be_too_long_without_an_answer() {
    let limits = RequestLimits { max_input_tokens: Some(4), ..RequestLimits::default() };
    let assets = test_support::assets();
    let server = Server::serving(&assets, Script::Say("x".into()), limits, HttpConfig::default());
    let body = json!({"inputs": "abcd", "parameters": {"max_new_tokens": 1}});
    let reply = server.post("/generate", body).await.json();
    assert_eq!(reply["error"], "Input validation error: `inputs` must have less than 4 tokens. Given: 5");
}

#[tokio::test]
async fn a_model_without_a_template_refuses_chats() {
    let mut assets = test_support::assets();
    assets.text.chat_template = None;
    let server =
        Server::serving(&assets, Script::Say("x".into()), RequestLimits::default(), HttpConfig::default());
    let chat = json!({"messages": [{"role": "user", "content": "a"}]});
    let reply = server.post("/chat_tokenize", chat.clone()).await;
    assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY);
    let expected = json!({"error": "Template error: template not found", "error_type": "template_error"});
    assert_eq!(reply.json(), expected);
    let reply = server.post("/v1/chat/completions", chat).await;
    assert_eq!(
        (reply.status, &reply.json()["error"]["code"]),
        (StatusCode::BAD_REQUEST, &json!("template_error"))
    );
}

#[tokio::test]
async fn the_compat_route_repeats_the_prompt_unless_the_model_has_another_task() {
    for (tag, text) in [(None, "abx"), (Some("text-generation"), "abx"), (Some("text2text-generation"), "x")]
    {
        let engine = FakeEngine::new(Script::Say("x".into()), 8);
        let model =
            ModelInfo { id: "m".into(), pipeline_tag: tag.map(str::to_owned), ..ModelInfo::default() };
        let assets = test_support::assets();
        let service = Service::new(&assets, engine.engine.clone(), RequestLimits::default(), model).unwrap();
        let server = Server { app: super::router(service, HttpConfig::default()), engine };
        let reply = server.post("/", json!({"inputs": "ab"})).await.json();
        assert_eq!(reply, json!([{"generated_text": text}]), "{tag:?}");
    }
}

#[tokio::test]
async fn parts_that_were_not_requested_are_left_out() {
    let server = Server::saying("ok");
    let events =
        server.post("/generate_stream", json!({"inputs": "a", "parameters": {}})).await.json_events();
    assert!(events.iter().all(|event| event["details"].is_null() && event.get("top_tokens").is_none()));
    // A random seed is reported, so that the answer can be reproduced.
    let body = json!({"inputs": "a", "parameters": {"do_sample": true, "details": true}});
    assert!(server.post("/generate", body).await.json()["details"]["seed"].is_u64());
    // Unknown fields are ignored, and so are parameters that `/tokenize` does not use.
    let body = json!({"inputs": "abc", "parameters": {"nobody": [1], "truncate": 1}, "knows": {}});
    assert_eq!(server.post("/generate", body.clone()).await.status, StatusCode::OK);
    assert_eq!(server.post("/tokenize", body).await.json().as_array().map(Vec::len), Some(4));
}

#[tokio::test]
async fn only_configured_origins_are_allowed() {
    let allowed_origins = vec![HeaderValue::from_static("https://a.example")];
    let config = HttpConfig { allowed_origins, ..HttpConfig::default() };
    let server = Server::with(Script::Say("x".into()), 8, config);
    for (origin, allowed) in [("https://a.example", true), ("https://b.example", false)] {
        let request = Request::get("/info").header("origin", origin).body(Body::empty()).unwrap();
        let reply = server.send(request).await;
        let told = reply.headers.get("access-control-allow-origin").is_some_and(|told| told == origin);
        assert_eq!((reply.status, told), (StatusCode::OK, allowed), "{origin}");
    }
}

#[tokio::test]
async fn logprobs_are_lists_of_the_same_length() {
    let server = Server::saying("aé");
    let body = json!({"prompt": "a", "logprobs": 2});
    let logprobs: Value = server.post("/v1/completions", body).await.json()["choices"][0]["logprobs"].clone();
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(logprobs[list].as_array().map(Vec::len), Some(4), "{list}: {logprobs}");
    }
}

#[tokio::test]
async fn neutral_values_are_accepted_by_every_api() {
    let mut server = Server::saying("x");
    for (path, mut body) in super::rows::posts() {
        let plain = ["/generate", "/generate_stream", "/", "/invocations"].contains(&path);
        if !plain
            && !["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"].contains(&path)
        {
            continue;
        }
        let fields = if plain { &mut body["parameters"] } else { &mut body };
        fields["top_p"] = json!(1.0);
        let reply = server.post(path, body).await;
        assert_eq!(reply.status, StatusCode::OK, "{path}: {}", reply.body);
        assert_eq!(server.engine.requests.recv().await.unwrap().sampling.top_p, 1.0, "{path}");
    }
}

#[tokio::test]
async fn every_answer_has_its_own_id() {
    let server = Server::saying("x");
    for (path, body) in super::rows::posts() {
        let id = async || server.post(path, body.clone()).await.json()["id"].clone();
        match path {
            "/v1/completions" | "/v1/chat/completions" | "/v1/responses" | "/v1/messages" => {
                let (first, second) = (id().await, id().await);
                assert!(first.is_string() && first != second, "{path}: {first}");
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_conversation_has_messages() {
    let server = Server::saying("x");
    for (path, more, status) in [
        ("/v1/chat/completions", json!({"messages": []}), 400),
        ("/v1/responses", json!({"input": []}), 400),
        ("/v1/messages", json!({"messages": [], "max_tokens": 9}), 400),
        ("/tokenize", json!({"messages": []}), 422),
        ("/chat_tokenize", json!({"messages": []}), 422),
    ] {
        let reply = server.post(path, more).await;
        assert_eq!(reply.status.as_u16(), status, "{path}: {}", reply.body);
        assert!(reply.body.contains("cannot be empty"), "{path}: {}", reply.body);
    }
}

#[tokio::test]
async fn the_operator_sets_the_longest_body() {
    let limits = RequestLimits { payload_limit: PayloadLimit::Fixed(100), ..RequestLimits::default() };
    let assets = test_support::assets();
    let server = Server::serving(&assets, Script::Say("x".into()), limits, HttpConfig::default());
    for (length, status) in [(100, 200), (101, 413)] {
        let body = format!("{{\"inputs\":\"{}\"}}", "a".repeat(length - 13));
        assert_eq!(body.len(), length);
        assert_eq!(server.post_text("/generate", body).await.status.as_u16(), status, "{length}");
    }
}
