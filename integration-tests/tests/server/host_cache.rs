//! Prefixes that have left the KV caches of GPUs are copied back from the memory of the host.

use std::process::Command;

use millrace_integration_tests::{Server, binary, post, require_simulated_gpus};
use serde_json::{Value, json};

use millrace_integration_tests::golden::Golden;

/// Three blocks of the KV cache.
const PROMPT: usize = 48;

/// The caches hold two prompts with their answers. Steps of simulated GPUs are slow.
const SMALL: [&str; 10] = [
    "--max-batch-total-tokens",
    "128",
    "--max-total-tokens",
    "64",
    "--max-batch-size",
    "2",
    "--cuda-graphs",
    "0",
    "--heartbeat-timeout",
    "120",
];

/// Sends the prompt with this number. Returns the tokens of the answer, and how many of the prompt
/// were cached.
fn ask(server: &Server, number: u32) -> (Value, u64) {
    let prompt: Vec<u32> = (0..PROMPT as u32).map(|i| 3 + (i * i * 7 + i * number + number) % 50).collect();
    let body = json!({
        "prompt": prompt, "max_tokens": 3, "temperature": 0, "ignore_eos": true, "return_token_ids": true,
    });
    let answer = post(&server.url("/v1/completions"), &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let cached = answer.body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or_default();
    (answer.body["choices"][0]["token_ids"].clone(), cached)
}

fn copied(server: &Server, direction: &str) -> f64 {
    server.metric(&format!("millrace_kv_disk_{direction}_tokens_total"))
}

/// Three prompts take turns, of which the caches of the GPUs hold two.
fn prompts_return_from_host_memory(gpus: &[&str]) {
    require_simulated_gpus();
    let golden = Golden::new("llama_gqa").with_positions(512);
    let plain = golden.serve_on("cuda-sim", &[gpus, &SMALL].concat());
    let server = golden.serve_on("cuda-sim", &[gpus, &SMALL, &["--kv-host-memory", "1M"]].concat());
    let wanted: Vec<Value> = (0..3).map(|number| ask(&plain, number).0).collect();
    for number in 0..3 {
        assert_eq!(ask(&server, number), (wanted[number as usize].clone(), 0), "{number}");
        let least = f64::from(number + 1) * PROMPT as f64;
        server.wait_until("the prompt is in host memory", |server| copied(server, "written") >= least);
    }
    let (tokens, cached) = ask(&plain, 0);
    assert_eq!(tokens, wanted[0]);
    assert!(cached < PROMPT as u64 - 16, "the caches hold all prompts");
    let (tokens, cached) = ask(&server, 0);
    // The last token of a prompt is always computed.
    assert_eq!((tokens, cached), (wanted[0].clone(), PROMPT as u64 - 16));
    assert!(copied(&server, "read") >= 16.0);
    assert_eq!(server.metric("millrace_kv_disk_failed_blocks_total{kind=\"read\"}"), 0.0);

    // What is in host memory is gone with the shards.
    server.signal_shards("KILL");
    server.wait_for_restarts(1);
    assert_eq!(ask(&server, 1), (wanted[1].clone(), 0));
}

#[test]
fn evicted_prompts_return_from_the_memory_of_the_host() {
    prompts_return_from_host_memory(&[]);
}

#[test]
fn several_gpus_have_host_memory_each() {
    prompts_return_from_host_memory(&["--num-shard", "2"]);
}

#[test]
fn host_memory_for_evicted_blocks_needs_a_gpu() {
    let folder = tempfile::tempdir().unwrap();
    let disk = format!("--kv-disk={},50M", folder.path().display());
    for (device, flags, reason) in [
        ("cpu", &["--kv-host-memory=50M"][..], "--kv-host-memory needs a GPU"),
        ("cuda-sim", &["--kv-host-memory=50M", "--prefix-caching=false"], "--prefix-caching=false turns off"),
        (
            "cuda-sim",
            &["--kv-host-memory=50M", "--gpu-memory=8M"],
            "--kv-host-memory and --gpu-memory cannot be",
        ),
        ("cuda-sim", &["--kv-host-memory=50M", &disk], "--kv-disk and --kv-host-memory cannot be combined"),
        ("cuda-sim", &["--kv-host-memory=1k"], "hold no block of"),
    ] {
        let mut server = Command::new(binary());
        server.args(["serve", "--port", "0", "--device", device, "--cuda-graphs", "0"]).args(flags);
        let refused = server.output().unwrap();
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && said.contains(reason), "{flags:?}: {said}");
    }
}
