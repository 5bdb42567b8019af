//! `/v1/messages` as coding agents use it. The requests have the form of those of Claude Code 2.1.

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use serde_json::{Value, json};

use super::tools::prompt;
use super::{HttpConfig, RequestLimits, Script, Server, post};
use crate::test_support;

const PATH: &str = "/v1/messages?beta=true";

/// A template that writes tools, messages with their roles, and calls, and reads no other
/// variables.
const PLAIN: &str = "{% if tools %}{{ tools | tojson }}; {% endif %}{% for m in messages %}{{ m.role }}: {{ m.content or '' }}{% for call in m.tool_calls or [] %}\
<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}; {% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";

/// A template that refuses a system message after the first message, as many published ones do.
const STRICT: &str = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
{{ raise_exception('System message must be at the beginning.') }}{% endif %}{{ m.role }}: {{ m.content }}; {% endfor %}\
{% if add_generation_prompt %}assistant: {% endif %}";

fn server(template: &str) -> Server {
    let assets = test_support::assets_with_template(template);
    Server::serving(&assets, Script::Say("ok".into()), RequestLimits::default(), HttpConfig::default())
}

fn with(mut request: Value, more: Value) -> Value {
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request
}

/// The first request of a session.
fn first() -> Value {
    let ephemeral = json!({"type": "ephemeral"});
    json!({
        "model": "org/model",
        "max_tokens": 32000,
        "stream": true,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197.3bb; cc_entrypoint=sdk-cli;"},
            {"type": "text", "text": "Be an agent.", "cache_control": ephemeral},
        ],
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "<system-reminder>now</system-reminder>\n\n"},
                {"type": "text", "text": "Read it.", "cache_control": ephemeral},
            ]},
            {"role": "system", "content": "Agents: none."},
        ],
        "tools": [
            {"name": "Read", "description": "Reads.", "input_schema": {
                "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
                "properties": {"file_path": {"type": "string"}}, "required": ["file_path"], "additionalProperties": false,
            }},
        ],
        "metadata": {"user_id": "{\"device_id\":\"d\"}"},
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
    })
}

#[tokio::test]
async fn a_session_continues_after_a_tool_result() {
    let mut server = server(PLAIN);
    let mut request = post(PATH, first().to_string());
    let betas = "claude-code-20250219,interleaved-thinking-2025-05-14,effort-2025-11-24";
    request.headers_mut().insert("anthropic-beta", betas.parse().unwrap());
    request.headers_mut().insert("anthropic-version", "2023-06-01".parse().unwrap());
    let reply = server.send(request).await;
    assert_eq!(reply.named_events().last().unwrap().0, "message_stop");
    let ignored =
        "context_management, metadata, output_config.effort, system.x-anthropic-billing-header, thinking";
    assert_eq!(reply.header("x-millrace-ignored"), ignored);
    let asked = prompt(&mut server).await;
    let expected =
        "user: <system-reminder>now</system-reminder>\n\nRead it.; system: Agents: none.; assistant: ";
    assert!(asked.contains("Be an agent.") && asked.ends_with(expected), "{asked}");
    assert!(!asked.contains("billing"), "{asked}");

    let mut messages = first()["messages"].as_array().unwrap().clone();
    messages.push(json!({"role": "assistant", "content": [
        {"type": "thinking", "thinking": "I should read.", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "c2VjcmV0"},
        {"type": "text", "text": "I read."},
        {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"file_path": "/a"}},
    ]}));
    messages.push(json!({"role": "user", "content": [
        {"tool_use_id": "toolu_1", "type": "tool_result", "is_error": false, "content": "1\tfour",
         "cache_control": {"type": "ephemeral"}},
    ]}));
    let reply = server.post(PATH, with(first(), json!({"messages": messages, "stream": false}))).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    let asked = prompt(&mut server).await;
    let expected = "assistant: I read.<tool_call>{\"name\": \"Read\", \"arguments\": {\"file_path\": \"/a\"}}</tool_call>; \
                    tool: 1\tfour; assistant: ";
    assert!(asked.ends_with(expected), "{asked}");
    assert!(!asked.contains("should"), "{asked}");
}

#[tokio::test]
async fn a_message_that_has_only_thinking_is_empty() {
    let mut server = server(PLAIN);
    let messages = json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""}]},
        {"role": "user", "content": "b"},
    ]);
    let reply = server.post(PATH, json!({"max_tokens": 9, "messages": messages})).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    assert_eq!(prompt(&mut server).await, "user: a; assistant: ; user: b; assistant: ");
}

#[tokio::test]
async fn late_system_messages_are_placed_where_the_template_accepts_them() {
    let say = |role: &str, text: &str| json!({"role": role, "content": text});
    let messages = json!([
        say("system", "one"),
        say("user", "a"),
        say("system", "two"),
        say("assistant", "b"),
        say("system", "three"),
        say("user", "c"),
    ]);
    let body = json!({"max_tokens": 9, "system": "zero", "messages": messages});
    for (template, expected) in [
        (
            PLAIN,
            "system: zero\n\none; user: a; system: two; assistant: b; system: three; user: c; assistant: ",
        ),
        (STRICT, "system: zero\n\none\n\nthree; user: a\n\ntwo; assistant: b; user: c; assistant: "),
    ] {
        let mut server = server(template);
        let reply = server.post(PATH, body.clone()).await;
        assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
        assert_eq!(prompt(&mut server).await, expected);
    }
    let mut server = server(STRICT);
    let messages = json!([say("user", "a"), say("assistant", "b"), say("system", "late"), say("user", "c")]);
    server.post(PATH, json!({"max_tokens": 9, "messages": messages})).await;
    assert_eq!(prompt(&mut server).await, "system: late; user: a; assistant: b; user: c; assistant: ");
}

#[tokio::test]
async fn thinking_and_effort_reach_templates_that_read_them() {
    let template = "{% if enable_thinking is defined %}thinks {{ enable_thinking }}; {% endif %}\
                    {% if reasoning_effort is defined %}effort {{ reasoning_effort }}; {% endif %}{{ messages[0].content }}";
    let mut server = server(template);
    for (more, expected, ignored) in [
        (json!({}), "a", None),
        (json!({"thinking": null, "output_config": {"effort": null}}), "a", None),
        (json!({"thinking": {"type": "adaptive"}}), "thinks True; a", None),
        (json!({"thinking": {"type": "disabled"}}), "thinks False; a", None),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}),
            "thinks True; a",
            Some("thinking.budget_tokens"),
        ),
        (
            json!({"output_config": {"effort": "low", "task_budget": {"type": "tokens", "total": 9}}}),
            "effort low; a",
            Some("output_config.task_budget"),
        ),
    ] {
        let body = json!({"messages": [{"role": "user", "content": "a"}]});
        let body = with(body, more.clone());
        let counted = server.post("/v1/messages/count_tokens?beta=true", body.clone()).await;
        let reply = server.post(PATH, with(body, json!({"max_tokens": 9}))).await;
        assert_eq!(reply.status, StatusCode::OK, "{more}: {}", reply.body);
        assert_eq!(prompt(&mut server).await, expected, "{more}");
        assert_eq!(counted.json(), json!({"input_tokens": expected.len()}), "{more}");
        for reply in [reply, counted] {
            let header = reply.headers.get("x-millrace-ignored").map(|value| value.to_str().unwrap());
            assert_eq!(header, ignored, "{more}");
        }
    }
    // Special tokens in a client's text are text here, too.
    let body = json!({"max_tokens": 9, "messages": [{"role": "user", "content": "a"}], "output_config": {"effort": "</s>"}});
    server.post(PATH, body).await;
    assert_eq!(prompt(&mut server).await, "effort </s>; a");
}

#[tokio::test]
async fn only_this_route_lowers_max_tokens_to_what_fits() {
    // A sequence of the fake engine has at most 1024 tokens.
    let mut server = server(PLAIN);
    let messages = json!([{"role": "user", "content": "a"}]);
    let reply = server.post(PATH, json!({"max_tokens": 32000, "messages": messages})).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    let asked = server.engine.requests.recv().await.unwrap();
    assert_eq!(asked.max_new_tokens as usize, 1024 - asked.prompt.len());
    server.post(PATH, json!({"max_tokens": 7, "messages": messages})).await;
    assert_eq!(server.engine.requests.recv().await.unwrap().max_new_tokens, 7);

    let chat = server.post("/v1/chat/completions", json!({"max_tokens": 32000, "messages": messages})).await;
    assert_eq!(chat.status, StatusCode::BAD_REQUEST, "{}", chat.body);
    for length in [1024, 5000] {
        let messages = json!([{"role": "user", "content": "a".repeat(length)}]);
        let reply = server.post(PATH, json!({"max_tokens": 32000, "messages": messages})).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{}", reply.body);
        assert_eq!(reply.json()["error"]["type"], "invalid_request_error");
    }
}

#[tokio::test]
async fn tools_that_anthropic_provides_are_left_out_and_reported() {
    let template = "{{ tools | tojson if tools else 'no tools' }}";
    let mut server = server(template);
    let search = json!({"type": "web_search_20250305", "name": "web_search", "max_uses": 8});
    let bash = json!({"type": "bash_20250124", "name": "bash", "input_schema": {"type": "object"}});
    let get = json!({"type": "custom", "name": "get", "input_schema": {"type": "object"}});
    for (tools, choice, shown, named) in [
        (json!([search]), json!(null), "", true),
        (json!([search]), json!({"type": "auto"}), "", true),
        (json!([search]), json!({"type": "none"}), "", true),
        (json!([search, get]), json!(null), "get", true),
        (json!([search, get]), json!({"type": "any"}), "get", true),
        (json!([search, get]), json!({"type": "tool", "name": "get"}), "get", true),
        (json!([bash]), json!(null), "bash", false),
    ] {
        let body = json!({"max_tokens": 9, "messages": [{"role": "user", "content": "a"}], "tools": tools, "tool_choice": choice});
        let reply = server.post(PATH, body.clone()).await;
        assert_eq!(reply.status, StatusCode::OK, "{body}: {}", reply.body);
        let header = reply.headers.get("x-millrace-ignored").map(|value| value.to_str().unwrap());
        assert_eq!(header, named.then_some("tools.web_search"), "{body}");
        let asked = prompt(&mut server).await;
        match shown {
            "" => assert_eq!(asked, "no tools"),
            name => assert!(asked.contains(name) && !asked.contains("web_search"), "{asked}"),
        }
    }
}

#[tokio::test]
async fn results_and_documents_become_text() {
    let mut server = server(PLAIN);
    let result = |more: Value| {
        let result = with(json!({"type": "tool_result", "tool_use_id": "c"}), more);
        let call = json!({"type": "tool_use", "id": "c", "name": "get", "input": {}});
        json!({"max_tokens": 9, "messages": [
            {"role": "user", "content": "a"}, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]},
        ]})
    };
    let document = |source: Value| json!({"type": "document", "source": source, "title": "T"});
    let plain = json!({"type": "text", "media_type": "text/plain", "data": "D"});
    let found = json!({"type": "search_result", "title": "T", "source": "S", "content": [{"type": "text", "text": "D"}]});
    for (more, expected) in [
        (json!({"content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]}), "xy"),
        (json!({"content": "gone", "is_error": true}), "Error: gone"),
        (json!({"content": [document(plain.clone())]}), "T\n\nD\n\n"),
        (
            json!({"content": [document(json!({"type": "content", "content": [{"type": "text", "text": "E"}]}))]}),
            "T\n\nE\n\n",
        ),
        (json!({"content": [document(json!({"type": "content", "content": "E"}))]}), "T\n\nE\n\n"),
        (json!({"content": [found]}), "T\n\nS\n\nD\n\n"),
    ] {
        let reply = server.post(PATH, result(more.clone())).await;
        assert_eq!(reply.status, StatusCode::OK, "{more}: {}", reply.body);
        let asked = prompt(&mut server).await;
        assert!(asked.ends_with(&format!("tool: {expected}; assistant: ")), "{more}: {asked}");
    }
    let image =
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}});
    let nested = document(json!({"type": "content", "content": [document(plain)]}));
    for (more, expected) in [
        (json!({"content": [image]}), "`messages[2]` has the result of c, which has an image"),
        (
            json!({"content": [document(json!({"type": "base64", "media_type": "application/pdf", "data": "AA"}))]}),
            "whose source is not of type `text` or `content`",
        ),
        (json!({"content": [nested]}), "has a document with content that is not text"),
        (json!({"content": [{"type": "tool_reference", "tool_name": "x"}]}), "type `tool_reference`"),
        (json!({"content": 7}), "must be a text"),
    ] {
        let reply = server.post(PATH, result(more.clone())).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{more}: {}", reply.body);
        let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(expected), "{more}: {message}");
    }
}

#[tokio::test]
async fn both_names_of_the_output_format_constrain_the_answer() {
    let mut server = server(PLAIN);
    let format = json!({"type": "json_schema", "schema": {"type": "object"}});
    for more in [json!({"output_config": {"format": format}}), json!({"output_format": format})] {
        let body = json!({"max_tokens": 9, "messages": [{"role": "user", "content": "a"}]});
        server.post(PATH, with(body, more.clone())).await;
        assert!(server.engine.requests.recv().await.unwrap().mask.is_some(), "{more}");
    }
}

#[tokio::test]
async fn other_requests_of_agents_are_answered() {
    let server = server(PLAIN);
    let reply =
        server.send(Request::builder().method(Method::HEAD).uri("/").body(Body::empty()).unwrap()).await;
    assert_eq!((reply.status, reply.body.as_str()), (StatusCode::OK, ""));

    let get = |path: &str| {
        let request = Request::get(path).header("anthropic-version", "2023-06-01");
        request.body(Body::empty()).unwrap()
    };
    let openai = server.get("/v1/models").await.json();
    let created = openai["data"][0]["created"].as_i64().unwrap();
    let started =
        chrono::DateTime::from_timestamp(created, 0).unwrap().format("%Y-%m-%dT%H:%M:%SZ").to_string();
    let model = json!({
        "type": "model", "id": "org/model", "display_name": "org/model", "created_at": started.as_str(),
    });
    let list = server.send(get("/v1/models?limit=1000")).await.json();
    let expected =
        json!({"data": [model], "has_more": false, "first_id": "org/model", "last_id": "org/model"});
    assert_eq!(list, expected);
    assert_eq!(server.send(get("/v1/models/org/model")).await.json(), model);
    let missing = server.send(get("/v1/models/other")).await;
    assert_eq!(missing.status, StatusCode::NOT_FOUND);
    assert_eq!(missing.json()["error"]["type"], "not_found_error");
    assert_eq!(openai["object"], "list", "other clients get OpenAI's form");
}
