//! Tools in `/v1/messages`.

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::RequestLimits;
use super::tools::{ANSWER, prompt, server};

const PATH: &str = "/v1/messages";

fn request(more: Value) -> Value {
    let tool = |name: &str| json!({"name": name, "description": "does", "input_schema": {"type": "object"}});
    let mut request = json!({
        "max_tokens": 400, "messages": [{"role": "user", "content": "hi"}], "tools": [tool("get"), tool("set")],
    });
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request
}

/// Removes the ids of calls, which differ between answers.
fn without_ids(content: &Value) -> Value {
    let mut content = content.clone();
    for block in content.as_array_mut().unwrap() {
        let id = block.as_object_mut().unwrap().remove("id");
        assert_eq!(id.is_some(), block["type"] == "tool_use");
        assert!(id.is_none_or(|id| id.as_str().unwrap().starts_with("call_")));
    }
    content
}

fn expected() -> Value {
    json!([
        {"type": "text", "text": "Wait."}, {"type": "tool_use", "name": "get", "input": {"n": 1}},
        {"type": "tool_use", "name": "set", "input": {}},
    ])
}

#[tokio::test]
async fn calls_become_blocks_of_the_content() {
    let mut server = server(ANSWER, RequestLimits::default());
    let body = server.post(PATH, request(json!({}))).await.json();
    assert_eq!(without_ids(&body["content"]), expected());
    assert_eq!((&body["stop_reason"], &body["stop_sequence"]), (&json!("tool_use"), &Value::Null));
    let text = prompt(&mut server).await;
    let shown = "Tools: [{\"type\": \"function\", \"function\": {\"name\": \"get\", \"description\": \"does\", \
                 \"parameters\": {\"type\": \"object\"}}}, ";
    assert!(text.starts_with(shown), "{text}");
    // The answer is cut off in the arguments of the first call.
    let body = server.post(PATH, request(json!({"max_tokens": 52}))).await.json();
    assert_eq!(body["stop_reason"], "max_tokens");
    assert_eq!(body["content"], json!([{"type": "text", "text": "Wait."}]));
}

#[tokio::test]
async fn a_stream_has_the_same_blocks_in_parts() {
    let server = server(ANSWER, RequestLimits::default());
    let events = server.post(PATH, request(json!({"stream": true}))).await.named_events();
    let (mut blocks, mut json, mut open) = (Vec::<Value>::new(), String::new(), false);
    for (name, event) in &events[1..events.len() - 2] {
        let block = if name == "content_block_start" { blocks.len() } else { blocks.len() - 1 };
        assert_eq!(event["index"], block, "one block after the other: {event}");
        assert_eq!(open, name != "content_block_start", "{event}");
        match name.as_str() {
            "content_block_start" => blocks.push(event["content_block"].clone()),
            "content_block_delta" if event["delta"]["type"] == "text_delta" => {
                let text = blocks[block]["text"].as_str().unwrap().to_owned();
                blocks[block]["text"] = (text + event["delta"]["text"].as_str().unwrap()).into();
            }
            "content_block_delta" => {
                assert_eq!(event["delta"]["type"], "input_json_delta");
                json += event["delta"]["partial_json"].as_str().unwrap();
            }
            "content_block_stop" if blocks[block]["type"] == "tool_use" => {
                assert_eq!(blocks[block]["input"], json!({}), "the input is empty at first");
                blocks[block]["input"] = serde_json::from_str(&std::mem::take(&mut json)).unwrap();
            }
            "content_block_stop" => {}
            other => panic!("{other}"),
        }
        open = name != "content_block_stop";
    }
    assert_eq!(without_ids(&json!(blocks)), expected());
    assert_eq!(events[events.len() - 2].1["delta"]["stop_reason"], "tool_use");
}

#[tokio::test]
async fn calls_and_results_become_messages_for_the_template() {
    let mut server = server("ok", RequestLimits::default());
    let call = |id: &str, name: &str, input: Value| json!({"type": "tool_use", "id": id, "name": name, "input": input});
    let result =
        |id: &str, content: Value| json!({"type": "tool_result", "tool_use_id": id, "content": content});
    let text = |text: &str| json!({"type": "text", "text": text});
    let messages = json!([
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [text("I look."), call("c1", "get", json!({"n": 1})), call("c2", "set", json!({}))]},
        {"role": "user", "content": [result("c1", json!("42")), result("c2", json!([text("do"), text("ne")])), text("And?")]},
        {"role": "assistant", "content": [call("c3", "set", json!({}))]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c3", "is_error": true}]},
    ]);
    let body = request(json!({"messages": messages}));
    let reply = server.post(PATH, body.clone()).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    let asked = prompt(&mut server).await;
    let expected = "user: hi; assistant: I look.<tool_call>{\"name\": \"get\", \"arguments\": {\"n\": 1}}</tool_call>\
                    <tool_call>{\"name\": \"set\", \"arguments\": {}}</tool_call>; tool(get): 42; tool(set): done; user: And?; \
                    assistant: <tool_call>{\"name\": \"set\", \"arguments\": {}}</tool_call>; tool(set): Error; assistant: ";
    assert!(asked.ends_with(expected), "{asked}");
    let counted = server.post("/v1/messages/count_tokens", body).await.json();
    assert_eq!(counted, json!({"input_tokens": asked.len()}), "tools are counted");
}

#[tokio::test]
async fn the_tool_choice_is_applied() {
    let mut server = server(ANSWER, RequestLimits::default());
    for (choice, calls, bound) in [
        (json!({"type": "none"}), 0, None),
        (json!({"type": "auto"}), 2, Some(false)),
        (json!({"type": "auto", "disable_parallel_tool_use": true}), 1, Some(false)),
        (json!({"type": "any"}), 2, Some(true)),
        (json!({"type": "tool", "name": "set"}), 1, Some(true)),
    ] {
        let body = server.post(PATH, request(json!({"tool_choice": choice}))).await.json();
        let blocks = body["content"].as_array().unwrap_or_else(|| panic!("{body}"));
        assert_eq!(blocks.iter().filter(|block| block["type"] == "tool_use").count(), calls, "{choice}");
        let mask = server.engine.requests.recv().await.unwrap().mask;
        // A required call begins with one particular byte, and another answer with any byte.
        let first = mask.map(|mask| mask.iter().map(|word| word.count_ones()).sum::<u32>() == 1);
        assert_eq!(first, bound, "{choice}");
    }
}

#[tokio::test]
async fn wrong_tools_and_choices_are_refused() {
    let server = server("x", RequestLimits::default());
    let message = |role: &str, block: Value| json!({"messages": [{"role": role, "content": [block]}]});
    for (more, text) in [
        (
            json!({
                "tools": [{"type": "web_search_20250305", "name": "web_search"}],
                "tool_choice": {"type": "any"},
            }),
            "`tools[0]` is of type `web_search_20250305`, which is not supported",
        ),
        (
            json!({
                "tools": [{"name": "get", "input_schema": {}}, {"type": "bash_20250124", "name": "bash"}],
                "tool_choice": {"type": "tool", "name": "bash"},
            }),
            "`tools[1]` is of type `bash_20250124`, which is not supported",
        ),
        (json!({"tools": [{"name": "get"}]}), "`tools[0]` must have a JSON schema as its `input_schema`"),
        (json!({"tools": [{"name": "a b", "input_schema": {}}]}), "`tools[0]` must have a name"),
        (json!({"tool_choice": "auto"}), "`tool_choice` must have one of the types"),
        (json!({"tool_choice": {"type": "tool"}}), "`tool_choice` must have one of the types"),
        (json!({"tool_choice": {"type": "tool", "name": "other"}}), "Tool with name other not found"),
        (json!({"tools": [], "tool_choice": {"type": "any"}}), "`tool_choice` needs `tools`"),
        (
            message("user", json!({"type": "tool_result", "tool_use_id": "c", "content": "o"})),
            "the result of c, but no tool",
        ),
        (message("user", json!({"type": "tool_result", "content": "o"})), "without `tool_use_id`"),
        (
            message("user", json!({"type": "tool_use", "id": "c", "name": "get", "input": {}})),
            "`tool_use`, which is not supported here",
        ),
        (
            message("assistant", json!({"type": "tool_use", "id": "c", "name": "get", "input": [1]})),
            "`messages[0].content[0].input` must be a JSON object",
        ),
        (message("assistant", json!({"type": "tool_use", "name": "get", "input": {}})), "without `id`"),
    ] {
        for path in [PATH, "/v1/messages/count_tokens"] {
            let reply = server.post(path, request(more.clone())).await;
            assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{more}: {}", reply.body);
            let message = reply.json()["error"]["message"].clone();
            assert!(message.as_str().unwrap().contains(text), "{more}: {message}");
        }
    }
}
