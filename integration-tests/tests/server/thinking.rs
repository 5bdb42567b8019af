//! Tests budgets of the reasoning with the real binary and a template that opens the reasoning.

use std::io::Write;

use millrace_integration_tests::{Server, post, stream};
use serde_json::{Value, json};

/// The budget of the requests.
const BUDGET: u64 = 6;

/// Starts the demo model with a template that opens the reasoning.
fn start(flags: &[&str]) -> Server {
    let config = json!({"chat_template": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                                          <|im_start|>assistant\n<think>\n{# </think> #}"});
    let mut file = tempfile::Builder::new().suffix(".json").tempfile().unwrap();
    file.write_all(config.to_string().as_bytes()).unwrap();
    let path = file.path().to_str().unwrap().to_owned();
    Server::start(&[&["--tokenizer-config-path", &path], flags].concat())
}

fn ask(more: Value) -> Value {
    let messages = json!([{"role": "user", "content": "Tell me a story about a fox and a lantern."}]);
    let mut body = json!({"messages": messages, "max_tokens": 80, "temperature": 0});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Returns the message of a chat and the number of tokens of its reasoning.
fn chat(server: &Server, more: Value) -> (Value, u64) {
    let answer = post(&server.url("/v1/chat/completions"), &ask(more));
    assert_eq!(answer.status, 200, "{}", answer.body);
    let details = &answer.body["usage"]["completion_tokens_details"];
    (answer.body["choices"][0]["message"].clone(), details["reasoning_tokens"].as_u64().unwrap())
}

#[test]
fn a_budget_ends_the_reasoning_on_all_routes() {
    let server = start(&[]);
    // The answer does not end before 40 tokens, so that it would still be in its reasoning.
    let (free, _) = chat(&server, json!({"min_tokens": 40}));
    assert_eq!(free["content"], Value::Null, "{free}");
    let (limited, tokens) = chat(&server, json!({"min_tokens": 40, "thinking_token_budget": BUDGET}));
    let (reasoning, content) =
        (limited["reasoning_content"].as_str().unwrap(), limited["content"].as_str().unwrap());
    // The tokens of the closing mark count as well.
    assert!((BUDGET..BUDGET + 16).contains(&tokens), "{tokens}");
    assert!(
        free["reasoning_content"].as_str().unwrap().starts_with(reasoning) && !content.is_empty(),
        "{limited}"
    );
    let body = ask(json!({"min_tokens": 40, "thinking_token_budget": BUDGET, "stream": true}));
    let events: Vec<Value> = stream(&server.url("/v1/chat/completions"), &body).collect();
    let joined = |field: &str| -> String {
        events.iter().filter_map(|event| event["choices"][0]["delta"][field].as_str()).collect()
    };
    assert_eq!((joined("reasoning_content").as_str(), joined("content").as_str()), (reasoning, content));

    let thinking = json!({"type": "enabled", "budget_tokens": BUDGET});
    let message = post(&server.url("/v1/messages"), &ask(json!({"thinking": thinking}))).body;
    assert_eq!(message["content"][0]["thinking"], reasoning, "{message}");
    assert!(!message["content"][0]["signature"].as_str().unwrap().is_empty());
    let mut body = ask(json!({"reasoning": {"max_tokens": BUDGET}, "max_output_tokens": 80}));
    body["input"] = body["messages"].take();
    let response = post(&server.url("/v1/responses"), &body).body;
    assert_eq!(response["output"][0]["content"][0]["text"], reasoning, "{response}");
}

#[test]
fn an_answer_of_a_form_follows_the_limited_reasoning() {
    let server = start(&["--default-thinking-budget", &BUDGET.to_string()]);
    let schema = json!({"type": "object", "properties": {"age": {"type": "integer", "minimum": 1, "maximum": 99}},
                        "required": ["age"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "person", "schema": schema}});
    let (message, tokens) = chat(&server, json!({"response_format": format}));
    let value: Value = serde_json::from_str(message["content"].as_str().unwrap()).unwrap();
    assert!(value["age"].is_u64() && tokens >= BUDGET, "{message}");
    let function = json!({"name": "set_age", "parameters": schema});
    let more = json!({"tools": [{"type": "function", "function": function}], "tool_choice": "required"});
    let (message, tokens) = chat(&server, more);
    let call = &message["tool_calls"][0]["function"];
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(call["name"] == "set_age" && arguments["age"].is_u64() && tokens >= BUDGET, "{message}");
    let (message, _) = chat(&server, json!({"reasoning_effort": "none", "include_reasoning": false}));
    assert!(message.get("reasoning_content").is_none() && message["content"].is_string(), "{message}");
}
