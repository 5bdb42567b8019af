//! Tools and formats in `/v1/responses`.

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::tools::{ANSWER, prompt, server};
use super::{RequestLimits, Server};

const PATH: &str = "/v1/responses";

fn request(more: Value) -> Value {
    let tool = |name: &str| json!({"type": "function", "name": name, "description": "does", "parameters": {"type": "object"}, "strict": true});
    let mut request = json!({"input": "hi", "tools": [tool("get"), tool("set")]});
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request
}

/// Removes the ids, which differ between answers.
fn without_ids(items: &Value) -> Value {
    let mut items = items.clone();
    for item in items.as_array_mut().unwrap() {
        let fields = item.as_object_mut().unwrap();
        let (kind, id) = (fields["type"].clone(), fields.remove("id").unwrap());
        assert!(id.as_str().unwrap().starts_with(if kind == "message" { "msg_" } else { "fc_" }), "{id}");
        if kind == "function_call" {
            assert!(fields.remove("call_id").unwrap().as_str().unwrap().starts_with("call_"));
        }
    }
    items
}

fn expected() -> Value {
    let part = json!({"type": "output_text", "text": "Wait.", "annotations": [], "logprobs": []});
    json!([
        {"type": "message", "status": "completed", "role": "assistant", "content": [part]},
        {"type": "function_call", "name": "get", "arguments": "{\"n\": 1}", "status": "completed"},
        {"type": "function_call", "name": "set", "arguments": "{}", "status": "completed"},
    ])
}

#[tokio::test]
async fn calls_become_items_of_the_output() {
    let mut server = server(ANSWER, RequestLimits::default());
    let body = server.post(PATH, request(json!({"parallel_tool_calls": true}))).await.json();
    assert_eq!(without_ids(&body["output"]), expected());
    assert_eq!((&body["status"], &body["tool_choice"]), (&json!("completed"), &json!("auto")));
    assert_eq!(body["tools"], request(json!({}))["tools"]);
    let shown = "Tools: [{\"type\": \"function\", \"function\": {\"name\": \"get\", \"description\": \"does\", \
                 \"parameters\": {\"type\": \"object\"}}}, ";
    let text = prompt(&mut server).await;
    assert!(text.starts_with(shown), "{text}");

    let body = server.post(PATH, request(json!({"parallel_tool_calls": false}))).await.json();
    assert_eq!((body["output"].as_array().unwrap().len(), &body["parallel_tool_calls"]), (2, &json!(false)));
    // The answer is cut off in the arguments of the first call.
    let body = server.post(PATH, request(json!({"max_output_tokens": 52}))).await.json();
    let output = body["output"].as_array().unwrap();
    assert_eq!((&body["status"], output.len()), (&json!("incomplete"), 2));
    assert_eq!((&output[0]["status"], &output[1]["status"]), (&json!("completed"), &json!("incomplete")));
    assert_eq!(output[1]["arguments"], "{\"n\":");
}

#[tokio::test]
async fn a_stream_has_the_same_items_in_parts() {
    let server = server(ANSWER, RequestLimits::default());
    for include in [json!([]), json!(["message.output_text.logprobs"])] {
        let body = request(json!({"stream": true, "include": include}));
        let events = server.post(PATH, body).await.named_events();
        let mut items = Vec::<Value>::new();
        let (mut joined, mut logprobs) = (String::new(), Vec::new());
        for (number, (name, event)) in events.iter().enumerate() {
            assert_eq!(event["sequence_number"], number);
            if !name.starts_with("response.output_")
                && !name.contains("_part.")
                && !name.contains("_arguments.")
            {
                continue;
            }
            let open = if name == "response.output_item.added" { items.len() } else { items.len() - 1 };
            assert_eq!(event["output_index"], open, "one item after the other: {event}");
            if let Some(id) = event.get("item_id") {
                assert_eq!(*id, items[open]["id"], "{event}");
            }
            match name.trim_start_matches("response.") {
                "output_item.added" => {
                    let item = event["item"].clone();
                    assert_eq!(item["status"], "in_progress");
                    assert!(item["content"] == json!([]) || item["arguments"] == "", "{item}");
                    (joined, logprobs) = (String::new(), Vec::new());
                    items.push(item);
                }
                "output_text.delta" => {
                    joined += event["delta"].as_str().unwrap();
                    logprobs.extend(event["logprobs"].as_array().unwrap().clone());
                }
                "function_call_arguments.delta" => joined += event["delta"].as_str().unwrap(),
                "output_text.done" => {
                    assert_eq!(
                        (event["text"].as_str(), &event["logprobs"]),
                        (Some(&*joined), &json!(logprobs))
                    );
                }
                "function_call_arguments.done" => {
                    assert_eq!(
                        (event["arguments"].as_str(), &event["name"]),
                        (Some(&*joined), &items[open]["name"])
                    );
                }
                "output_item.done" => {
                    for same in ["id", "call_id", "type", "name"] {
                        assert_eq!(event["item"].get(same), items[open].get(same));
                    }
                    items[open] = event["item"].clone();
                }
                "content_part.added" | "content_part.done" => assert_eq!(event["content_index"], 0),
                other => panic!("{other}"),
            }
        }
        let (name, last) = events.last().unwrap();
        assert_eq!(name, "response.completed");
        assert_eq!(last["response"]["output"], json!(items));
        let logprobs = items[0]["content"][0]["logprobs"].take();
        assert_eq!(logprobs.as_array().unwrap().len() > 4, include != json!([]));
        items[0]["content"][0]["logprobs"] = json!([]);
        assert_eq!(without_ids(&json!(items)), expected());
        let whole = server.post(PATH, request(json!({"include": include}))).await.json();
        assert_eq!(
            whole["output"][0]["content"][0]["logprobs"].as_array().unwrap().len(),
            logprobs.as_array().unwrap().len()
        );
    }
}

#[tokio::test]
async fn calls_and_their_outputs_become_messages_for_the_template() {
    let mut server = server("ok", RequestLimits::default());
    let input = json!([
        {"role": "user", "content": "hi"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "get", "arguments": "{\"n\": 1}", "status": "completed"},
        {"type": "function_call", "call_id": "c2", "name": "set", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "42"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "done"}]},
    ]);
    let reply = server.post(PATH, request(json!({"input": input, "instructions": "be brief"}))).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    let text = prompt(&mut server).await;
    let expected = "system: be brief; user: hi; assistant: I look.<tool_call>{\"name\": \"get\", \"arguments\": {\"n\": 1}}</tool_call>\
                    <tool_call>{\"name\": \"set\", \"arguments\": {}}</tool_call>; tool(get): 42; tool(set): done; assistant: ";
    assert!(text.ends_with(expected), "{text}");
}

#[tokio::test]
async fn the_tool_choice_is_applied() {
    let mut server = server(ANSWER, RequestLimits::default());
    let allowed = |mode: &str| json!({"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "set"}]});
    for (choice, calls, bound) in [
        (json!("none"), 0, None),
        (json!("auto"), 2, Some(false)),
        (json!("required"), 2, Some(true)),
        (json!({"type": "function", "name": "set"}), 1, Some(true)),
        (allowed("auto"), 1, Some(false)),
        (allowed("required"), 1, Some(true)),
    ] {
        let body = server.post(PATH, request(json!({"tool_choice": choice}))).await.json();
        let items = body["output"].as_array().unwrap_or_else(|| panic!("{body}"));
        assert_eq!(items.iter().filter(|item| item["type"] == "function_call").count(), calls, "{choice}");
        assert_eq!(body["tool_choice"], choice);
        let mask = server.engine.requests.recv().await.unwrap().mask;
        // A required call begins with one particular byte, and another answer with any byte.
        let first = mask.map(|mask| mask.iter().map(|word| word.count_ones()).sum::<u32>() == 1);
        assert_eq!(first, bound, "{choice}");
    }
}

#[tokio::test]
async fn a_format_constrains_the_text() {
    let mut server = Server::saying("{\"a\": 1}");
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    for (format, begins) in [
        (json!({"type": "text"}), None),
        (json!({"type": "json_object"}), Some(b'{')),
        (json!({"type": "json_schema", "name": "n", "strict": true, "schema": schema}), Some(b'{')),
    ] {
        let body = server
            .post(PATH, json!({"input": "a", "text": {"format": format, "verbosity": "medium"}}))
            .await
            .json();
        assert_eq!(body["text"]["format"], format, "{body}");
        let mask = server.engine.requests.recv().await.unwrap().mask;
        let only = |byte: u8| {
            mask.as_ref().is_some_and(|mask| {
                mask.iter().map(|w| w.count_ones()).sum::<u32>() == 1
                    && mask[byte as usize / 32] >> (byte % 32) & 1 == 1
            })
        };
        assert!(begins.map_or(mask.is_none(), only), "{format}");
    }
}

#[tokio::test]
async fn wrong_tools_and_choices_are_refused() {
    let server = server("x", RequestLimits::default());
    let call = json!({"type": "function_call", "call_id": "c", "name": "get", "arguments": "{}"});
    let output = |id: &str| json!({"type": "function_call_output", "call_id": id, "output": "o"});
    for (more, param, text) in [
        (json!({"tools": [{"type": "clairvoyance"}]}), "tools[0]", "`clairvoyance`, which is not supported"),
        (json!({"tools": [{"type": "custom", "name": "get it"}]}), "tools[0]", "must have a name"),
        (json!({"tools": [{"name": "get"}]}), "tools[0]", "must have the type function"),
        (json!({"tools": [{"type": "namespace", "name": "n"}]}), "tools[0]", "a list of `tools`"),
        (
            json!({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "namespace", "name": "m", "tools": []}]}]}),
            "tools[0].tools[0]",
            "`namespace`",
        ),
        (
            json!({"tools": [{"type": "web_search"}, {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "?"}]}]}),
            "tools[1].tools[0]",
            "must have a name",
        ),
        (json!({"tools": [{"type": "web_search"}], "tool_choice": "required"}), "tool_choice", "OpenAI runs"),
        (
            json!({"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]}}),
            "tool_choice",
            "OpenAI runs",
        ),
        (json!({"tools": [{"type": "function"}]}), "tools[0]", "must have a name"),
        (json!({"tools": [{"type": "function", "name": "a", "parameters": 7}]}), "tools[0]", "JSON schema"),
        (json!({"tool_choice": {"type": "web_search_preview"}}), "tool_choice", "which OpenAI runs"),
        (json!({"tool_choice": {"type": "clairvoyance"}}), "tool_choice", "must be auto"),
        (json!({"tool_choice": {"type": "function", "name": "other"}}), "tool_choice", "other not found"),
        (
            json!({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}),
            "tool_choice",
            "must be auto",
        ),
        (
            json!({"tool_choice": {"type": "allowed_tools", "mode": "any", "tools": [{"name": "get"}]}}),
            "tool_choice",
            "must be auto",
        ),
        (json!({"tools": [], "tool_choice": "required"}), "tool_choice", "needs `tools`"),
        (json!({"input": [output("c")]}), "input[0]", "no function was called by this `call_id`"),
        (json!({"input": [call, output("d")]}), "input[1]", "the output of d"),
        (
            json!({"input": [{"type": "function_call", "call_id": "c", "name": "get", "arguments": "{\"a"}]}),
            "input[0].arguments",
            "`input[0].arguments` must be a JSON object, or the text of one: EOF",
        ),
        (json!({"input": [{"type": "reasoning", "summary": []}]}), "input", "has no message"),
        (
            json!({"input": [{"type": "compaction_trigger"}]}),
            "input[0]",
            "`compaction_trigger`, which is not supported",
        ),
        (json!({"text": {"format": {"type": "regex", "value": "a"}}}), "text.format", "must be JSON"),
        (json!({"text": {"format": {"type": "yaml"}}}), "text.format", "`text.format.type` must be"),
    ] {
        let reply = server.post(PATH, request(more.clone())).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{more}: {}", reply.body);
        let error = reply.json()["error"].clone();
        assert_eq!(error["param"], param, "{more}: {error}");
        assert!(error["message"].as_str().unwrap().contains(text), "{more}: {error}");
    }
}
