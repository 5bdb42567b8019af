//! `/v1/messages`.

use axum::http::StatusCode;
use serde_json::json;

use super::{HttpConfig, Script, Server};

#[tokio::test]
async fn a_message_is_answered() {
    let mut server = Server::saying("Hi!");
    let body = json!({
        "model": "org/model", "max_tokens": 20, "temperature": 0,
        "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        "metadata": {"user_id": "me"}, "tools": [], "thinking": {"type": "disabled"},
    });
    let reply = server.post("/v1/messages", body).await.json();
    let asked = server.engine.requests.recv().await.unwrap();
    let text: String = asked.prompt[1..].iter().map(|&id| char::from(id as u8)).collect();
    assert_eq!(text, "system: be brief\nuser: ab\nassistant: ");
    assert_eq!((asked.max_new_tokens, asked.sampling.do_sample), (20, false));
    assert!(reply["id"].as_str().unwrap().starts_with("msg_"));
    let expected = json!({
        "id": reply["id"], "type": "message", "role": "assistant", "model": "org/model",
        "content": [{"type": "text", "text": "Hi!"}], "stop_reason": "end_turn", "stop_sequence": null,
        "usage": {"input_tokens": asked.prompt.len() - 3, "cache_creation_input_tokens": 0,
                  "cache_read_input_tokens": 3, "output_tokens": 4},
    });
    assert_eq!(reply, expected);

    let body = json!({"max_tokens": 2, "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "We"}]});
    let reply = server.post("/v1/messages", body).await.json();
    assert_eq!(reply["stop_reason"], "max_tokens");
    let asked = server.engine.requests.recv().await.unwrap();
    let text: String = asked.prompt[1..].iter().map(|&id| char::from(id as u8)).collect();
    assert_eq!(text, "user: a\nassistant: We", "the assistant's message is continued");

    let body = json!({"max_tokens": 2, "top_k": 0, "stop_sequences": [], "messages": [{"role": "user", "content": "a"}]});
    let reply = server.post("/v1/messages", body).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    assert_eq!(server.engine.requests.recv().await.unwrap().sampling.top_k, 0, "all tokens are kept");
}

#[tokio::test]
async fn the_stop_sequence_is_reported_and_removed_from_the_text() {
    let server = Server::saying("one END two");
    for stream in [false, true] {
        let body = json!({"max_tokens": 50, "stream": stream, "stop_sequences": ["never", "END"],
                          "messages": [{"role": "user", "content": "a"}]});
        let reply = server.post("/v1/messages", body).await;
        if !stream {
            let message = reply.json();
            assert_eq!(message["content"][0]["text"], "one ");
            assert_eq!(
                (&message["stop_reason"], &message["stop_sequence"]),
                (&json!("stop_sequence"), &json!("END"))
            );
            continue;
        }
        let events = reply.named_events();
        let text: String = events.iter().filter_map(|(_, event)| event["delta"]["text"].as_str()).collect();
        assert_eq!(text, "one ");
        let delta = &events[events.len() - 2].1;
        assert_eq!(delta["delta"], json!({"stop_reason": "stop_sequence", "stop_sequence": "END"}));
    }
}

#[tokio::test]
async fn events_have_the_order_of_anthropics_api() {
    let server = Server::saying("Hi ü!");
    let body = json!({"max_tokens": 50, "stream": true, "messages": [{"role": "user", "content": "a"}]});
    let events = server.post("/v1/messages", body.clone()).await.named_events();
    let names: Vec<_> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[..2], ["message_start", "content_block_start"]);
    let (deltas, end) = names[2..].split_at(names.len() - 5);
    assert!(deltas.iter().all(|name| *name == "content_block_delta"), "{names:?}");
    assert_eq!(end, ["content_block_stop", "message_delta", "message_stop"]);
    let message = &events[0].1["message"];
    assert_eq!((&message["content"], &message["stop_reason"]), (&json!([]), &json!(null)));
    assert_eq!(message["usage"]["cache_read_input_tokens"], 3);
    let text: String = events.iter().filter_map(|(_, event)| event["delta"]["text"].as_str()).collect();
    assert_eq!(text, "Hi ü!");
    assert_eq!(events[events.len() - 2].1["usage"]["output_tokens"], 7);

    let server = Server::new(Script::Fail("ab".into()));
    let events = server.post("/v1/messages", body).await.named_events();
    let (name, error) = events.last().unwrap();
    assert_eq!((name.as_str(), &error["error"]["type"]), ("error", &json!("api_error")));
}

#[tokio::test]
async fn errors_have_the_form_of_anthropics_api() {
    let server = Server::saying("x");
    let good = json!({"max_tokens": 9, "messages": [{"role": "user", "content": "a"}]});
    for (field, value, status, kind, text) in [
        (
            "thinking",
            json!({"type": "sometimes"}),
            400,
            "invalid_request_error",
            "`thinking.type` must be one of",
        ),
        ("container", json!("c"), 400, "invalid_request_error", "`container` is not supported"),
        (
            "output_config",
            json!({"effort": 3}),
            400,
            "invalid_request_error",
            "`output_config.effort` must be a string, not a number",
        ),
        (
            "output_format",
            json!({"type": "text"}),
            400,
            "invalid_request_error",
            "`output_format` must have the type json_schema",
        ),
        ("mcp_servers", json!([1]), 400, "invalid_request_error", "`mcp_servers` is not supported"),
        ("messages", json!([]), 400, "invalid_request_error", "`messages` cannot be empty"),
        (
            "messages",
            json!([{"role": "tool", "content": "a"}]),
            400,
            "invalid_request_error",
            "roles user, assistant and system",
        ),
        (
            "messages",
            json!([{"role": "user", "content": [{"type": "image"}]}]),
            400,
            "invalid_request_error",
            "`messages[0]` has an image (content of type `image`), but the model reads text only",
        ),
        ("messages", json!([{"role": "user"}]), 400, "invalid_request_error", "must be a text"),
        ("system", json!(7), 400, "invalid_request_error", "`system` must be a text"),
        ("max_tokens", json!(null), 400, "invalid_request_error", "max_tokens"),
        ("max_tokens", json!(0), 400, "invalid_request_error", "`max_tokens` must be strictly positive"),
        ("top_k", json!(-3), 400, "invalid_request_error", "`top_k` must be strictly positive"),
        (
            "stop_sequences",
            json!(["a", "b", "c", "d", "e"]),
            400,
            "invalid_request_error",
            "`stop_sequences` supports up to 4",
        ),
    ] {
        let mut body = good.clone();
        body[field] = value;
        let reply = server.post("/v1/messages", body.clone()).await;
        let error = reply.json();
        assert_eq!((reply.status.as_u16(), &error["type"]), (status, &json!("error")), "{body}: {error}");
        assert_eq!(error["error"]["type"], kind, "{body}");
        assert!(error["error"]["message"].as_str().unwrap().contains(text), "{body}: {error}");
    }
    let full = Server::with(Script::Say("x".into()), 0, HttpConfig::default());
    let reply = full.post("/v1/messages", good.clone()).await;
    assert_eq!((reply.status, reply.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, "1"));
    assert_eq!(reply.json()["error"]["type"], "rate_limit_error");
}

#[tokio::test]
async fn tokens_are_counted_in_the_rendered_prompt() {
    let mut server = Server::saying("x");
    let mut body = json!({"system": "s", "messages": [{"role": "user", "content": "a"}]});
    let counted = server.post("/v1/messages/count_tokens", body.clone()).await.json();
    body["max_tokens"] = json!(2);
    server.post("/v1/messages", body).await;
    let asked = server.engine.requests.recv().await.unwrap();
    assert_eq!(counted, json!({"input_tokens": asked.prompt.len()}));
}
