//! Benchmark of one model on two shards against one shard on the same cores: `cargo bench --package
//! millrace-integration-tests --bench shards`.
//!
//! The two servers take turns, so that other load on the machine affects both equally. The first
//! shard's share of time in exchanges with the second shard includes waiting for it.
#![allow(clippy::unwrap_used, reason = "a benchmark that fails may panic")]

use std::time::Instant;

use millrace_integration_tests::{Server, post, stream};
use serde_json::{Value, json};

const TURNS: usize = 3;

/// The numbers of clients, and of tokens for each client.
const LOADS: [(usize, usize); 3] = [(1, 24), (8, 24), (16, 20)];

fn main() {
    let shape = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/llama-1.1b");
    let start = |shards: &str| {
        let size = ["--load-format", "dummy", "--max-batch-total-tokens", "16384"];
        let flags = ["--model-id", shape, "--num-shard", shards];
        Server::start(&[flags.as_slice(), size.as_slice()].concat())
    };
    // One row for each load and one for the prefill; one column for each server.
    let mut best = [[(0.0, 0.0); 2]; LOADS.len() + 1];
    for turn in 0..TURNS {
        for (column, shards) in ["1", "2"].iter().enumerate() {
            let server = start(shards);
            post(&server.url("/generate"), &request("warm", 1));
            for (row, (clients, tokens)) in LOADS.into_iter().enumerate() {
                let got = measured(&server, || decode(&server, clients, tokens, turn));
                keep(&mut best[row][column], got);
            }
            let got = measured(&server, || prefill(&server, turn));
            keep(&mut best[LOADS.len()][column], got);
        }
    }
    println!("| load | 1 shard | 2 shards | ratio | exchanges, share of the time |");
    println!("|---|---|---|---|---|");
    for (row, [one, two]) in best.iter().enumerate() {
        let load = LOADS.get(row).map_or("prefill".to_owned(), |(clients, _)| format!("{clients} clients"));
        println!(
            "| {load} | {:.1} tokens/s | {:.1} tokens/s | {:.2} | {:.1}% |",
            one.0,
            two.0,
            two.0 / one.0,
            two.1
        );
    }
}

fn keep(best: &mut (f64, f64), got: (f64, f64)) {
    if got.0 > best.0 {
        *best = got;
    }
}

/// Returns the tokens per second and the share of time in exchanges in percent.
fn measured(server: &Server, work: impl Fn() -> f64) -> (f64, f64) {
    let exchanges = || server.metric("millrace_shard_collective_micros_total");
    let (before, since) = (exchanges(), Instant::now());
    let tokens = work();
    let wall = since.elapsed().as_secs_f64();
    (tokens / wall, 1e-4 * (exchanges() - before) / wall)
}

fn request(prompt: &str, tokens: usize) -> Value {
    json!({"inputs": prompt, "parameters": {"max_new_tokens": tokens}})
}

fn decode(server: &Server, clients: usize, tokens: usize, turn: usize) -> f64 {
    let generate = |client: usize| {
        let prompt = format!("{turn} times there was a fox with {client} lanterns");
        stream(&server.url("/generate_stream"), &request(&prompt, tokens)).count()
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..clients).map(|client| scope.spawn(move || generate(client))).collect();
        running.into_iter().map(|client| client.join().unwrap()).sum::<usize>() as f64
    })
}

fn prefill(server: &Server, turn: usize) -> f64 {
    let prompt = format!("{turn}: {}", "the fox and the lantern went over the hill. ".repeat(36));
    let answer = post(&server.url("/generate"), &request(&prompt, 1));
    answer.header("x-prompt-tokens").unwrap().parse().unwrap()
}
