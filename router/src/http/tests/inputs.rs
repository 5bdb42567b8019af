//! Histories and wrong fields in requests of all APIs.

use serde_json::{Value, json};

use super::tools::prompt;
use super::{HttpConfig, RequestLimits, Script, Server};
use crate::test_support;

/// A template that writes calls and refuses a system message after the first message.
const STRICT: &str = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
{{ raise_exception('System message must be at the beginning.') }}{% endif %}{{ m.role }}: {{ m.content or '' }}\
{% for call in m.tool_calls or [] %}<{{ call.function.name }} {{ call.function.arguments | tojson }}>{% endfor %}; {% endfor %}\
{% if add_generation_prompt %}assistant: {% endif %}";

fn server(template: &str) -> Server {
    let assets = test_support::assets_with_template(template);
    Server::serving(&assets, Script::Say("ok".into()), RequestLimits::default(), HttpConfig::default())
}

fn say(role: &str, text: &str) -> Value {
    json!({"role": role, "content": text})
}

fn chat_call(arguments: Option<Value>) -> Value {
    let mut function = json!({"name": "f"});
    if let Some(arguments) = arguments {
        function["arguments"] = arguments;
    }
    let call = json!({"id": "c", "type": "function", "function": function});
    json!({"messages": [say("user", "a"), {"role": "assistant", "content": "b", "tool_calls": [call]}]})
}

fn responses_call(arguments: Option<Value>) -> Value {
    let mut call = json!({"type": "function_call", "call_id": "c", "name": "f"});
    if let Some(arguments) = arguments {
        call["arguments"] = arguments;
    }
    json!({"input": [say("user", "a"), say("assistant", "b"), call]})
}

fn messages_call(input: Option<Value>) -> Value {
    let mut call = json!({"type": "tool_use", "id": "c", "name": "f"});
    if let Some(input) = input {
        call["input"] = input;
    }
    let content = json!([{"type": "text", "text": "b"}, call]);
    json!({"max_tokens": 9, "messages": [say("user", "a"), {"role": "assistant", "content": content}]})
}

#[tokio::test]
async fn calls_without_arguments_have_an_empty_object() {
    let mut server = server(STRICT);
    for arguments in [None, Some(json!(null)), Some(json!("")), Some(json!("{}")), Some(json!({}))] {
        for (path, body) in [
            ("/v1/chat/completions", chat_call(arguments.clone())),
            ("/v1/responses", responses_call(arguments.clone())),
            ("/v1/messages", messages_call(arguments.clone())),
        ] {
            let reply = server.post(path, body).await;
            assert_eq!(reply.status.as_u16(), 200, "{path} {arguments:?}: {}", reply.body);
            let expected = "user: a; assistant: b<f {}>; assistant: ";
            assert_eq!(prompt(&mut server).await, expected, "{path} {arguments:?}");
        }
    }
}

#[tokio::test]
async fn arguments_that_are_no_object_are_refused_by_name() {
    let server = server(STRICT);
    for arguments in [json!("{\"city\": \"Par"), json!("[1]"), json!([1]), json!(5)] {
        let arguments = || Some(arguments.clone());
        for (path, body, param) in [
            ("/v1/chat/completions", chat_call(arguments()), "messages[1].tool_calls[0].function.arguments"),
            ("/v1/responses", responses_call(arguments()), "input[2].arguments"),
        ] {
            let reply = server.post(path, body).await;
            let error = reply.json()["error"].clone();
            assert_eq!((reply.status.as_u16(), &error["param"]), (400, &json!(param)), "{error}");
            assert!(error["message"].as_str().unwrap().contains("must be a JSON object"), "{error}");
        }
        let named = "messages[1].tool_calls[0].function.arguments";
        for (path, body, status, name) in [
            ("/v1/messages", messages_call(arguments()), 400, ".input` must be a JSON object"),
            ("/tokenize", chat_call(arguments()), 422, named),
            ("/chat_tokenize", chat_call(arguments()), 422, named),
        ] {
            let reply = server.post(path, body).await;
            assert_eq!(reply.status.as_u16(), status, "{path}: {}", reply.body);
            assert!(reply.body.contains(name), "{path}: {}", reply.body);
        }
    }
}

#[tokio::test]
async fn late_instructions_are_placed_alike_by_all_apis() {
    let mut server = server(STRICT);
    let history = |late: &str| {
        [say("system", "s"), say("user", "a"), say(late, "late"), say("assistant", "b"), say("user", "c")]
    };
    let expected = "system: s; user: a\n\nlate; assistant: b; user: c; assistant: ";
    for (path, body) in [
        ("/v1/chat/completions", json!({"messages": history("system")})),
        ("/v1/chat/completions", json!({"messages": history("developer")})),
        ("/v1/responses", json!({"input": history("system")})),
        ("/v1/responses", json!({"input": history("developer")})),
        ("/v1/messages", json!({"max_tokens": 9, "messages": history("system")})),
    ] {
        let reply = server.post(path, body.clone()).await;
        assert_eq!(reply.status.as_u16(), 200, "{path} {body}: {}", reply.body);
        assert_eq!(prompt(&mut server).await, expected, "{path} {body}");
    }
    // An instruction at the end does not make the answer before it unfinished.
    let messages = [say("user", "a"), say("assistant", "b"), say("system", "late")];
    let expected = "system: late; user: a; assistant: b; assistant: ";
    for path in ["/v1/chat/completions", "/v1/messages"] {
        let reply = server.post(path, json!({"max_tokens": 9, "messages": messages})).await;
        assert_eq!(reply.status.as_u16(), 200, "{path}: {}", reply.body);
        assert_eq!(prompt(&mut server).await, expected, "{path}");
    }
}

#[tokio::test]
async fn wrong_types_name_the_field_in_the_terms_of_json() {
    let server = Server::saying("x");
    let messages = json!([say("user", "a")]);
    let rust = ["u32", "f32", "struct", "enum", "expected", "usize", "sequence", "i64", "variant", "line 1"];
    for (path, body, param, text) in [
        ("/v1/chat/completions", json!({}), "messages", "`messages` is required"),
        (
            "/v1/chat/completions",
            json!({"messages": messages, "max_tokens": "x"}),
            "max_tokens",
            "`max_tokens` must be a whole number of at least 0, not a string",
        ),
        (
            "/v1/chat/completions",
            json!({"messages": messages, "max_tokens": -1}),
            "max_tokens",
            "`max_tokens` must be a whole number from 0 to 4294967295, not -1",
        ),
        (
            "/v1/chat/completions",
            json!({"messages": messages, "stream_options": {"include_usage": "yes"}}),
            "stream_options.include_usage",
            "`stream_options.include_usage` must be true or false, not a string",
        ),
        (
            "/v1/chat/completions",
            json!({"messages": 5}),
            "messages",
            "`messages` must be a list, not a number",
        ),
        ("/v1/chat/completions", json!({"messages": messages, "stop": 5}), "stop", "`stop` must be"),
        (
            "/v1/chat/completions",
            json!({"messages": messages, "guided_choice": [1]}),
            "guided_choice[0]",
            "must be a string, not a number",
        ),
        (
            "/v1/completions",
            json!({"prompt": "a", "temperature": []}),
            "temperature",
            "must be a number, not a list",
        ),
        ("/v1/completions", json!({"prompt": {}}), "prompt", "a prompt must be a text"),
        ("/v1/responses", json!({"input": "a", "text": 5}), "text", "`text` must be an object, not a number"),
        (
            "/v1/responses",
            json!({"input": "a", "include": [5]}),
            "include[0]",
            "must be a string, not a number",
        ),
        (
            "/v1/embeddings",
            json!({"input": "a", "dimensions": "x"}),
            "dimensions",
            "a whole number of at least 0",
        ),
        (
            "/v1/rerank",
            json!({"query": "a", "documents": [5]}),
            "documents[0]",
            "must be a text or an object",
        ),
        ("/v1/rerank", json!({"query": 5, "documents": ["a"]}), "query", "must be a string, not a number"),
    ] {
        let reply = server.post(path, body.clone()).await;
        let error = reply.json()["error"].clone();
        assert_eq!((reply.status.as_u16(), &error["param"]), (400, &json!(param)), "{path} {body}: {error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(text), "{path} {body}: {message}");
        assert!(!rust.iter().any(|word| message.contains(word)), "{path} {body}: {message}");
    }
}

#[tokio::test]
async fn errors_of_anthropics_api_have_the_id_of_the_request() {
    let server = Server::saying("x");
    let messages = json!([say("user", "a")]);
    for (body, status, text) in [
        (
            json!({"messages": messages, "max_tokens": "x"}),
            400,
            "`max_tokens` must be a whole number of at least 0",
        ),
        (json!({"messages": 5, "max_tokens": 9}), 400, "`messages` must be a list, not a number"),
        (json!({"max_tokens": 9}), 400, "`messages` is required"),
        (json!({"messages": messages, "max_tokens": 0}), 400, "`max_tokens`"),
    ] {
        let reply = server.post("/v1/messages", body.clone()).await;
        let error = reply.json();
        assert_eq!(reply.status.as_u16(), status, "{body}: {error}");
        assert!(error["error"]["message"].as_str().unwrap().contains(text), "{body}: {error}");
        assert_eq!(error["request_id"], reply.header("request-id"), "{body}");
        assert_eq!(reply.header("request-id"), reply.header("x-request-id"), "{body}");
    }
    let answered = server.post("/v1/messages", json!({"messages": messages, "max_tokens": 9})).await;
    assert_eq!(answered.header("request-id"), answered.header("x-request-id"));
    let other = server.post("/v1/chat/completions", json!({"messages": messages})).await;
    assert!(other.headers.get("request-id").is_none());
    // An error within a stream has the id, too.
    let failing = Server::new(Script::Fail("ab".into()));
    let body = json!({"messages": messages, "max_tokens": 9, "stream": true});
    let reply = failing.post("/v1/messages", body).await;
    let events = reply.named_events();
    assert_eq!(events.last().unwrap().1["request_id"], reply.header("request-id"));
}

#[tokio::test]
async fn a_tool_whose_schema_cannot_be_compiled_is_left_out_and_named() {
    let wrong = json!({"type": "object", "properties": {"p": {"type": "string", "minLength": "x"}}});
    let right = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    let tools = [("broken", &wrong), ("fine", &right)].map(|(name, schema)| {
        (
            json!({"type": "function", "function": {"name": name, "parameters": schema}}),
            json!({"name": name, "input_schema": schema}),
        )
    });
    let functions: Vec<&Value> = tools.iter().map(|(function, _)| function).collect();
    let inputs: Vec<&Value> = tools.iter().map(|(_, tool)| tool).collect();
    let messages = json!([say("user", "a")]);
    let chat = json!({"messages": messages, "tools": functions, "tool_choice": "required"});
    let any = json!({"type": "any"});
    let anthropic = json!({"messages": messages, "max_tokens": 9, "tools": inputs, "tool_choice": any});
    let named = json!({"type": "function", "function": {"name": "fine"}});
    let one = json!({"messages": messages, "tools": functions, "tool_choice": named});
    for format in ["json", "hermes", "mistral_v11", "qwen3_coder", "lfm2"] {
        let limits = RequestLimits { tool_format: Some(format.parse().unwrap()), ..RequestLimits::default() };
        let server =
            Server::serving(&test_support::assets(), Script::Say("x".into()), limits, HttpConfig::default());
        for (path, body) in [("/v1/chat/completions", &chat), ("/v1/messages", &anthropic)] {
            let reply = server.post(path, body.clone()).await;
            assert_eq!(reply.status.as_u16(), 200, "{format} {path}: {}", reply.body);
            // In tags, strings are taken as they are, so their schemas are not compiled.
            if format != "qwen3_coder" {
                let ignored = reply.header("x-millrace-ignored");
                assert_eq!(ignored, "tools.broken.parameters", "{format} {path}");
            }
        }
        let reply = server.post("/v1/chat/completions", one.clone()).await;
        assert_eq!(reply.status.as_u16(), 200, "{format}: {}", reply.body);
        assert!(reply.headers.get("x-millrace-ignored").is_none(), "{format}");
    }
}

/// A schema that exceeds a limit by itself is left out in the same way.
#[tokio::test]
async fn a_tool_whose_schema_exceeds_a_limit_is_left_out_and_named() {
    let tool = |name: &str, count: u64| {
        let list = json!({"type": "array", "items": {"type": "integer"}, "minItems": count});
        let parameters = json!({"type": "object", "properties": {"list": list}, "required": ["list"]});
        json!({"type": "function", "function": {"name": name, "parameters": parameters}})
    };
    let tools = [tool("huge", 1_000_000), tool("fine", 2)];
    let body = json!({"messages": [say("user", "a")], "tools": tools, "tool_choice": "required"});
    for format in ["hermes", "mistral_v11", "qwen3_coder"] {
        let limits = RequestLimits { tool_format: Some(format.parse().unwrap()), ..RequestLimits::default() };
        let server =
            Server::serving(&test_support::assets(), Script::Say("x".into()), limits, HttpConfig::default());
        let reply = server.post("/v1/chat/completions", body.clone()).await;
        assert_eq!(reply.status.as_u16(), 200, "{format}: {}", reply.body);
        assert_eq!(reply.header("x-millrace-ignored"), "tools.huge.parameters", "{format}");
    }
}
