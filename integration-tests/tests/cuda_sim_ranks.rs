//! Several simulated cards, over HTTP: how they exchange activations, which are used, and what happens when a rank is lost.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::process::Command;

use millrace_integration_tests::{
    SMALL, Server, binary, has_simulated_cards, post, shards_of, signal, start_small, stream,
};
use serde_json::{Value, json};

/// A rank that dies or stands still leaves the other one's kernels waiting for it. The stream goes on all the same, and nothing is left behind.
#[test]
fn a_lost_rank_is_replaced_in_mid_stream() {
    if !has_simulated_cards() {
        return;
    }
    let segments = || std::fs::read_dir("/dev/shm").map_or(0, |folder| folder.count());
    let before = segments();
    // The kernels' patience is a quarter of the router's.
    let flags =
        ["--dtype", "float32", "--num-shard", "2", "--all-reduce", "peer", "--collective-timeout", "5"];
    let server = start_small("demo", "cuda-sim", &flags);
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
    let missed = ["rank 1 did not take part in a collective within 5s", "waited 5s for rank 1"];
    server.wait_until("the log says who was waited for", |server| {
        missed.iter().any(|said| server.log().contains(said))
    });
    assert_eq!(segments(), before, "the cards' memory has no name");
}

/// Without NCCL the cards' memory does; with neither, the demand is refused in one sentence.
#[test]
fn nccl_can_be_done_without() {
    if !has_simulated_cards() {
        return;
    }
    let absent = [("MILLRACE_NCCL_LIBRARY", "/nowhere/libnccl.so.2")];
    let flags = [&["--device", "cuda-sim", "--num-shard", "2"], &SMALL[..]].concat();
    let server = Server::start_in(&absent, &flags);
    server.says("the cards' memory alone (rank 0: NCCL was not found");
    let mut refused = Command::new(binary());
    refused.args(["generate", "Hello", "--all-reduce", "nccl"]).args(flags).envs(absent);
    let said = refused.output().unwrap();
    let error = String::from_utf8_lossy(&said.stderr);
    assert!(!said.status.success() && error.contains("the cards cannot exchange activations"), "{error}");
}

/// What `auto` and a number of shards that is not given come to, for each number of cards.
#[test]
fn the_cards_that_there_are_are_used() {
    if !has_simulated_cards() {
        return;
    }
    let flags = |more: &[&'static str]| [&SMALL[..], more].concat();
    for (cards, shards, said) in [
        ("0", 1, "computing on the processor: there is no simulated card"),
        ("1", 1, "computing on 1 of 1 card\n"),
        ("3", 2, "computing on 2 of 3 cards: the model cannot be split evenly over all of them"),
    ] {
        let server = Server::start_in(&[("MILLRACE_SIM_CARDS", cards)], &flags(&[]));
        server.says(said);
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
    assert!(
        post(&shared.url("/generate"), &json!({"inputs": "Once", "parameters": {"max_new_tokens": 1}}))
            .status
            == 200
    );
}
