//! Reasoning that is separated from the answer, in all APIs with messages.

use millrace_answers::reasoning::ReasoningParser;
use serde_json::{Value, json};

use super::{HttpConfig, RequestLimits, Script, Server, tools::prompt};
use crate::test_support::{self, EOS};

const CHAT: &str = "/v1/chat/completions";

/// A template that writes reasoning in `<think>` and opens it if `enable_thinking` asks for it.
const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content or '' }}\
{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}; {% endfor %}\
{% if tools %}tools; {% endif %}{% if add_generation_prompt %}assistant: {% if enable_thinking %}<think>\n{% endif %}{% endif %}";

/// A template with channels.
const CHANNELS: &str = "{% for m in messages %}<|start|>{{ m.role }}<|channel|>final<|message|>{{ m.content }}<|end|>{% endfor %}\
<|start|>assistant{# <|channel|>analysis #}";

fn server_with(template: &str, says: &str, limits: RequestLimits) -> Server {
    let assets = test_support::assets_with_template(template);
    Server::serving(&assets, Script::Say(says.into()), limits, HttpConfig::default())
}

fn server(says: &str) -> Server {
    server_with(TEMPLATE, says, RequestLimits::default())
}

fn chat(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

const ANSWER: &str = "<think>\nWhy?\n</think>\n\nBecause.";

#[tokio::test]
async fn a_chat_separates_the_reasoning() {
    let server = server(ANSWER);
    let body = server.post(CHAT, chat(json!({}))).await.json();
    let message = &body["choices"][0]["message"];
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("Why?"), &json!("Because.")));
    // One token per byte, from the end of the opening mark on.
    assert_eq!(body["usage"]["completion_tokens_details"]["reasoning_tokens"], ">\nWhy?\n</think>".len());

    let asked = chat(json!({"stream": true, "stream_options": {"include_usage": true}}));
    let chunks = server.post(CHAT, asked).await.chunks();
    let joined = |field: &str| -> String {
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"][field].as_str()).collect()
    };
    assert_eq!((joined("reasoning_content"), joined("content")), ("Why?".into(), "Because.".into()));
    let usage = &chunks.last().unwrap()["usage"];
    assert_eq!(usage["completion_tokens_details"], body["usage"]["completion_tokens_details"]);
}

#[tokio::test]
async fn the_prompt_may_open_the_reasoning() {
    let mut server = server("Why?</think>Because.");
    for (more, thinks) in [
        (json!({"chat_template_kwargs": {"enable_thinking": true}}), true),
        (json!({"chat_template_kwargs": {"thinking": true}}), true),
        (json!({"reasoning_effort": "high"}), true),
        (json!({"reasoning_effort": "none"}), false),
        (json!({}), false),
    ] {
        let body = server.post(CHAT, chat(more.clone())).await.json();
        let message = &body["choices"][0]["message"];
        let expected = if thinks { "Because." } else { "Why?</think>Because." };
        assert_eq!(message["content"], expected, "{more}");
        assert_eq!(message["reasoning_content"].as_str(), thinks.then_some("Why?"));
        assert_eq!(prompt(&mut server).await.ends_with("<think>\n"), thinks);
    }
}

#[tokio::test]
async fn an_answer_that_ends_within_the_reasoning_has_no_content() {
    let server = server(ANSWER);
    let body = server.post(CHAT, chat(json!({"max_tokens": 10}))).await.json();
    let choice = &body["choices"][0];
    assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!("length"), &Value::Null));
    assert_eq!(choice["message"]["reasoning_content"], "Wh");
}

#[tokio::test]
async fn stop_strings_end_the_answer_and_not_the_reasoning() {
    let server = server("<think>a END b</think>c END d");
    for stream in [false, true] {
        let reply = server.post(CHAT, chat(json!({"stop": "END", "stream": stream}))).await;
        let messages: Vec<Value> = match stream {
            false => vec![reply.json()["choices"][0]["message"].clone()],
            true => reply.chunks().iter().map(|chunk| chunk["choices"][0]["delta"].clone()).collect(),
        };
        let joined = |field: &str| -> String {
            messages.iter().filter_map(|message| message[field].as_str()).collect()
        };
        assert_eq!((joined("reasoning_content"), joined("content")), ("a END b".into(), "c ".into()));
    }
}

#[tokio::test]
async fn the_splitting_can_be_turned_off_and_forced() {
    let limits = |reasoning: &str| RequestLimits {
        reasoning: reasoning.parse::<ReasoningParser>().unwrap(),
        ..RequestLimits::default()
    };
    let off = server_with(TEMPLATE, ANSWER, limits("none"));
    let body = off.post(CHAT, chat(json!({}))).await.json();
    assert_eq!(body["choices"][0]["message"]["content"], ANSWER);
    assert!(body["usage"].get("completion_tokens_details").is_none());
    let forced = server_with("{{ messages[0].content }}", "[THINK]a[/THINK]b", limits("mistral"));
    let body = forced.post(CHAT, chat(json!({}))).await.json();
    assert_eq!(body["choices"][0]["message"]["reasoning_content"], "a");
}

#[tokio::test]
async fn calls_follow_the_reasoning() {
    let says =
        "<think>I <tool_call> it.</think>\n<tool_call>{\"name\": \"get\", \"arguments\": {}}</tool_call>";
    let mut server = server(says);
    let tool = json!({"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}});
    for choice in ["auto", "required"] {
        let body = server.post(CHAT, chat(json!({"tools": [tool], "tool_choice": choice}))).await.json();
        let message = &body["choices"][0]["message"];
        assert_eq!(message["reasoning_content"], "I <tool_call> it.", "{body}");
        assert_eq!(message["tool_calls"][0]["function"]["name"], "get");
        assert_eq!(body["choices"][0]["finish_reason"], "tool_calls");
        let mask = server.engine.requests.recv().await.unwrap().mask.unwrap();
        let allowed = |byte: u8| mask[usize::from(byte) / 32] >> (byte % 32) & 1 == 1;
        // Both the reasoning and a call begin with a tag.
        assert_eq!((allowed(b'<'), allowed(b'a')), (true, choice == "auto"));
    }
}

#[tokio::test]
async fn a_format_constrains_the_answer_after_the_reasoning() {
    let mut server = server("Why?</think>{}");
    let format = json!({"type": "json_object"});
    for (thinks, bytes) in [(true, "a{<"), (false, "{<")] {
        let more = json!({"response_format": format, "chat_template_kwargs": {"enable_thinking": thinks}});
        server.post(CHAT, chat(more)).await;
        let mask = server.engine.requests.recv().await.unwrap().mask.unwrap();
        let allowed = |id: u32| mask[id as usize / 32] >> (id % 32) & 1 == 1;
        let found: String = "a{<".chars().filter(|&c| allowed(u32::from(c))).collect();
        assert_eq!(found, bytes);
        // An answer may end within its reasoning, but it may not be empty.
        assert_eq!(allowed(EOS), thinks);
    }
}

#[tokio::test]
async fn a_response_has_an_item_for_the_reasoning() {
    let mut server = server(ANSWER);
    let body = server.post("/v1/responses", json!({"input": "hi"})).await.json();
    let output = &body["output"];
    assert_eq!((&output[0]["type"], &output[0]["summary"]), (&json!("reasoning"), &json!([])));
    assert_eq!(output[0]["content"], json!([{"type": "reasoning_text", "text": "Why?"}]));
    assert_eq!(output[1]["content"][0]["text"], "Because.");
    assert!(body["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 10);
    prompt(&mut server).await;

    let events = server.post("/v1/responses", json!({"input": "hi", "stream": true})).await.named_events();
    let kinds: Vec<&str> = events.iter().map(|(kind, _)| kind.as_str()).collect();
    let at =
        |kind: &str| kinds.iter().position(|k| *k == kind).unwrap_or_else(|| panic!("{kind} in {kinds:?}"));
    assert!(at("response.reasoning_text.delta") < at("response.reasoning_text.done"));
    assert!(at("response.reasoning_text.done") < at("response.output_text.delta"));
    let joined: String = events
        .iter()
        .filter(|(kind, _)| kind == "response.reasoning_text.delta")
        .filter_map(|(_, event)| event["delta"].as_str())
        .collect();
    assert_eq!(joined, "Why?");
    prompt(&mut server).await;

    // The items of an answer are input of the next one.
    let mut input = vec![json!({"role": "user", "content": "hi"})];
    input.extend(output.as_array().unwrap().iter().cloned());
    input.push(json!({"role": "user", "content": "go on"}));
    server.post("/v1/responses", json!({"input": input})).await;
    let text = prompt(&mut server).await;
    assert!(text.contains("assistant: <think>Why?</think>Because.; user: go on"), "{text}");
}

#[tokio::test]
async fn a_message_has_a_block_for_the_thinking() {
    let mut server = server(ANSWER);
    let ask =
        |messages: Value, stream: bool| json!({"max_tokens": 100, "messages": messages, "stream": stream});
    let user = |text: &str| json!({"role": "user", "content": text});
    let body = server.post("/v1/messages", ask(json!([user("hi")]), false)).await.json();
    let signature = body["content"][0]["signature"].clone();
    assert!(!signature.as_str().unwrap().is_empty(), "{body}");
    let expected = json!([{"type": "thinking", "thinking": "Why?", "signature": signature}, {"type": "text", "text": "Because."}]);
    assert_eq!(body["content"], expected);
    prompt(&mut server).await;

    let events = server.post("/v1/messages", ask(json!([user("hi")]), true)).await.named_events();
    let deltas: Vec<&Value> = events.iter().map(|(_, event)| &event["delta"]).collect();
    let joined: String = deltas
        .iter()
        .filter(|delta| delta["type"] == "thinking_delta")
        .filter_map(|delta| delta["thinking"].as_str())
        .collect();
    assert_eq!(joined, "Why?");
    // The signature is the last delta of its block.
    let at = deltas.iter().position(|delta| delta["type"] == "signature_delta").unwrap();
    assert_eq!(deltas[at]["signature"], signature);
    assert_eq!(
        (&deltas[at - 1]["type"], &events[at + 1].0),
        (&json!("thinking_delta"), &"content_block_stop".to_owned())
    );
    let starts: Vec<&Value> = events
        .iter()
        .filter(|(kind, _)| kind == "content_block_start")
        .map(|(_, event)| &event["content_block"]["type"])
        .collect();
    assert_eq!(starts, ["thinking", "text"]);
    prompt(&mut server).await;

    let turns = json!([user("hi"), {"role": "assistant", "content": expected}, user("go on")]);
    server.post("/v1/messages", ask(turns, false)).await;
    let text = prompt(&mut server).await;
    assert!(text.contains("assistant: <think>Why?</think>Because.; user: go on"), "{text}");
    let enabled = json!({"max_tokens": 10, "messages": [user("hi")], "thinking": {"type": "enabled", "budget_tokens": 1024}});
    server.post("/v1/messages", enabled).await;
    assert!(prompt(&mut server).await.ends_with("<think>\n"));
}

#[tokio::test]
async fn channels_are_separated() {
    let says = "<|channel|>analysis<|message|>Why END?<|end|><|start|>assistant<|channel|>final<|message|>Because END.";
    let server = server_with(CHANNELS, says, RequestLimits::default());
    for (more, content) in [(json!({}), "Because END."), (json!({"stop": "END"}), "Because ")] {
        let body = server.post(CHAT, chat(more)).await.json();
        let message = &body["choices"][0]["message"];
        assert_eq!(
            (&message["reasoning_content"], &message["content"]),
            (&json!("Why END?"), &json!(content))
        );
    }
    let call = "<|channel|>commentary to=functions.get <|constrain|>json<|message|>{\"n\": 1}<|call|>";
    let server = server_with(CHANNELS, call, RequestLimits::default());
    let tool = json!({"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}});
    let body = server.post(CHAT, chat(json!({"tools": [tool]}))).await.json();
    assert_eq!(
        body["choices"][0]["message"]["tool_calls"][0]["function"],
        json!({"name": "get", "arguments": "{\"n\": 1}"})
    );
}
