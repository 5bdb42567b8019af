//! `/v1/responses`.

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::{HttpConfig, RequestLimits, Script, Server, tools};
use crate::test_support::{self, BOS};

fn prompt(ids: &[u32]) -> String {
    assert_eq!(ids[0], BOS);
    ids[1..].iter().map(|&id| char::from(id as u8)).collect()
}

#[tokio::test]
async fn a_response_has_the_answer_and_the_request_fields() {
    let mut server = Server::saying("Hi!");
    let input = json!([
        {"role": "developer", "content": "be kind"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "c", "annotations": []}]},
        {"role": "user", "content": "d"},
    ]);
    let body = json!({
        "model": "org/model", "instructions": "be brief", "input": input, "max_output_tokens": 20, "temperature": 0,
        "metadata": {"k": "v"}, "store": true, "tools": [], "text": {"format": {"type": "text"}}, "truncation": "disabled",
    });
    let reply = server.post("/v1/responses", body).await.json();
    assert_eq!((&reply["object"], &reply["status"]), (&json!("response"), &json!("completed")));
    assert!(reply["id"].as_str().unwrap().starts_with("resp_"));
    assert_eq!((&reply["store"], &reply["metadata"]), (&json!(false), &json!({"k": "v"})));
    assert_eq!((&reply["instructions"], &reply["max_output_tokens"]), (&json!("be brief"), &json!(20)));
    let message = &reply["output"][0];
    assert_eq!((&message["type"], &message["role"]), (&json!("message"), &json!("assistant")));
    assert!(message["id"].as_str().unwrap().starts_with("msg_"));
    assert_eq!(
        message["content"],
        json!([{"type": "output_text", "text": "Hi!", "annotations": [], "logprobs": []}])
    );
    let asked = server.engine.requests.recv().await.unwrap();
    let expected = "system: be brief\n\nbe kind\nuser: ab\nassistant: c\nuser: d\nassistant: ";
    assert_eq!(prompt(&asked.prompt), expected);
    assert_eq!((asked.max_new_tokens, asked.sampling.do_sample), (20, false));
    let tokens = asked.prompt.len();
    assert_eq!(
        reply["usage"],
        json!({"input_tokens": tokens, "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0}, "output_tokens": 4,
               "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": tokens + 4})
    );

    let reply = server.post("/v1/responses", json!({"input": "a", "max_output_tokens": 2})).await.json();
    assert_eq!(
        (&reply["status"], &reply["output"][0]["status"]),
        (&json!("incomplete"), &json!("incomplete"))
    );
    assert_eq!(reply["incomplete_details"], json!({"reason": "max_output_tokens"}));
    assert_eq!(reply["output"][0]["content"][0]["text"], "Hi");
    let asked = server.engine.requests.recv().await.unwrap();
    assert!(asked.sampling.do_sample, "temperature 1 unless told otherwise");
}

#[tokio::test]
async fn events_have_openais_order_and_add_up_to_the_response() {
    let server = Server::saying("Hi ü!");
    for logprobs in [false, true] {
        let include = if logprobs { json!(["message.output_text.logprobs"]) } else { json!([]) };
        let body = json!({"input": "a", "stream": true, "include": include});
        let events = server.post("/v1/responses", body).await.named_events();
        for (number, (_, event)) in events.iter().enumerate() {
            assert_eq!(event["sequence_number"], number);
        }
        let names: Vec<_> = events.iter().map(|(name, _)| name.trim_start_matches("response.")).collect();
        let (begin, rest) = names.split_at(4);
        assert_eq!(begin, ["created", "in_progress", "output_item.added", "content_part.added"]);
        let (deltas, end) = rest.split_at(rest.len() - 4);
        assert!(deltas.iter().all(|name| *name == "output_text.delta"));
        assert_eq!(end, ["output_text.done", "content_part.done", "output_item.done", "completed"]);
        assert_eq!(events[0].1["response"]["status"], "in_progress");
        let text: String = events.iter().filter_map(|(_, event)| event["delta"].as_str()).collect();
        assert_eq!(text, "Hi ü!");
        let done = &events[events.len() - 4].1;
        assert_eq!(done["text"], "Hi ü!");
        let response = &events.last().unwrap().1["response"];
        assert_eq!(
            (&response["status"], &response["usage"]["output_tokens"]),
            (&json!("completed"), &json!(7))
        );
        assert_eq!(response["output"][0], events[events.len() - 2].1["item"]);
        assert_eq!(response["output"][0]["content"][0]["text"], "Hi ü!");
        let all: Vec<Value> = events
            .iter()
            .filter(|(name, _)| name.ends_with("delta"))
            .flat_map(|(_, event)| event["logprobs"].as_array().unwrap().clone())
            .collect();
        assert_eq!(all.len(), if logprobs { 7 } else { 0 }, "one per token, the end token included");
        assert_eq!(done["logprobs"], json!(all));
    }
    let body = json!({"input": "a", "stream": true, "max_output_tokens": 1});
    let events = server.post("/v1/responses", body).await.named_events();
    assert_eq!(events.last().unwrap().0, "response.incomplete");

    let server = Server::new(Script::Fail("ab".into()));
    let events = server.post("/v1/responses", json!({"input": "a", "stream": true})).await.named_events();
    let [.., (error, what), (failed, response)] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!((error.as_str(), failed.as_str()), ("error", "response.failed"));
    assert!(what["message"].as_str().unwrap().contains("the shard has died"));
    assert_eq!(response["response"]["status"], "failed");
    let reply = server.post("/v1/responses", json!({"input": "a"})).await;
    assert_eq!(reply.status, StatusCode::INTERNAL_SERVER_ERROR);
}

#[tokio::test]
async fn fields_that_are_not_served_are_refused_by_name() {
    let server = Server::saying("x");
    for (field, value) in [
        ("background", json!(true)),
        ("conversation", json!("conv_1")),
        ("previous_response_id", json!("resp_1")),
        ("prompt", json!({"id": "p"})),
        ("reasoning", json!({"effort": "utmost"})),
        ("tool_choice", json!("required")),
        ("tools", json!([{"type": "unheard_of"}])),
        ("top_logprobs", json!(21)),
        ("temperature", json!(-1)),
        ("max_output_tokens", json!(0)),
        ("input", json!([])),
        ("input", json!(7)),
        ("input", json!([{"type": "function_call_output", "call_id": "c", "output": "o"}])),
        ("input", json!([{"role": "user", "content": [{"type": "input_image", "image_url": "http://x/"}]}])),
        ("input", json!([{"role": "tool", "content": "a"}])),
        ("input", json!([{"role": "user"}])),
        ("input", json!("a".repeat(100_000))),
        ("input", json!([{"type": "item_reference", "id": "msg_1"}])),
        ("input", json!([{"type": "unheard_of", "role": "user", "content": "a"}])),
    ] {
        let mut body = json!({"input": "a"});
        body[field] = value.clone();
        let reply = server.post("/v1/responses", body).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{field}: {value}: {}", reply.body);
        let error = reply.json()["error"].clone();
        assert_eq!(error["type"], "invalid_request_error");
        let param = error["param"].as_str().unwrap();
        assert!(param.starts_with(field), "{field}: {error}");
        assert!(!error["message"].as_str().unwrap().contains("`max_tokens`"), "{error}");
    }
    for (field, value) in [
        ("background", json!(false)),
        ("reasoning", Value::Null),
        ("tools", json!([])),
        ("tool_choice", json!("auto")),
        ("store", json!(false)),
        ("service_tier", json!("auto")),
        ("truncation", json!("disabled")),
        ("text", json!({"verbosity": "medium"})),
        ("reasoning", json!({"effort": null, "summary": null})),
    ] {
        let reply = server.post("/v1/responses", json!({"input": "a", field: value})).await;
        assert_eq!(reply.status, StatusCode::OK, "{field}: {}", reply.body);
        assert!(!reply.headers.contains_key("x-millrace-ignored"), "{field}");
    }
}

#[tokio::test]
async fn hints_are_accepted_and_reported() {
    let server = Server::saying("x");
    for (field, value, named) in [
        ("client_metadata", json!({"a": "b"}), "client_metadata"),
        ("include", json!(["message.output_text.logprobs", "reasoning.encrypted_content"]), "include[1]"),
        ("include", json!(["file_search_call.results"]), "include[0]"),
        ("max_tool_calls", json!(3), "max_tool_calls"),
        ("prompt_cache_key", json!("k"), "prompt_cache_key"),
        ("reasoning", json!({"effort": "high", "summary": "auto"}), "reasoning.effort, reasoning.summary"),
        ("safety_identifier", json!("u"), "safety_identifier"),
        ("service_tier", json!("flex"), "service_tier"),
        ("store", json!(true), "store"),
        ("text", json!({"verbosity": "low"}), "text.verbosity"),
        ("truncation", json!("auto"), "truncation"),
        ("unknown", json!(1), "unknown"),
    ] {
        for stream in [false, true] {
            let body = json!({"input": "a", field: value, "stream": stream});
            let reply = server.post("/v1/responses", body).await;
            assert_eq!(reply.status, StatusCode::OK, "{field}: {}", reply.body);
            assert_eq!(reply.header("x-millrace-ignored"), named, "{field}");
        }
    }
}

#[tokio::test]
async fn objects_are_not_read_from_lists() {
    let server = Server::saying("x");
    let chat = json!([{"role": "user", "content": "a"}]);
    for (path, body, name) in [
        ("/v1/responses", json!({"input": "a", "text": [null, null]}), "text"),
        (
            "/v1/chat/completions",
            json!({"messages": chat, "stream": true, "stream_options": [true]}),
            "stream_options",
        ),
        ("/v1/rerank", json!({"query": "a", "documents": [["b"]]}), "documents[0]"),
    ] {
        let reply = server.post(path, body).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{path}: {}", reply.body);
        assert_eq!(reply.json()["error"]["param"], name, "{path}");
    }
    for path in ["/generate", "/tokenize"] {
        for body in [json!({"inputs": "a", "parameters": [null]}), json!(["a", {}])] {
            let reply = server.post(path, body).await;
            assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY, "{path}: {}", reply.body);
        }
    }
    let infer = json!({"inputs": [["text", null, ["a"]]]});
    let reply = server.post("/v2/models/tgi/infer", infer).await;
    assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY, "{}", reply.body);
}

/// The template reads the effort and the reasoning of earlier messages.
#[tokio::test]
async fn reasoning_reaches_templates_that_read_it() {
    let template = "{% if reasoning_effort is defined %}effort {{ reasoning_effort }}; {% endif %}{% for m in messages %}\
                    {{ m.role }}: {% if m.reasoning_content %}({{ m.reasoning_content }}) {% endif %}{{ m.content }}\
                    {% for call in m.tool_calls or [] %}{{ call.function.name }}{% endfor %}; {% endfor %}";
    let assets = test_support::assets_with_template(template);
    let mut server =
        Server::serving(&assets, Script::Say("x".into()), RequestLimits::default(), HttpConfig::default());
    let reasoning = |text: &str| {
        json!({"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": text}],
                                        "encrypted_content": "c2VjcmV0"})
    };
    let whole = json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": "short"}],
                       "content": [{"type": "reasoning_text", "text": "long"}]});
    let input = json!([
        {"role": "user", "content": "a"}, reasoning("first"), {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"}, whole,
        {"type": "function_call", "call_id": "c1", "name": "get", "arguments": "{}"}, reasoning("more"),
        {"type": "function_call", "call_id": "c2", "name": "set", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "d"},
        {"type": "reasoning", "summary": [], "encrypted_content": "c2VjcmV0"}, {"role": "user", "content": "e"},
    ]);
    let body = json!({"input": input, "reasoning": {"effort": "low"}});
    let reply = server.post("/v1/responses", body).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    assert_eq!(reply.json()["reasoning"], json!({"effort": "low", "summary": null}));
    assert_eq!(reply.header("x-millrace-ignored"), "input[9]", "the item has no text");
    let text = tools::prompt(&mut server).await;
    let expected = "effort low; user: a; assistant: (first) b; user: c; assistant: (long\nmore) getset; tool: d; user: e; ";
    assert_eq!(text, expected);
    server.post("/v1/responses", json!({"input": "a"})).await;
    assert_eq!(tools::prompt(&mut server).await, "user: a; ");
}
