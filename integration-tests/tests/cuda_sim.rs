//! The CUDA backend on simulated cards, over HTTP: the text of the CPU backend, on one card and on two.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::path::PathBuf;
use std::process::Command;

use millrace_integration_tests::{Server, binary, post, shards_of, signal, stream, test_data};
use serde_json::{Value, json};

/// Whether the binary was built with the feature `cpu-sim`, as `cargo xtask test` does.
fn is_there() -> bool {
    let help = Command::new(binary()).args(["serve", "--help"]).output().unwrap();
    let there = String::from_utf8_lossy(&help.stdout).contains("cuda-sim");
    if !there {
        eprintln!("skipped: the binary has no simulated card (feature cpu-sim)");
    }
    there
}

fn start(model: &str, device: &str, shards: &str) -> Server {
    start_in(&[], model, device, shards)
}

fn start_in(environment: &[(&str, &str)], model: &str, device: &str, shards: &str) -> Server {
    let flags = [
        "--model-id",
        model,
        "--device",
        device,
        "--dtype",
        "float32",
        "--num-shard",
        shards,
        "--max-batch-total-tokens",
        "2048",
        // A simulated step takes seconds.
        "--heartbeat-timeout",
        "20",
    ];
    Server::start_in(environment, &flags)
}

fn text(server: &Server, prompt: &str, tokens: usize, seed: Option<u64>) -> String {
    let mut parameters = json!({"max_new_tokens": tokens});
    if let Some(seed) = seed {
        parameters["do_sample"] = json!(true);
        parameters["seed"] = json!(seed);
    }
    let body: Value = json!({"inputs": prompt, "parameters": parameters});
    let answer = post(&server.url("/generate"), &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["generated_text"].as_str().unwrap().to_owned()
}

/// The demo model and, where the test data is, stories260k.
fn models() -> Vec<PathBuf> {
    [Some("demo".into()), test_data("stories260k")].into_iter().flatten().collect()
}

#[test]
fn one_card_and_two_say_what_the_processor_says() {
    if !is_there() {
        return;
    }
    let prompts = ["Once upon a time", "The fox had a lantern and said that it was"];
    for model in models() {
        let model = model.to_str().unwrap();
        let processor = start(model, "cpu", "1");
        for shards in ["1", "2"] {
            let cards = start(model, "cuda-sim", shards);
            assert_eq!(shards_of(cards.pid()).len().to_string(), shards);
            // From then on an allocation would be refused.
            assert!(!cards.log().contains("beyond the memory plan"), "{}", cards.log());
            for (prompt, seed) in prompts.into_iter().zip([None, Some(7)]) {
                let want = text(&processor, prompt, 10, seed);
                assert_eq!(text(&cards, prompt, 10, seed), want, "{model} on {shards} cards");
            }
        }
    }
}

#[test]
fn a_lost_rank_is_replaced() {
    if !is_there() {
        return;
    }
    let server = start("demo", "cuda-sim", "2");
    let before = text(&server, "Once upon a time", 4, None);
    signal(shards_of(server.pid())[1], "KILL");
    assert_eq!(text(&server, "Once upon a time", 4, None), before);
    assert!(server.metric("millrace_shard_restarts_total") >= 1.0);
}

/// A fault that only a new context mends: the stream goes on where it was, on a new shard.
#[test]
fn a_fault_of_a_card_is_recovered_from() {
    if !is_there() {
        return;
    }
    let fault = std::env::temp_dir().join(format!("millrace-fault-{}", std::process::id()));
    let environment = [("MILLRACE_SIM_FAULT", fault.to_str().unwrap())];
    let server = start_in(&environment, "demo", "cuda-sim", "1");
    let before = text(&server, "Once upon a time", 12, None);
    let body = json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 12}});
    let mut events = stream(&server.url("/generate_stream"), &body);
    events.next().unwrap();
    std::fs::write(&fault, "").unwrap();
    let last = events.last().unwrap();
    assert_eq!(last["generated_text"], before.as_str(), "{last}");
    assert!(!fault.exists(), "the card has met its fault");
    assert!(server.metric("millrace_shard_restarts_total") >= 1.0);
    assert!(server.log().contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{}", server.log());
}

/// Without a driver, the demand for cards is refused in one sentence.
#[test]
fn cards_that_are_not_there_are_said_to_be_missing() {
    if std::path::Path::new("/dev/nvidiactl").exists() {
        eprintln!("skipped: this machine has cards");
        return;
    }
    let done = Command::new(binary()).args(["generate", "--device", "cuda", "Hello"]).output().unwrap();
    assert!(!done.status.success());
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.contains("there is no NVIDIA driver"), "{said}");
}

/// Whether there are cards or not, the doctor answers and says what is missing.
#[test]
fn the_doctor_answers() {
    let done = Command::new(binary()).arg("doctor").output().unwrap();
    assert!(done.status.success());
    let said = String::from_utf8_lossy(&done.stdout);
    for what in ["driver:", "cuBLASLt:", "NCCL:", "NVRTC:", "--device cuda can"] {
        assert!(said.contains(what), "{said}");
    }
}
