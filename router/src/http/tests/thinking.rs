//! Budgets of the reasoning, in the spellings of all APIs with messages, and calls within the
//! reasoning.

use serde_json::{Value, json};

use super::{HttpConfig, RequestLimits, Script, Server};
use crate::test_support;

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

/// A template that always opens the reasoning.
const OPEN: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}; {% endfor %}\
{% if tools %}<tool_call> tools; {% endif %}assistant: <think>\n{# </think> #}";
/// A template that reads the variables for thinking.
const CLOSES: &str = "{% for m in messages %}{{ m.content }}; {% endfor %}assistant: <think>\n\
{% if thinking_budget is defined %}budget {{ thinking_budget }}\n{% endif %}{% if enable_thinking is false %}</think>\n{% endif %}";
/// A template with channels.
const CHANNELS: &str = "{% for m in messages %}<|start|>{{ m.role }}<|channel|>final<|message|>{{ m.content }}<|end|>{% endfor %}\
<|start|>assistant{# <|channel|>analysis #}";

fn serving(template: &str, says: &str, limits: RequestLimits) -> Server {
    let assets = test_support::assets_with_template(template);
    Server::serving(&assets, Script::Obey(says.into()), limits, HttpConfig::default())
}

fn server(says: &str) -> Server {
    serving(OPEN, says, RequestLimits::default())
}

fn request(path: &str, more: Value) -> Value {
    let messages = json!([{"role": "user", "content": "hi"}]);
    let mut body = match path {
        RESPONSES => json!({"input": "hi", "max_output_tokens": 200}),
        _ => json!({"messages": messages, "max_tokens": 200}),
    };
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Returns the reasoning and the text of a response of any of the APIs.
fn parts(path: &str, body: &Value) -> (String, String) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of = |list: &Value, kind: &str| {
        let found = list.as_array().unwrap().iter().find(|item| item["type"] == kind).cloned();
        found.unwrap_or_default()
    };
    match path {
        CHAT => {
            let message = &body["choices"][0]["message"];
            (text(&message["reasoning_content"]), text(&message["content"]))
        }
        RESPONSES => {
            let part = |kind| text(&of(&body["output"], kind)["content"][0]["text"]);
            (part("reasoning"), part("message"))
        }
        _ => {
            let content = &body["content"];
            (text(&of(content, "thinking")["thinking"]), text(&of(content, "text")["text"]))
        }
    }
}

#[tokio::test]
async fn the_reasoning_ends_at_its_budget() {
    let server = server("Why not? Because.");
    for (path, budget) in [
        (CHAT, json!({"thinking_token_budget": 7})),
        (CHAT, json!({"reasoning_budget": 7})),
        (CHAT, json!({"thinking_budget": 7})),
        (CHAT, json!({"reasoning": {"max_tokens": 7}})),
        (CHAT, json!({"thinking_token_budget": 7, "reasoning": {"max_tokens": 7}})),
        (RESPONSES, json!({"reasoning": {"max_tokens": 7}})),
        (RESPONSES, json!({"thinking_token_budget": 7})),
        (MESSAGES, json!({"thinking": {"type": "enabled", "budget_tokens": 7}})),
        (MESSAGES, json!({"thinking_token_budget": 7})),
    ] {
        let reply = server.post(path, request(path, budget.clone())).await;
        assert!(!reply.headers.contains_key("x-millrace-ignored"), "{budget}");
        let read = parts(path, &reply.json());
        assert_eq!(read, ("Why not".to_owned(), "? Because.".to_owned()), "{path} {budget}");
    }
    for (path, none) in [
        (CHAT, json!({"reasoning_effort": "none"})),
        (CHAT, json!({"reasoning": {"effort": "none"}})),
        (CHAT, json!({"reasoning": {"enabled": false}})),
        (CHAT, json!({"reasoning_budget": 0})),
        (RESPONSES, json!({"reasoning": {"effort": "none"}})),
        (MESSAGES, json!({"thinking": {"type": "disabled"}})),
    ] {
        let read = parts(path, &server.post(path, request(path, none.clone())).await.json());
        assert_eq!(read, (String::new(), "Why not? Because.".to_owned()), "{path} {none}");
    }
    for unlimited in [json!({}), json!({"reasoning_budget": -1}), json!({"reasoning_effort": "high"})] {
        let body = server.post(CHAT, request(CHAT, unlimited)).await.json();
        assert_eq!(parts(CHAT, &body), ("Why not? Because.".to_owned(), String::new()));
        // The model ended within its reasoning.
        assert_eq!(body["choices"][0]["finish_reason"], "stop");
    }
}

#[tokio::test]
async fn info_tells_how_the_reasoning_is_controlled() {
    let limits = RequestLimits { default_thinking_budget: Some(3), ..RequestLimits::default() };
    let control = |format: &str, switch: bool, default: Option<u32>| json!({"format": format, "switch": switch, "budget": true, "default_budget": default});
    let only_a_switch = "{% if enable_thinking %}Think! {% endif %}{{ messages }}";
    for (template, limits, expected) in [
        (test_support::TEMPLATE, limits.clone(), Value::Null),
        (OPEN, RequestLimits::default(), control("think", false, None)),
        (CLOSES, limits.clone(), control("think", true, Some(3))),
        (CHANNELS, RequestLimits::default(), control("harmony", false, None)),
        (
            only_a_switch,
            limits,
            json!({"format": null, "switch": true, "budget": false, "default_budget": null}),
        ),
    ] {
        let info = serving(template, "x", limits).get("/info").await.json();
        assert_eq!(info["thinking"], expected, "{template}");
    }
}

#[tokio::test]
async fn raw_prompts_have_a_budget() {
    let server = server("Why not? Because.");
    // The client has rendered the template itself.
    let inputs = "user: hi; assistant: <think>\n";
    let parameters = json!({"thinking_token_budget": 7, "max_new_tokens": 200});
    let body = server.post("/generate", json!({"inputs": inputs, "parameters": parameters})).await.json();
    assert_eq!(body["generated_text"], "Why not\n</think>? Because.", "{body}");
    let asked = json!({"prompt": inputs, "max_tokens": 200, "thinking_token_budget": 7});
    let body = server.post("/v1/completions", asked).await.json();
    assert_eq!(body["choices"][0]["text"], "Why not\n</think>? Because.", "{body}");
    let ids = json!({"prompt": [65, 66], "max_tokens": 9, "thinking_token_budget": 7});
    let plain = json!({"prompt": "a", "max_tokens": 9, "thinking_token_budget": 7});
    for (server, asked) in [(&server, ids), (&Server::saying("x"), plain)] {
        let reply = server.post("/v1/completions", asked).await;
        assert_eq!(
            (reply.status.as_u16(), &reply.json()["error"]["param"]),
            (400, &json!("thinking_token_budget"))
        );
    }
}

#[tokio::test]
async fn wrong_budgets_are_refused() {
    let server = server("x");
    for (path, budget, field) in [
        (CHAT, json!({"thinking_token_budget": -2}), "thinking_token_budget"),
        (CHAT, json!({"thinking_token_budget": 7, "reasoning_budget": 8}), "reasoning_budget"),
        (RESPONSES, json!({"reasoning": {"max_tokens": -7}}), "reasoning.max_tokens"),
        (MESSAGES, json!({"thinking": {"type": "enabled", "budget_tokens": -7}}), "thinking.budget_tokens"),
    ] {
        let reply = server.post(path, request(path, budget.clone())).await;
        assert_eq!(reply.status.as_u16(), 400, "{path} {budget}");
        let error = reply.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(error.contains(&format!("`{field}`")), "{error}");
    }
    // A model without reasoning has no use for a budget.
    let plain = Server::saying("x");
    let reply = plain.post(CHAT, request(CHAT, json!({"thinking_token_budget": 7}))).await;
    assert_eq!(reply.header("x-millrace-ignored"), "thinking_token_budget");
}

#[tokio::test]
async fn the_server_has_a_default_and_a_message() {
    let limits = || RequestLimits {
        default_thinking_budget: Some(3),
        thinking_budget_message: Some("!Stop.".into()),
        ..RequestLimits::default()
    };
    let server = serving(OPEN, "Why not?", limits());
    let read = parts(CHAT, &server.post(CHAT, request(CHAT, json!({}))).await.json());
    assert_eq!(read, ("Why!Stop.".to_owned(), " not?".to_owned()));
    let read = parts(CHAT, &server.post(CHAT, request(CHAT, json!({"reasoning_budget": -1}))).await.json());
    assert_eq!(read, ("Why not?".to_owned(), String::new()));
    // The answer fits, however large the budget is.
    let more = json!({"max_tokens": 64, "thinking_token_budget": 1000});
    let long = serving(OPEN, &"x".repeat(100), RequestLimits::default());
    let body = long.post(CHAT, request(CHAT, more)).await.json();
    assert_eq!(parts(CHAT, &body), ("x".repeat(47), "x".repeat(8)));
    assert_eq!(body["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn a_template_may_read_the_budget() {
    let mut server = serving(CLOSES, "Why not?", RequestLimits::default());
    for (more, end) in [
        (json!({"thinking_token_budget": 512}), "<think>\nbudget 512\n"),
        (json!({"thinking_token_budget": 0}), "<think>\nbudget 0\n</think>\n"),
        (json!({"reasoning_effort": "none"}), "<think>\nbudget 0\n</think>\n"),
        (json!({}), "<think>\n"),
    ] {
        server.post(CHAT, request(CHAT, more.clone())).await;
        let text = super::tools::prompt(&mut server).await;
        assert!(text.ends_with(end), "{more}: {text}");
    }
}

#[tokio::test]
async fn channels_have_a_budget() {
    let says = "<|channel|>analysis<|message|>Why not?";
    let server = serving(CHANNELS, says, RequestLimits::default());
    let read =
        parts(CHAT, &server.post(CHAT, request(CHAT, json!({"thinking_token_budget": 3}))).await.json());
    assert_eq!(read, ("Why".to_owned(), " not?".to_owned()));
}

#[tokio::test]
async fn the_reasoning_can_be_hidden() {
    let server = server("Why?</think>Because.");
    for (path, hidden) in [
        (CHAT, json!({"include_reasoning": false})),
        (CHAT, json!({"reasoning": {"exclude": true}})),
        (RESPONSES, json!({"include_reasoning": false})),
        (MESSAGES, json!({"include_reasoning": false})),
        (MESSAGES, json!({"thinking": {"type": "enabled", "display": "omitted"}})),
    ] {
        let body = server.post(path, request(path, hidden.clone())).await.json();
        assert_eq!(parts(path, &body), (String::new(), "Because.".to_owned()), "{path} {hidden}");
        assert!(!body.to_string().contains("Why"), "{body}");
    }
    let streamed = json!({"include_reasoning": false, "stream": true});
    let chunks = server.post(CHAT, request(CHAT, streamed)).await.chunks();
    assert!(chunks.iter().all(|chunk| chunk["choices"][0]["delta"].get("reasoning_content").is_none()));
}

fn tool() -> Value {
    let parameters = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    json!({"type": "function", "function": {"name": "get", "parameters": parameters}})
}

const CALL: &str = "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"n\": 1}}\n</tool_call>";

/// Returns the reasoning, the text, and the arguments of the calls of an answer and of its stream,
/// which are the same.
async fn read(says: &str, more: Value) -> (String, String, Vec<String>) {
    let server = server(says);
    let mut asked = request(CHAT, more);
    asked["tools"] = json!([tool()]);
    let body = server.post(CHAT, asked.clone()).await.json();
    let message = &body["choices"][0]["message"];
    let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
    let calls: Vec<String> =
        calls.iter().map(|call| call["function"]["arguments"].as_str().unwrap().to_owned()).collect();
    let reason = if calls.is_empty() { "stop" } else { "tool_calls" };
    assert_eq!(body["choices"][0]["finish_reason"], reason, "{body}");
    asked["stream"] = json!(true);
    let chunks = server.post(CHAT, asked).await.chunks();
    let delta = |chunk: &Value| chunk["choices"][0]["delta"].clone();
    let joined = |field: &str| -> String {
        chunks.iter().filter_map(|chunk| delta(chunk)[field].as_str().map(str::to_owned)).collect()
    };
    let arguments: String = chunks
        .iter()
        .flat_map(|chunk| delta(chunk)["tool_calls"].as_array().cloned().unwrap_or_default())
        .map(|call| call["function"]["arguments"].as_str().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(arguments, calls.concat());
    let (reasoning, content) = parts(CHAT, &body);
    assert_eq!((joined("reasoning_content"), joined("content")), (reasoning.clone(), content.clone()));
    (reasoning, content, calls)
}

#[tokio::test]
async fn a_call_in_unclosed_reasoning_ends_it() {
    let one = || vec!["{\"n\": 1}".to_owned()];
    let own = |reasoning: &str, content: &str, calls| (reasoning.to_owned(), content.to_owned(), calls);
    assert_eq!(read(&format!("I look.\n{CALL}"), json!({})).await, own("I look.", "", one()));
    let two = [one(), one()].concat();
    assert_eq!(read(&format!("I look.\n{CALL}\n{CALL}\n"), json!({})).await, own("I look.", "", two));
    // A call that is only rehearsed.
    let rehearsed = format!("Perhaps {CALL}?");
    let expected = own(&rehearsed, "No.", vec![]);
    assert_eq!(read(&format!("{rehearsed}\n</think>\n\nNo."), json!({})).await, expected);
    let expected = own(&rehearsed, "", one());
    assert_eq!(read(&format!("{rehearsed}</think>{CALL}\n"), json!({})).await, expected);
    // The mark alone, and a tool that is not known.
    for says in ["Is it <tool_call> x?", "<tool_call>\n{\"name\": \"other\", \"arguments\": {}}"] {
        assert_eq!(read(says, json!({})).await, own(says, "", vec![]));
    }
    // The answer may end within its reasoning, whatever its form must be afterwards.
    let format = json!({"response_format": {"type": "json_object"}});
    assert_eq!(read("Why?", format).await, own("Why?", "", vec![]));
}

#[tokio::test]
async fn a_call_without_its_arguments_is_no_call() {
    let says = format!("</think>{CALL}");
    let server = server(&says);
    let mut asked =
        request(MESSAGES, json!({"tools": [{"name": "get", "input_schema": {"type": "object"}}]}));
    // The answer ends after the name, or within the arguments.
    for length in [35, 53] {
        asked["max_tokens"] = json!(length);
        let body = server.post(MESSAGES, asked.clone()).await.json();
        assert_eq!(body["stop_reason"], "max_tokens");
        assert!(!body.to_string().contains("tool_use"), "{body}");
    }
    asked["max_tokens"] = json!(35);
    asked["stream"] = json!(true);
    let events = server.post(MESSAGES, asked).await.named_events();
    assert!(events.iter().all(|(_, event)| event["content_block"]["type"] != "tool_use"));
    let mut asked = request(RESPONSES, json!({"max_output_tokens": 53}));
    asked["tools"] = json!([{"type": "function", "name": "get", "parameters": {"type": "object"}}]);
    let body = server.post(RESPONSES, asked).await.json();
    let call =
        &body["output"].as_array().unwrap().iter().find(|item| item["type"] == "function_call").unwrap();
    assert_eq!((&body["status"], &call["status"]), (&json!("incomplete"), &json!("incomplete")));
}
