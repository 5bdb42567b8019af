//! Tests each API once, with and without streaming. Unit tests cover the details.

use millrace_integration_tests::{Attack, AttackOutcome, Server, attack, post, raw_post};
use serde_json::{Value, json};

#[test]
fn every_api_returns_the_same_text() {
    let server = Server::start(&[]);
    let ask = |path: &str, body: Value| {
        let answer = post(&server.url(path), &body);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        assert_eq!(answer.header("x-request-id").map(str::len), Some(32), "{path}");
        answer.body
    };
    let greedy = json!({"max_new_tokens": 12});
    let expected =
        ask("/generate", json!({"inputs": "Once upon a time", "parameters": greedy}))["generated_text"]
            .clone();
    let tensor = json!({"name": "input", "shape": [1], "datatype": "BYTES", "data": ["Once upon a time"]});
    let plain = [
        ask("/invocations", json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 12, "return_full_text": false}}))
            [0]["generated_text"].clone(),
        ask("/vertex", json!({"instances": [{"inputs": "Once upon a time", "parameters": greedy}]}))["predictions"][0].clone(),
        ask("/v2/models/demo/infer", json!({"inputs": [tensor], "parameters": greedy}))["outputs"][0]["data"][0].clone(),
        ask("/v1/completions", json!({"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}))["choices"][0]["text"]
            .clone(),
    ];
    assert!(plain.iter().all(|text| *text == expected), "{expected}: {plain:?}");

    let messages = json!([{"role": "user", "content": "Tell me a story about a fox."}]);
    let chat = json!({"messages": messages, "max_tokens": 12, "temperature": 0});
    let expected = ask("/v1/chat/completions", chat.clone())["choices"][0]["message"]["content"].clone();
    let response =
        json!({"input": "Tell me a story about a fox.", "max_output_tokens": 12, "temperature": 0});
    let conversations = [
        ask("/v1/messages", chat.clone())["content"][0]["text"].clone(),
        ask("/v1/responses", response)["output"][0]["content"][0]["text"].clone(),
        ask("/vertex", json!({"instances": [chat]}))["predictions"][0].clone(),
    ];
    assert!(conversations.iter().all(|text| *text == expected), "{expected}: {conversations:?}");
    let counted = ask("/v1/messages/count_tokens", json!({"messages": messages}))["input_tokens"].clone();
    let tokens =
        ask("/chat_tokenize", json!({"messages": messages}))["tokenize_response"].as_array().unwrap().len();
    assert_eq!(counted, tokens);

    for path in ["/docs/", "/api-doc/openapi.json", "/v2", "/v2/health/ready", "/v1/models/demo"] {
        assert_eq!(server.get(path).0, 200, "{path}");
    }
    let bad = raw_post("/v1/messages", br#"{"messages":[],"max_tokens":1}"#);
    assert_eq!(attack(server.address(), &Attack::Write(bad)), AttackOutcome::Status(400));
}
