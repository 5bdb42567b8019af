//! Tests several simulated GPUs over HTTP: the exchange of activations, the selection of GPUs, and
//! the loss of a rank.

use std::process::Command;
use std::time::Duration;

use millrace_integration_tests::{
    SMALL_SERVER_FLAGS, Server, binary, named_shared_memory, post, require_simulated_gpus, seconds,
    shards_of, signal, start_small_server, stream,
};
use millrace_test_patience::patience;
use serde_json::{Value, json};

/// A rank that dies or hangs leaves the other rank's kernels waiting. The stream continues, and no
/// shared memory is left behind.
#[test]
fn a_lost_rank_is_replaced_in_mid_stream() {
    require_simulated_gpus();
    // The timeout of the kernels is a quarter of the router's.
    let timeout = patience(Duration::from_secs(5));
    let limit = seconds(timeout);
    let flags =
        ["--dtype", "float32", "--num-shard", "2", "--all-reduce", "peer", "--collective-timeout", &limit];
    let server = start_small_server("demo", "cuda-sim", &flags);
    let generate = |during: &dyn Fn()| {
        let request = json!({
            "model": "tgi", "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "stream": true,
        });
        let mut events = stream(&server.url("/v1/completions"), &request);
        let piece = |event: Value| event["choices"][0]["text"].as_str().unwrap().to_owned();
        let mut text = piece(events.next().unwrap());
        during();
        events.for_each(|event| text += &piece(event));
        text
    };
    let want = generate(&|| {});
    for (rank, name) in [(1, "KILL"), (0, "KILL"), (1, "STOP")] {
        let shards = shards_of(server.pid());
        assert_eq!(generate(&|| signal(shards[rank], name)), want, "{name} of rank {rank}");
        assert!(shards_of(server.pid()).iter().all(|shard| !shards.contains(shard)));
    }
    server.wait_for_restarts(3);
    let missed = [
        format!("rank 1 did not take part in a collective within {timeout:?}"),
        format!("waited {timeout:?} for rank 1"),
    ];
    server.wait_until("the log names the rank that was waited for", |server| {
        missed.iter().any(|said| server.log().contains(said))
    });
    assert_eq!(named_shared_memory(), [""; 0], "the GPUs' shared memory has no name");
}

/// Without NCCL the GPUs use peer memory. Without both, the request is refused with one sentence.
#[test]
fn the_server_works_without_nccl() {
    require_simulated_gpus();
    let absent = [("MILLRACE_NCCL_LIBRARY", "/nowhere/libnccl.so.2")];
    let flags = [&["--device", "cuda-sim", "--num-shard", "2"], &SMALL_SERVER_FLAGS[..]].concat();
    let server = Server::start_with_env(&absent, &flags);
    server.wait_for_log("peer memory only (rank 0: NCCL was not found");
    let mut refused = Command::new(binary());
    refused.args(["generate", "Hello", "--all-reduce", "nccl"]).args(flags).envs(absent);
    let said = refused.output().unwrap();
    let error = String::from_utf8_lossy(&said.stderr);
    assert!(!said.status.success() && error.contains("the GPUs cannot exchange activations"), "{error}");
}

/// The result of `auto` and of an unspecified number of shards, for each number of GPUs.
#[test]
fn all_available_gpus_are_used() {
    require_simulated_gpus();
    let flags = |more: &[&'static str]| [&SMALL_SERVER_FLAGS[..], more].concat();
    for (gpus, shards, said) in [
        ("0", 1, "using the CPU: there is no simulated GPU"),
        ("1", 1, "using 1 of 1 GPU\n"),
        ("3", 2, "using 2 of 3 GPUs: the model cannot be split evenly over all of them"),
    ] {
        let server = Server::start_with_env(&[("MILLRACE_SIM_GPUS", gpus)], &flags(&[]));
        server.wait_for_log(said);
        assert_eq!(shards_of(server.pid()).len(), shards, "{gpus} GPUs");
        let device = if gpus == "0" { "on cpu" } else { "on simulated device" };
        server.wait_until("the device is logged", |server| server.log().contains(device));
    }
    let refused = |variables: &[(&str, &str)], more: &[&'static str]| {
        let mut command = Command::new(binary());
        command.args(["generate", "Hello"]).args(flags(more)).envs(variables.iter().copied());
        let done = command.output().unwrap();
        assert!(!done.status.success(), "{more:?}");
        String::from_utf8_lossy(&done.stderr).into_owned()
    };
    let two = [("MILLRACE_SIM_GPUS", "2")];
    let error = refused(&two, &["--num-shard", "4"]);
    assert!(
        error.contains("--num-shard 4: each shard needs a GPU, 4 on this machine, and there are 2"),
        "{error}"
    );
    // Two GPUs with two ranks each run four shards.
    let shared = Server::start_with_env(&two, &flags(&["--ranks-per-gpu", "2", "--all-reduce", "peer"]));
    assert_eq!(shards_of(shared.pid()).len(), 4);
    assert!(
        post(&shared.url("/generate"), &json!({"inputs": "Once", "parameters": {"max_new_tokens": 1}}))
            .status
            == 200
    );
}
