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

/// What every server here is started with.
const COMMON: [&str; 6] = [
    "--dtype",
    "float32",
    "--max-batch-total-tokens",
    "2048",
    // A simulated step takes seconds.
    "--heartbeat-timeout",
    "20",
];

fn start(model: &str, device: &str, shards: &str) -> Server {
    start_with(model, device, shards, "auto")
}

fn start_with(model: &str, device: &str, shards: &str, all_reduce: &str) -> Server {
    let flags = ["--model-id", model, "--device", device, "--num-shard", shards, "--all-reduce", all_reduce];
    Server::start(&[&flags, &COMMON[..]].concat())
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
        for (shards, all_reduce) in [("1", "auto"), ("2", "nccl"), ("2", "peer")] {
            let cards = start_with(model, "cuda-sim", shards, all_reduce);
            assert_eq!(shards_of(cards.pid()).len().to_string(), shards);
            for (prompt, seed) in prompts.into_iter().zip([None, Some(7)]) {
                let want = text(&processor, prompt, 10, seed);
                assert_eq!(text(&cards, prompt, 10, seed), want, "{model} on {shards} cards by {all_reduce}");
            }
        }
    }
}

/// A rank that dies or stands still leaves the other one's kernels waiting for it. The stream goes on all the same, and nothing is left behind.
#[test]
fn a_lost_rank_is_replaced_in_mid_stream() {
    if !is_there() {
        return;
    }
    let segments = || std::fs::read_dir("/dev/shm").map_or(0, |folder| folder.count());
    let before = segments();
    // The kernels' patience is a quarter of the router's.
    let flags =
        ["--device", "cuda-sim", "--num-shard", "2", "--all-reduce", "peer", "--collective-timeout", "5"];
    let server = Server::start(&[&flags, &COMMON[..]].concat());
    let story = |happens: &dyn Fn()| {
        let request = json!({
            "model": "tgi", "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "stream": true,
        });
        let mut events = stream(&server.url("/v1/completions"), &request);
        let piece = |event: Value| event["choices"][0]["text"].as_str().unwrap().to_owned();
        let mut text = piece(events.next().unwrap());
        happens();
        events.for_each(|event| text += &piece(event));
        text
    };
    let want = story(&|| {});
    for (rank, name) in [(1, "KILL"), (0, "KILL"), (1, "STOP")] {
        let shards = shards_of(server.pid());
        assert_eq!(story(&|| signal(shards[rank], name)), want, "{name} of rank {rank}");
        assert!(shards_of(server.pid()).iter().all(|shard| !shards.contains(shard)));
    }
    assert_eq!(server.metric("millrace_shard_restarts_total"), 3.0);
    let log = server.log();
    let missed = ["rank 1 did not take part in a collective within 5s", "waited 5s for rank 1"];
    assert!(missed.iter().any(|said| log.contains(said)), "{log}");
    assert_eq!(segments(), before, "the cards' memory has no name");
}

/// Without NCCL the cards' memory does; with neither, the demand is refused in one sentence.
#[test]
fn nccl_can_be_done_without() {
    if !is_there() {
        return;
    }
    let absent = [("MILLRACE_NCCL_LIBRARY", "/nowhere/libnccl.so.2")];
    let flags = [&["--device", "cuda-sim", "--num-shard", "2"], &COMMON[..]].concat();
    let server = Server::start_in(&absent, &flags);
    let log = server.log();
    assert!(log.contains("the cards' memory alone (rank 0: NCCL was not found"), "{log}");
    let mut refused = Command::new(binary());
    refused.args(["generate", "Hello", "--all-reduce", "nccl"]).args(flags).envs(absent);
    let said = refused.output().unwrap();
    let error = String::from_utf8_lossy(&said.stderr);
    assert!(!said.status.success() && error.contains("the cards cannot exchange activations"), "{error}");
}

/// What `auto` and a number of shards that is not given come to, for each number of cards.
#[test]
fn the_cards_that_there_are_are_used() {
    if !is_there() {
        return;
    }
    let flags = |more: &[&'static str]| [&COMMON[..], more].concat();
    for (cards, shards, said) in [
        ("0", 1, "computing on the processor: there is no simulated card"),
        ("1", 1, "computing on 1 of 1 card\n"),
        ("3", 2, "computing on 2 of 3 cards: the model cannot be split evenly over all of them"),
    ] {
        let server = Server::start_in(&[("MILLRACE_SIM_CARDS", cards)], &flags(&[]));
        assert!(server.log().contains(said), "{cards} cards: {}", server.log());
        assert_eq!(shards_of(server.pid()).len(), shards, "{cards} cards");
        let device = if cards == "0" { "on cpu" } else { "on simulated device" };
        server.wait_until("the device is said", |server| server.log().contains(device));
    }
    let refused = |variables: &[(&str, &str)], more: &[&'static str]| {
        let mut command = Command::new(binary());
        command.args(["generate", "Hello"]).args(flags(more)).envs(variables.iter().copied());
        let done = command.output().unwrap();
        assert!(!done.status.success(), "{more:?}");
        String::from_utf8_lossy(&done.stderr).into_owned()
    };
    let two = [("MILLRACE_SIM_CARDS", "2")];
    let error = refused(&two, &["--num-shard", "4"]);
    assert!(
        error.contains("--num-shard 4: each shard needs a card, 4 on this machine, and there are 2"),
        "{error}"
    );
    // Two ranks on each are enough for four.
    let shared = Server::start_in(&two, &flags(&["--ranks-per-card", "2", "--all-reduce", "peer"]));
    assert_eq!(shards_of(shared.pid()).len(), 4);
    assert!(!text(&shared, "Once", 1, None).is_empty());
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
