//! Tests starting, ending and crashing.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use millrace_integration_tests::{Server, binary, post, shards_of, stream, wait_for_end_of};
use serde_json::{Value, json};

#[test]
fn sigterm_lets_running_requests_end_and_exits_zero() {
    let server = Server::start(&[]);
    let body =
        json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 400, "stop": ["\u{1}"]}});
    let mut events = stream(&server.url("/generate_stream"), &body);
    assert!(events.next().is_some());
    server.signal("TERM");
    let last = events.last().expect("the stream goes on after SIGTERM");
    assert!(last["generated_text"].is_string(), "the stream ended early: {last}");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn killing_the_server_leaves_no_shard_behind() {
    let server = Server::start(&[]);
    let shards = shards_of(server.pid());
    assert_eq!(shards.len(), 1, "one shard is expected");
    server.signal("KILL");
    drop(server);
    wait_for_end_of(&shards);
}

#[test]
fn liveness_and_readiness_differ() {
    let server = Server::start(&[]);
    assert_eq!(server.get("/health").0, 200);
    assert_eq!(server.get("/ready").0, 200);
    assert_eq!(server.get("/nothing-here").0, 404);
}

#[test]
fn beyond_the_limit_requests_are_refused_at_once() {
    let server = Server::start(&["--max-concurrent-requests", "2", "--heartbeat-timeout", "86400"]);
    let body = json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 900}});
    let mut held: Vec<_> = (0..2).map(|_| stream(&server.url("/generate_stream"), &body)).collect();
    assert!(held.iter_mut().all(|events| events.next().is_some()));
    // The stopped shard keeps both from ending.
    server.signal_shards("STOP");
    let refused = post(&server.url("/generate"), &body);
    assert_eq!(refused.status, 429, "{}", refused.body);
    assert_eq!(refused.body["error_type"], "overloaded");
    assert!(refused.header("retry-after").is_some());
    drop(held);
    server.signal_shards("CONT");
    server.wait_until("a leaving client makes room", |server| {
        let short = json!({"inputs": "Hello", "parameters": {"max_new_tokens": 1}});
        post(&server.url("/generate"), &short).status == 200
    });
}

#[test]
fn a_client_that_leaves_makes_room_while_a_step_runs() {
    // A step takes longer than the test waits.
    let flags = ["--device", "null", "--null-step-micros", "300000000", "--max-concurrent-requests", "1"];
    let server = Server::start(&flags);
    let body = json!({"inputs": "Hello", "parameters": {"max_new_tokens": 9}});
    let held = stream(&server.url("/generate_stream"), &body);
    assert_eq!(held.status, 200);
    assert_eq!(post(&server.url("/generate"), &body).status, 429);
    drop(held);
    server.wait_until("the place of the request is free", |server| {
        stream(&server.url("/generate_stream"), &body).status == 200
    });
}

/// Returns the exit code and the standard error of a `serve` that cannot start.
fn refusal(flags: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(binary())
        .args(["serve", "--port", "0"])
        .args(flags)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A model chooses 64 keys for each token of a longer sequence, and the server has none.
#[test]
fn the_context_ends_where_a_model_would_choose_keys() {
    let folder = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let golden = root.join("golden/glm_moe_dsa");
    let mut config: Value = serde_json::from_slice(&fs::read(golden.join("config.json")).unwrap()).unwrap();
    config["max_position_embeddings"] = json!(500);
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    fs::copy(golden.join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    fs::copy(root.join("../models/demo/tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
    let flags = ["--model-id", folder.path().to_str().unwrap(), "--device", "cpu"];

    let (code, text) = refusal(&[&flags[..], &["--max-total-tokens", "65"]].concat());
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("--max-total-tokens 65: this model chooses 64 keys"), "{text}");

    let server = Server::start(&flags);
    server.wait_for_log("the context ends there instead of at 500");
    server.wait_for_log("self_attn.indexer.");
    let complete = |count: usize| {
        let prompt: Vec<u32> = (0..50).map(|i| 3 + i % 30).collect();
        let body = json!({"prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": true});
        post(&server.url("/v1/completions"), &body)
    };
    let answer = complete(14);
    assert_eq!((answer.status, &answer.body["usage"]["total_tokens"]), (200, &json!(64)), "{}", answer.body);
    let answer = complete(15);
    assert_eq!(answer.status, 400, "{}", answer.body);
    assert!(answer.body.to_string().contains("64"), "{}", answer.body);
}

#[test]
fn a_model_that_cannot_be_served_is_one_clear_error() {
    let folder = std::env::temp_dir().join(format!("millrace-broken-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/demo");
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        std::fs::copy(format!("{demo}/{file}"), folder.join(file)).unwrap();
    }
    let model = folder.to_str().unwrap();

    let (code, text) = refusal(&["--model-id", "/no/such/folder"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("/no/such/folder"), "{text}");

    let (code, text) = refusal(&["--model-id", model]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("safetensors"), "a missing weight file is named: {text}");

    let weights = std::fs::read(format!("{demo}/model.safetensors")).unwrap();
    std::fs::write(folder.join("model.safetensors"), &weights[..weights.len() / 2]).unwrap();
    let (code, text) = refusal(&["--model-id", model]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("model.safetensors"), "a truncated weight file is named: {text}");

    std::fs::write(folder.join("config.json"), r#"{"model_type": "perceptron"}"#).unwrap();
    let (code, text) = refusal(&["--model-id", model]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("perceptron"), "an unknown model_type is named: {text}");
    assert!(!text.contains("panicked"), "{text}");
    std::fs::remove_dir_all(&folder).unwrap();
}
