//! The bytes of complete and streamed answers of every API, compared with a stored file. Clients
//! parse them, so a change of one byte must be intended.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use super::{HttpConfig, Reply, RequestLimits, Script, Server};
use crate::test_support;

/// Opens the reasoning in `<think>`, and has tools and calls in the style of Hermes.
const TEMPLATE: &str = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content or '' }}\
{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}{% endfor %}\
{% if enable_thinking %}<think>{% endif %}{% if false %}<think></think>{% endif %}";

const CALL: &str = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>";

/// Headers whose values are times.
const TIMES: [&str; 6] = [
    "x-compute-time",
    "x-total-time",
    "x-validation-time",
    "x-queue-time",
    "x-inference-time",
    "x-time-per-token",
];

/// A case: its name, what the engine does, the path, and the fields beside the prompt.
struct Case {
    name: &'static str,
    script: Script,
    path: &'static str,
    body: Value,
}

fn case(name: &'static str, script: Script, path: &'static str, body: Value) -> Case {
    Case { name, script, path, body }
}

fn says(text: &str) -> Script {
    Script::Say(text.into())
}

/// The requests of the chat APIs.
fn chat_cases() -> Vec<Case> {
    let (chat, responses, messages) = ("/v1/chat/completions", "/v1/responses", "/v1/messages");
    let function = json!({"name": "f", "parameters": {"type": "object"}});
    let chat_tools = json!([{"type": "function", "function": function}]);
    let response_tools = json!([{"type": "function", "name": "f", "parameters": {"type": "object"}}]);
    let message_tools = json!([{"name": "f", "input_schema": {"type": "object"}}]);
    let custom = json!([{"type": "custom", "custom": {"name": "f"}}]);
    let custom_call = says("<tool_call>{\"name\": \"f\", \"arguments\": {\"input\": \"x\"}}</tool_call>");
    let thought = || says("<think>p</think>q");
    let called = || Script::Say(format!("t{CALL}"));
    vec![
        case("text", says("ok"), chat, json!({})),
        case("two answers", says("ok"), chat, json!({"n": 2, "seed": 3, "temperature": 1})),
        case("reasoning", thought(), chat, json!({})),
        case("calls", called(), chat, json!({"tools": chat_tools})),
        case("a custom call", custom_call, chat, json!({"tools": custom})),
        case("a call that is cut off", called(), chat, json!({"tools": chat_tools, "max_tokens": 40})),
        case("log-probabilities", says("é"), chat, json!({"logprobs": true, "top_logprobs": 1})),
        case("ids", says("o"), chat, json!({"return_token_ids": true, "n": 2})),
        case("a stop string", says("o! k"), chat, json!({"stop": ["!"]})),
        case("a field without effect", says("o"), chat, json!({"reasoning_effort": "low"})),
        case("a failure", Script::Fail("o".into()), chat, json!({})),
        case("a failure at once", Script::Vanish(String::new()), chat, json!({})),
        case("text", says("ok"), responses, json!({})),
        case("reasoning", thought(), responses, json!({})),
        case("calls", called(), responses, json!({"tools": response_tools})),
        case("a cut", says("okay"), responses, json!({"max_output_tokens": 2})),
        case(
            "log-probabilities",
            says("<think>p</think>q"),
            responses,
            json!({"include": ["message.output_text.logprobs"], "top_logprobs": 1}),
        ),
        case("a failure", Script::Fail("o".into()), responses, json!({})),
        case("text", says("ok"), messages, json!({})),
        case("reasoning", thought(), messages, json!({})),
        case("calls", called(), messages, json!({"tools": message_tools})),
        case("a cut", called(), messages, json!({"tools": message_tools, "max_tokens": 40})),
        case("a stop string", says("o! k"), messages, json!({"stop_sequences": ["!"]})),
        case("a failure", Script::Fail("o".into()), messages, json!({})),
    ]
}

/// The requests of the APIs that continue a text.
fn text_cases() -> Vec<Case> {
    let completions = "/v1/completions";
    let sampled = json!({"do_sample": true, "seed": 3, "details": true, "top_n_tokens": 1});
    let mut best = sampled.clone();
    best["best_of"] = json!(3);
    vec![
        case("text", says("ok"), completions, json!({})),
        case(
            "prompts",
            says("o"),
            completions,
            json!({"prompt": ["a", "bc"], "n": 2, "seed": 3, "temperature": 1}),
        ),
        case("the best", says("o"), completions, json!({"n": 1, "best_of": 3, "seed": 3, "temperature": 1})),
        case("echo", says("é"), completions, json!({"echo": true, "logprobs": 1, "return_token_ids": true})),
        case("prompt scores", says("o"), completions, json!({"prompt_logprobs": 1})),
        case("no token", says("o"), completions, json!({"echo": true, "max_tokens": 0, "logprobs": 0})),
        case("a failure", Script::Fail("o".into()), completions, json!({"prompt": ["a", "b"]})),
        case("text", says("ok"), "/generate", json!({})),
        case("details", says("é"), "/generate", json!({"parameters": sampled})),
        case("prefill", says("o"), "/generate", json!({"parameters": {"decoder_input_details": true}})),
        case("the prompt", says("o"), "/generate", json!({"parameters": {"return_full_text": true}})),
        case("a failure", Script::Fail("o".into()), "/generate", json!({})),
        case("text", says("ok"), "/generate_stream", json!({})),
        case("details", says("é"), "/generate_stream", json!({"parameters": sampled})),
        case("the best", says("o"), "/generate_stream", json!({"parameters": best})),
        case("a failure", Script::Fail("o".into()), "/generate_stream", json!({})),
        case("no end", Script::Vanish("o".into()), "/generate_stream", json!({})),
        case("text", says("ok"), "/", json!({})),
    ]
}

/// Adds a prompt in the form of the path, and returns the bodies that ask for a complete and for a
/// streamed answer.
fn bodies(path: &str, mut body: Value) -> Vec<Value> {
    let fields = body.as_object_mut().unwrap();
    let mut or = |name: &str, value: Value| {
        fields.entry(name).or_insert(value);
    };
    // The fake engine's log-probabilities depend on the seed.
    if path.starts_with("/v1/") {
        or("temperature", json!(0));
    }
    match path {
        "/v1/completions" => or("prompt", json!("ab")),
        "/v1/responses" => or("input", json!("hi")),
        "/v1/chat/completions" | "/v1/messages" => {
            or("messages", json!([{"role": "user", "content": "hi"}]));
            or("max_tokens", json!(90));
        }
        _ => {
            or("inputs", json!("ab"));
            or("parameters", json!({}));
        }
    }
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    match path {
        "/generate" | "/generate_stream" => vec![body],
        "/v1/completions" | "/v1/chat/completions" if body.get("tools").is_none() => {
            let mut with_usage = streamed.clone();
            with_usage["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": true});
            vec![body, streamed, with_usage]
        }
        _ => vec![body, streamed],
    }
}

/// Replaces ids and times, which differ between answers.
fn without_ids(text: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in text.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
        let plain = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        let is_time = plain.len() == 10 && plain.bytes().all(|byte| byte.is_ascii_digit());
        let is_id = plain.len() >= 24;
        words.push(if is_time || is_id { word.replace(plain, "#") } else { word.to_owned() });
    }
    words.concat()
}

/// Writes the status, the headers and the body.
fn write(reply: &Reply, to: &mut String) {
    writeln!(to, "{}", reply.status.as_u16()).unwrap();
    for (name, value) in &reply.headers {
        let is_time = TIMES.contains(&name.as_str());
        let value = if is_time { "#" } else { value.to_str().unwrap() };
        let is_length = name == "content-length";
        if !is_length {
            writeln!(to, "{name}: {}", without_ids(value)).unwrap();
        }
    }
    writeln!(to, "\n{}", without_ids(&reply.body).trim_end()).unwrap();
}

#[tokio::test]
async fn answers_have_the_stored_bytes() {
    let mut actual = String::new();
    for Case { name, script, path, body } in chat_cases().into_iter().chain(text_cases()) {
        for body in bodies(path, body) {
            let assets = test_support::assets_with_template(TEMPLATE);
            let limits = RequestLimits::default();
            let server = Server::serving(&assets, script.clone(), limits, HttpConfig::default());
            let is_streamed = if body.get("stream").is_some() { ", streamed" } else { "" };
            let usage = if body.get("stream_options").is_some() { " with usage" } else { "" };
            writeln!(actual, "=== {path}: {name}{is_streamed}{usage}").unwrap();
            write(&server.post(path, body).await, &mut actual);
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http/tests/answer_bytes.txt");
    if std::env::var_os("MILLRACE_WRITE_EXPECTED").is_some() {
        std::fs::write(&path, &actual).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    let (mut actual_lines, mut case) = (actual.lines(), "");
    for expected in expected.lines() {
        let line = actual_lines.next();
        assert_eq!(line, Some(expected), "{case}; MILLRACE_WRITE_EXPECTED=1 writes {}", path.display());
        if expected.starts_with("===") {
            case = expected;
        }
    }
    assert_eq!(actual_lines.next(), None, "{case}");
}
