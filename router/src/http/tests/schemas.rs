//! Schemas in requests, and the report of keywords that do not constrain the answer.

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::Server;

fn list() -> Value {
    json!({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true, "items": {"type": "integer"}}}})
}

fn tools(schema: &Value) -> Value {
    json!([{"type": "function", "function": {"name": "f", "parameters": schema}}])
}

#[tokio::test]
async fn keywords_that_are_not_enforced_are_reported_in_a_header() {
    let server = Server::saying("{}");
    let messages = json!([{"role": "user", "content": "a"}]);
    let text = json!({"type": "object", "properties": {"a": {"type": "string", "format": "color"}}});
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": list()}});
    let flat = json!({"type": "json_schema", "name": "n", "schema": list()});
    let grammar = json!({"grammar": {"type": "json", "value": list()}});
    for (path, body, expected) in [
        (
            "/v1/chat/completions",
            json!({"messages": messages, "response_format": format}),
            "response_format.uniqueItems",
        ),
        (
            "/v1/chat/completions",
            json!({"messages": messages, "tools": tools(&text), "tool_choice": "required", "verbosity": "low"}),
            "tools.format, verbosity",
        ),
        ("/v1/completions", json!({"prompt": "a", "response_format": format}), "response_format.uniqueItems"),
        ("/v1/responses", json!({"input": "a", "text": {"format": flat}}), "text.format.uniqueItems"),
        (
            "/v1/messages",
            json!({"messages": messages, "max_tokens": 9, "output_config": {"format": {"type": "json_schema", "schema": list()}}}),
            "output_config.format.uniqueItems",
        ),
        ("/generate", json!({"inputs": "a", "parameters": grammar}), "grammar.uniqueItems"),
        ("/generate_stream", json!({"inputs": "a", "parameters": grammar}), "grammar.uniqueItems"),
    ] {
        let reply = server.post(path, body.clone()).await;
        assert_eq!(reply.status, StatusCode::OK, "{path} {body}: {}", reply.body);
        assert_eq!(reply.header("x-millrace-ignored"), expected, "{path} {body}");
    }
}

#[tokio::test]
async fn a_refused_keyword_is_named_with_its_property() {
    let server = Server::saying("{}");
    let schema = json!({"type": "object", "properties": {"age": {"not": {"const": 1}}}});
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    let body = json!({"messages": [{"role": "user", "content": "a"}], "response_format": format});
    let reply = server.post("/v1/chat/completions", body).await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST);
    let error = &reply.json()["error"];
    assert_eq!(error["param"], "response_format");
    assert!(
        error["message"].as_str().unwrap().contains("`not` at /properties/age is not supported"),
        "{error}"
    );
}
