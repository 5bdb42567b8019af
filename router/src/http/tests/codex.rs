//! `/v1/responses` as Codex uses it. The requests are those of `@openai/codex` 0.169.0, shortened.

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::tools::{prompt, server};
use super::{RequestLimits, Server};

const PATH: &str = "/v1/responses";

fn function(name: &str) -> Value {
    json!({"type": "function", "name": name, "description": "Does it.", "strict": false,
           "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}, "additionalProperties": false}})
}

fn namespace(name: &str, tools: Value) -> Value {
    json!({"type": "namespace", "name": name, "description": "Tools for sub-agents.", "tools": tools})
}

fn apply_patch() -> Value {
    let format =
        json!({"type": "grammar", "syntax": "lark", "definition": "start: begin_patch hunk+ end_patch"});
    json!({"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": format})
}

fn message(role: &str, texts: &[&str]) -> Value {
    let parts: Vec<Value> = texts.iter().map(|text| json!({"type": "input_text", "text": text})).collect();
    json!({"type": "message", "id": "msg_1", "role": role, "content": parts})
}

/// The first request of a session.
fn first() -> Value {
    json!({
        "model": "org/model", "stream": true, "tool_choice": "auto", "parallel_tool_calls": true,
        "reasoning": {"effort": "high", "summary": "auto"}, "store": false, "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "01a2025e", "client_metadata": {"root_turn_id": "01a2025e"}, "text": {"verbosity": "low"},
        "tools": [
            function("exec_command"), apply_patch(), namespace("multi_agent_v1", json!([function("close_agent")])),
            {"type": "tool_search", "execution": "client", "description": "Searches.", "parameters": {"type": "object"}},
            {"type": "web_search", "external_web_access": true},
        ],
        "input": [
            message("developer", &["You are a coding agent."]), message("developer", &["<skills>", "<permissions>"]),
            message("user", &["<environment_context>"]), message("user", &["Say hello"]),
        ],
    })
}

/// The first request of a session with a model that does not reason.
fn first_without_reasoning() -> Value {
    let mut first = first();
    first.as_object_mut().unwrap().remove("reasoning");
    first
}

fn call_text(name: &str, arguments: Value) -> String {
    format!("<tool_call>\n{}\n</tool_call>", json!({"name": name, "arguments": arguments}))
}

/// Returns the last item of the answer, read from the events that Codex uses.
async fn last_streamed_item(server: &Server, request: Value) -> Value {
    let reply = server.post(PATH, request).await;
    let events = reply.named_events();
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[..2], ["response.created", "response.in_progress"]);
    let (last, completed) = events.last().unwrap();
    assert_eq!(last, "response.completed");
    assert!(completed["response"]["usage"]["total_tokens"].as_u64().unwrap() > 0);
    for (number, (_, event)) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
    }
    let done = events.iter().rfind(|(name, _)| name == "response.output_item.done").unwrap();
    let added = events.iter().rfind(|(name, _)| name == "response.output_item.added").unwrap();
    for same in ["id", "type", "call_id", "name", "namespace"] {
        assert_eq!(done.1["item"].get(same), added.1["item"].get(same), "{same}");
    }
    done.1["item"].clone()
}

#[tokio::test]
async fn the_first_request_of_a_session_is_answered() {
    let mut server = server("Hello!", RequestLimits::default());
    let reply = server.post(PATH, first()).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    assert_eq!(
        reply.header("x-millrace-ignored"),
        "client_metadata, include[0], prompt_cache_key, reasoning.summary, text.verbosity, tools[1].format, \
         tools[3], tools[4]"
    );
    let text = prompt(&mut server).await;
    // The template reads `thinking`, which the effort turns on.
    let end = "system: You are a coding agent.\n\n<skills><permissions>; user: <environment_context>\n\nSay hello; \
               thinking True; assistant: ";
    assert!(text.ends_with(end), "{text}");
    for (shown, is_there) in [
        ("\"name\": \"exec_command\"", true),
        ("\"name\": \"apply_patch\"", true),
        ("start: begin_patch hunk+", true),
        ("\"name\": \"close_agent\"", true),
        ("web_search", false),
        ("tool_search", false),
    ] {
        assert_eq!(text.contains(shown), is_there, "{shown}: {text}");
    }
    let item = last_streamed_item(&server, first()).await;
    assert_eq!((&item["type"], &item["content"][0]["text"]), (&json!("message"), &json!("Hello!")));
    let models = server.get("/v1/models?client_version=0.169.0").await.json();
    assert_eq!(models["data"][0]["id"], "org/model");
}

#[tokio::test]
async fn a_custom_tool_is_called_with_a_text() {
    let patch = "*** Begin Patch\n*** Add File: ü.txt\n+\"hello\" \\ 😀\n*** End Patch\n";
    let mut server = server(
        &format!("I edit.{}", call_text("apply_patch", json!({"input": patch}))),
        RequestLimits::default(),
    );
    let item = last_streamed_item(&server, first()).await;
    assert_eq!((&item["type"], &item["name"]), (&json!("custom_tool_call"), &json!("apply_patch")));
    assert_eq!((&item["input"], &item["status"]), (&json!(patch), &json!("completed")));
    assert!(item["id"].as_str().unwrap().starts_with("ctc_") && item["call_id"].is_string());
    assert!(item.get("arguments").is_none() && item.get("namespace").is_none(), "{item}");

    let events = server.post(PATH, first()).await.named_events();
    let of = |kind: &str| -> Vec<&Value> {
        events.iter().filter(|(name, _)| name == kind).map(|(_, event)| event).collect()
    };
    let deltas = of("response.custom_tool_call_input.delta");
    assert!(deltas.len() > 20);
    let joined: String = deltas.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(joined, patch);
    let done = of("response.custom_tool_call_input.done");
    assert_eq!((done.len(), &done[0]["input"], &done[0]["output_index"]), (1, &json!(patch), &json!(1)));
    assert_eq!(done[0]["item_id"], deltas[0]["item_id"]);
    assert_eq!(of("response.function_call_arguments.delta").len(), 0);

    let mut whole = first();
    whole["stream"] = json!(false);
    let body = server.post(PATH, whole).await.json();
    assert_eq!(body["output"][1]["input"], patch);
    while server.engine.requests.try_recv().is_ok() {}

    // The next request has the call and its output.
    let mut next = first_without_reasoning();
    let output = json!({"type": "custom_tool_call_output", "id": "ctco_1", "call_id": item["call_id"], "output": "Success."});
    next["input"].as_array_mut().unwrap().extend([item, output]);
    assert_eq!(server.post(PATH, next).await.status, StatusCode::OK);
    let text = prompt(&mut server).await;
    let shown =
        "assistant: <tool_call>{\"name\": \"apply_patch\", \"arguments\": {\"input\": \"*** Begin Patch\\n";
    assert!(text.contains(shown), "{text}");
    assert!(text.ends_with("; tool(apply_patch): Success.; assistant: "), "{text}");
}

#[tokio::test]
async fn a_call_in_a_namespace_has_the_namespace() {
    let mut server = server(&call_text("close_agent", json!({"cmd": "x"})), RequestLimits::default());
    let item = last_streamed_item(&server, first()).await;
    assert_eq!((&item["name"], &item["namespace"]), (&json!("close_agent"), &json!("multi_agent_v1")));
    let mut next = first_without_reasoning();
    let output = json!({"type": "function_call_output", "call_id": item["call_id"], "output": "closed"});
    next["input"].as_array_mut().unwrap().extend([item, output]);
    assert_eq!(server.post(PATH, next).await.status, StatusCode::OK);
    let _ = prompt(&mut server).await;
    assert!(prompt(&mut server).await.ends_with("tool(close_agent): closed; assistant: "));
}

#[tokio::test]
async fn tools_of_equal_names_are_distinguished_by_their_namespaces() {
    for (name, namespace_of, called) in [
        ("read", None, "read"),
        ("fs__read", Some("fs"), "read"),
        ("mcp__web__read", Some("mcp__web__"), "read"),
        ("write", Some("fs"), "write"),
    ] {
        let mut server = server(&call_text(name, json!({})), RequestLimits::default());
        let tools = json!([
            namespace("fs", json!([function("read"), function("write")])),
            function("read"),
            namespace("mcp__web__", json!([{"type": "custom", "name": "read"}])),
        ]);
        let mut choice = json!({"type": "function", "name": called});
        choice["namespace"] = json!(namespace_of);
        for choice in [
            json!("auto"),
            choice.clone(),
            json!({"type": "allowed_tools", "mode": "auto", "tools": [choice]}),
        ] {
            let body =
                server.post(PATH, json!({"input": "a", "tools": tools, "tool_choice": choice})).await.json();
            let item = &body["output"][0];
            let is_custom = namespace_of == Some("mcp__web__");
            assert_eq!(item["type"], if is_custom { "custom_tool_call" } else { "function_call" }, "{body}");
            assert_eq!((item["name"].as_str(), item["namespace"].as_str()), (Some(called), namespace_of));
            assert!(server.engine.requests.recv().await.is_some());
        }
    }
    let server = server("x", RequestLimits::default());
    for tools in [
        json!([namespace("fs", json!([function("read"), function("read")]))]),
        json!([function("read"), function("read")]),
        json!([function("fs__read"), function("read"), namespace("fs", json!([function("read")]))]),
    ] {
        let error = server.post(PATH, json!({"input": "a", "tools": tools})).await.json()["error"].clone();
        assert_eq!(error["param"], "tools", "{error}");
        assert!(error["message"].as_str().unwrap().contains("two tools named"), "{error}");
    }
    let many: Vec<Value> = (0..65).map(|i| function(&format!("f{i}"))).collect();
    let tools = json!([namespace("a", json!(many)), namespace("b", json!(many))]);
    let error = server.post(PATH, json!({"input": "a", "tools": tools})).await.json()["error"].clone();
    assert!(error["message"].as_str().unwrap().contains("more than 128"), "{error}");
}

/// For the newest models, Codex sends the tools as an item of the input.
#[tokio::test]
async fn tools_may_come_in_the_input() {
    let mut server = server(&call_text("exec", json!({"input": "text(1+1)"})), RequestLimits::default());
    let exec = json!({"type": "custom", "name": "exec", "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"}});
    let additional = json!({"type": "additional_tools", "id": "at_1", "role": "developer",
                            "tools": [namespace("functions", json!([exec, function("wait")]))]});
    let item =
        last_streamed_item(&server, json!({"stream": true, "input": [additional, message("user", &["hi"])]}))
            .await;
    let expected = (&json!("custom_tool_call"), &json!("exec"), &json!("functions"), &json!("text(1+1)"));
    assert_eq!((&item["type"], &item["name"], &item["namespace"], &item["input"]), expected);
    assert!(prompt(&mut server).await.contains("\"name\": \"wait\""));
    let wrong = json!({"type": "additional_tools", "tools": [{"type": "function"}]});
    let error =
        server.post(PATH, json!({"input": [wrong, message("user", &["hi"])]})).await.json()["error"].clone();
    assert_eq!(error["param"], "input[0].tools[0]");
}

#[tokio::test]
async fn items_of_tools_that_openai_runs_are_skipped_and_reported() {
    let mut server = server("ok", RequestLimits::default());
    let input = json!([
        message("user", &["hi"]),
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "local_shell_call", "call_id": "c1", "status": "completed", "action": {"type": "exec", "command": ["ls"]}},
        {"type": "function_call_output", "call_id": "c1", "output": "a.txt"},
        {"type": "item_reference", "id": "msg_7"},
        {"type": "reasoning", "summary": [], "encrypted_content": "c2VjcmV0"},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        message("user", &["go on"]),
    ]);
    let reply = server.post(PATH, json!({"input": input})).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    assert_eq!(reply.header("x-millrace-ignored"), "input[1], input[2], input[3], input[4], input[5]");
    assert_eq!(prompt(&mut server).await, "user: hi; assistant: No.; user: go on; assistant: ");
}

#[tokio::test]
async fn tools_that_openai_runs_are_left_out_and_cannot_be_chosen() {
    let mut server = server("ok", RequestLimits::default());
    let kinds = [
        "apply_patch",
        "code_interpreter",
        "computer_use_preview",
        "file_search",
        "image_generation",
        "local_shell",
        "mcp",
        "shell",
        "tool_search",
        "web_search",
        "web_search_preview_2025_03_11",
    ];
    for kind in kinds {
        let ask = |choice: Value| json!({"input": "a", "tools": [{"type": kind}], "tool_choice": choice});
        let only = json!({"type": "allowed_tools", "mode": "auto", "tools": [{"type": kind}]});
        for choice in [json!(null), json!("auto"), json!("none"), only] {
            let reply = server.post(PATH, ask(choice)).await;
            assert_eq!(
                (reply.status, reply.header("x-millrace-ignored")),
                (StatusCode::OK, "tools[0]"),
                "{}",
                reply.body
            );
            assert_eq!(prompt(&mut server).await, "user: a; assistant: ");
        }
        for choice in [json!("required"), json!({"type": kind})] {
            let reply = server.post(PATH, ask(choice)).await;
            assert_eq!(
                (reply.status, reply.json()["error"]["param"].as_str()),
                (StatusCode::BAD_REQUEST, Some("tool_choice"))
            );
        }
    }
    // With a function beside it, that function can be called.
    let tools = json!([{"type": "web_search"}, function("get")]);
    let reply = server.post(PATH, json!({"input": "a", "tools": tools, "tool_choice": "required"})).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
}
