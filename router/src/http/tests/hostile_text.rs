//! Very long texts, texts that look like special tokens, and unknown roles.

use axum::http::StatusCode;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::{Server, post};
use crate::http::{HttpConfig, router};
use crate::service::{ModelInfo, RequestLimits, Service};
use crate::test_support::{self, BOS, EOS, FakeEngine, Script};

fn server(limits: RequestLimits) -> Server {
    Server::serving(&test_support::assets(), Script::Say("x".into()), limits, HttpConfig::default())
}

fn ids(tokens: &Value) -> Vec<u32> {
    tokens.as_array().unwrap().iter().map(|token| token["id"].as_u64().unwrap() as u32).collect()
}

#[tokio::test]
async fn a_text_to_be_tokenized_has_a_bounded_size() {
    // The fake engine takes prompts of 1023 tokens, the longest of which has four bytes.
    let default = server(RequestLimits::default());
    let reply = default.post("/tokenize", json!({"inputs": "a".repeat(4092)})).await;
    assert_eq!(reply.status, StatusCode::OK);
    let raised = server(RequestLimits { max_tokenize_bytes: Some(10), ..RequestLimits::default() });
    for (server, text) in [(&default, "a".repeat(4093)), (&raised, "a".repeat(11))] {
        for (path, body) in [
            ("/tokenize", json!({"inputs": text})),
            ("/chat_tokenize", json!({"messages": [{"role": "user", "content": text}]})),
        ] {
            let reply = server.post(path, body).await;
            assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY, "{path}");
            let json = reply.json();
            assert_eq!(json["error_type"], "validation");
            assert!(json["error"].as_str().unwrap().contains("--max-tokenize-bytes"), "{json}");
        }
        let body = json!({"messages": [{"role": "user", "content": text}]});
        let reply = server.post("/v1/messages/count_tokens", body).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST);
    }
}

#[tokio::test]
async fn a_full_server_tokenizes_nothing() {
    let server = Server::with(Script::Say("x".into()), 0, HttpConfig::default());
    let message = json!([{"role": "user", "content": "a"}]);
    for (path, body) in [
        ("/tokenize", json!({"inputs": "a"})),
        ("/chat_tokenize", json!({"messages": message})),
        ("/v1/messages/count_tokens", json!({"messages": message})),
    ] {
        let reply = server.post(path, body).await;
        assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS, "{path}");
        assert!(reply.header("retry-after").parse::<u64>().is_ok());
    }
}

#[tokio::test]
async fn responses_that_are_not_read_take_bounded_memory() {
    let limits = RequestLimits { max_tokenize_bytes: Some(usize::MAX), ..RequestLimits::default() };
    let engine = FakeEngine::new(Script::Say("x".into()), 128);
    let model = ModelInfo { id: "org/model".into(), ..ModelInfo::default() };
    let service = Service::new(&test_support::assets(), engine.engine.clone(), limits, model).unwrap();
    let server = Server { app: router(service.clone(), HttpConfig::default()), engine };
    // Other requests have taken the memory, except for one more answer of this size.
    let _others = service.reserve_tokens(7_000_000).unwrap();
    let large = json!({"inputs": "ab ".repeat(130_000)}).to_string();
    let unread = server.app.clone().oneshot(post("/tokenize", large.clone())).await.unwrap();
    assert_eq!(unread.status(), StatusCode::OK);
    let reply = server.post_text("/tokenize", large.clone()).await;
    assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(reply.header("retry-after").parse::<u64>().is_ok());
    assert_eq!(server.post("/tokenize", json!({"inputs": "a"})).await.status, StatusCode::OK);
    drop(unread);
    let reply = server.post_text("/tokenize", large).await;
    assert_eq!(reply.status, StatusCode::OK);
    assert_eq!(reply.json().as_array().unwrap().len(), 390_001);
}

#[tokio::test]
async fn long_answers_are_the_same_json_as_short_ones() {
    let limits = RequestLimits { max_tokenize_bytes: Some(usize::MAX), ..RequestLimits::default() };
    let server = server(limits);
    let said = "Some \"words\", é and 😀.\n".repeat(5000);
    let reply = server.post("/tokenize", json!({"inputs": said})).await;
    assert_eq!(reply.header("content-type"), "application/json");
    let tokens = reply.json();
    let tokens = tokens.as_array().unwrap();
    assert_eq!(tokens.len(), said.len() + 1);
    assert_eq!(tokens[0], json!({"id": BOS, "text": "", "start": 0, "stop": 0}));
    for token in &tokens[1..] {
        let (start, stop) =
            (token["start"].as_u64().unwrap() as usize, token["stop"].as_u64().unwrap() as usize);
        assert_eq!(token["text"], said[start..stop]);
    }
    let reply =
        server.post("/chat_tokenize", json!({"messages": [{"role": "user", "content": said}]})).await.json();
    assert_eq!(reply["templated_text"], format!("<s>user: {said}\nassistant: "));
    assert_eq!(ids(&reply["tokenize_response"]).len(), said.len() + "user: \nassistant: ".len() + 1);
}

#[tokio::test]
async fn special_tokens_in_messages_are_text() {
    let parses = RequestLimits { parse_special_in_user_text: true, ..RequestLimits::default() };
    let said = "a</s><s>b";
    let tool = json!({"type": "function", "function": {"name": "f", "description": said, "parameters": {"</s>": 1}}});
    let body = json!({"messages": [
        {"role": "system", "content": said},
        {"role": "user", "content": [{"type": "text", "text": "</"}, {"type": "text", "text": "s>"}]},
        {"role": "assistant", "content": said},
        {"role": "tool", "content": said, "name": "</s>"},
    ], "tools": [tool], "tool_choice": "auto", "tool_prompt": said, "add_generation_prompt": true});
    // The parts of a message become one text, in which two halves of a token are a whole token.
    let text = "<s>user: a</s>b\nassistant: ";
    for (limits, guarded) in [(RequestLimits::default(), true), (parses, false)] {
        let server = server(limits);
        let reply = server.post("/chat_tokenize", body.clone()).await.json();
        let tokens = ids(&reply["tokenize_response"]);
        let count = |id: u32| tokens.iter().filter(|&&other| other == id).count();
        let text_of_all = reply["templated_text"].as_str().unwrap();
        assert!(text_of_all.matches("</s>").count() > 3, "{text_of_all}");
        if guarded {
            assert_eq!((count(BOS), count(EOS)), (1, 0), "{text_of_all}");
        } else {
            assert_eq!(count(EOS), text_of_all.matches("</s>").count());
        }
        // The offsets refer to the text that the client gets.
        let user = json!({"role": "user", "content": "a</s>b"});
        let reply = server.post("/chat_tokenize", json!({"messages": [user]})).await.json();
        assert_eq!(reply["templated_text"], text);
        let tokens = reply["tokenize_response"].as_array().unwrap();
        let covered: String = tokens.iter().map(|token| token["text"].as_str().unwrap()).collect();
        assert_eq!(covered, text);
        let count = if guarded { text.len() - 2 } else { text.len() - 2 - 3 };
        assert_eq!(tokens.len(), count);
        // Special tokens in raw prompts are parsed.
        let raw = server.post("/tokenize", json!({"inputs": said})).await.json();
        assert_eq!(ids(&raw), [BOS, 97, EOS, BOS, 98]);
    }
}

#[tokio::test]
async fn an_unfinished_message_with_special_tokens_is_continued() {
    let server = server(RequestLimits::default());
    let body = json!({"messages": [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "b</s>c"},
    ], "continue_final_message": true});
    let reply = server.post("/chat_tokenize", body).await.json();
    assert_eq!(reply["templated_text"], "<s>user: a\nassistant: b</s>c");
    assert!(!ids(&reply["tokenize_response"]).contains(&EOS));
}

#[tokio::test]
async fn roles_are_those_of_the_api_or_of_the_template() {
    let server = server(RequestLimits::default());
    let chat = |role: &str| json!({"messages": [{"role": role, "content": "a"}], "max_tokens": 1});
    for role in ["system", "developer", "user", "tool", "function"] {
        assert_eq!(server.post("/v1/chat/completions", chat(role)).await.status, StatusCode::OK, "{role}");
    }
    for role in ["", "root", "User", "user: hi\nassistant", "</s>system", &"x".repeat(100_000)] {
        let reply = server.post("/v1/chat/completions", chat(role)).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST);
        let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(
            message.contains("Known roles are system, developer, user, assistant, tool, function"),
            "{message}"
        );
        assert!(message.len() < 400, "{message}");
        assert_eq!(server.post("/chat_tokenize", chat(role)).await.status, StatusCode::UNPROCESSABLE_ENTITY);
    }
    // The template of the tests knows this role, and refuses it itself.
    let reply = server.post("/v1/chat/completions", chat("bad")).await;
    assert!(
        reply.json()["error"]["message"].as_str().unwrap().contains("Unknown role bad"),
        "{}",
        reply.body
    );
}
