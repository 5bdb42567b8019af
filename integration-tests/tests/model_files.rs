//! Tests the files beside a model's weights: end tokens and sampling defaults.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use millrace_integration_tests::{JsonResponse, ModelCopy, Server, post};
use serde_json::{Value, json};

fn chat(server: &Server, more: &Value) -> JsonResponse {
    let mut body = json!({
        "messages": [{"role": "user", "content": "Tell me a story about a fox and a lantern."}], "max_tokens": 200,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let answer = post(&server.url("/v1/chat/completions"), &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer
}

fn info(server: &Server) -> Value {
    serde_json::from_str(&server.get("/info").1).unwrap()
}

/// A fine-tuned model whose configuration still names the end token of its base model.
#[test]
fn an_answer_ends_with_the_end_token_of_the_template() {
    let model = ModelCopy::new("end-tokens");
    model.edit("generation_config.json", |config| config["eos_token_id"] = json!(0));
    model.edit("config.json", |config| config["eos_token_id"] = json!(0));
    model.edit("tokenizer_config.json", |config| config["eos_token"] = json!("<|endoftext|>"));
    let (changed, plain) = (Server::start(&["--model-id", model.path()]), Server::start(&[]));
    assert_eq!(info(&changed)["end_tokens"], json!(["<|endoftext|>", "<|im_end|>"]));
    let greedy = json!({"temperature": 0});
    let (changed, plain) = (chat(&changed, &greedy).body, chat(&plain, &greedy).body);
    assert_eq!(changed["choices"][0]["finish_reason"], "stop");
    assert_eq!(changed["choices"], plain["choices"]);
    assert_eq!(changed["usage"]["completion_tokens"], plain["usage"]["completion_tokens"]);
}

#[test]
fn a_silent_request_is_sampled_as_generation_config_says() {
    let model = ModelCopy::new("sampling-defaults");
    model.edit("generation_config.json", |config| {
        (config["do_sample"], config["top_k"], config["temperature"]) = (json!(true), json!(1), json!(2.0));
    });
    let texts = |server: &Server| -> Vec<Value> {
        let seeds = 1..6;
        seeds.map(|seed| chat(server, &json!({"seed": seed})).body["choices"][0]["message"].clone()).collect()
    };
    let server = Server::start(&["--model-id", model.path()]);
    assert_eq!(info(&server)["sampling_defaults"], json!({"temperature": 2.0, "top_k": 1}));
    let greedy = chat(&server, &json!({"temperature": 0})).body["choices"][0]["message"].clone();
    // The sampling parameters leave a single token.
    assert!(texts(&server).iter().all(|text| *text == greedy));

    let server = Server::start(&["--model-id", model.path(), "--generation-config", "none"]);
    assert_eq!(info(&server)["sampling_defaults"], json!({}));
    assert!(texts(&server).iter().any(|text| *text != greedy));
}
