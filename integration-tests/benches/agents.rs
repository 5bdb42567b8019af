//! Benchmark of the router with the prompts of agents: `cargo bench -p millrace-integration-tests
//! --bench agents`.
//!
//! The arguments are `-- [STREAMS] [SHARED] [NEW] [SECONDS] [TURNS]`. STREAMS clients repeatedly
//! send prompts that begin with the same SHARED tokens and end with NEW other ones, and request one
//! token from a shard that makes tokens up. A server with the tokenizer's cache and one without it
//! are measured in turns.
#![allow(clippy::unwrap_used, reason = "a benchmark that fails may panic")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use millrace_integration_tests::{ModelCopy, Server, cpu_seconds, post};
use serde_json::json;

/// The positions of the demo model, whose own are too few.
const POSITIONS: usize = 1 << 18;

/// A number that makes each prompt new.
static NEXT_PROMPT: AtomicUsize = AtomicUsize::new(0);

/// The sizes of the load.
struct Load {
    streams: usize,
    shared: String,
    new_words: usize,
    duration: Duration,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|text| !text.starts_with('-')).collect();
    let number = |index: usize, otherwise: usize| {
        arguments.get(index).map_or(otherwise, |text| text.parse().expect("a number"))
    };
    let (streams, shared, new) = (number(0, 32), number(1, 48_000), number(2, 200));
    let duration = Duration::from_secs(number(3, 8) as u64);
    let copy = ModelCopy::new("bench-agents");
    copy.edit("config.json", |config| config["max_position_embeddings"] = json!(POSITIONS));
    let places = streams.to_string();
    let tokens = ((shared + 2 * new) * 2 * streams).max(POSITIONS).to_string();
    let flags = ["--model-id", copy.path(), "--device", "null", "--max-concurrent-requests", &places];
    let more = ["--max-batch-total-tokens", &tokens, "--max-batch-prefill-tokens", "8192"];
    let flags = [&flags[..], &more].concat();
    let servers = [
        ("cache", Server::start(&flags)),
        ("no cache", Server::start(&[&flags[..], &["--tokenizer-cache", "0"]].concat())),
    ];
    let words = words_of(&servers[0].1, shared);
    let load = Load { streams, shared: words, new_words: new * 3 / 4, duration };
    println!(
        "| {streams} streams, {shared} + {new} tokens | requests/s | CPU of the router per request | found |"
    );
    println!("|---|---|---|---|");
    for _ in 0..number(4, 3) {
        for (name, server) in &servers {
            measure(name, server, &load);
        }
    }
}

/// Returns a text of about this many tokens.
fn words_of(server: &Server, tokens: usize) -> String {
    let word = |number: usize| {
        let noun = ["lantern", "fox", "hill", "river", "market", "engine"][number % 6];
        format!("The {noun} number {number} was seen near the old mill.\\n")
    };
    let sample: String = (0..100).map(word).collect();
    let answer = post(&server.url("/tokenize"), &json!({"prompt": sample.replace("\\n", "\n")}));
    let per_line = answer.body["count"].as_f64().unwrap() / 100.0;
    (0..(tokens as f64 / per_line) as usize).map(word).collect()
}

/// Measures a server, after one request that fills its caches, and prints a row of the table.
fn measure(name: &str, server: &Server, load: &Load) {
    request(server.address(), load);
    let count = |name: &str| server.metric(&format!("millrace_tokenizer_cache_{name}_tokens_total"));
    let (found, missed) = (count("hit"), count("miss"));
    let (over, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (cpu, since) = (cpu_seconds(server.pid()), Instant::now());
    let (wall, requests, cpu) = std::thread::scope(|scope| {
        for _ in 0..load.streams {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    request(server.address(), load);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        std::thread::sleep(load.duration);
        let figures = (
            since.elapsed().as_secs_f64(),
            done.load(Ordering::Relaxed) as f64,
            cpu_seconds(server.pid()) - cpu,
        );
        over.store(true, Ordering::Relaxed);
        figures
    });
    let (found, missed) = (count("hit") - found, count("miss") - missed);
    let share = if found + missed > 0.0 { 100.0 * found / (found + missed) } else { 0.0 };
    println!("| {name} | {:.1} | {:.1} ms | {share:.2}% |", requests / wall, 1e3 * cpu / requests);
}

/// Sends a prompt with a new end, and reads the answer.
fn request(address: &str, load: &Load) {
    let number = NEXT_PROMPT.fetch_add(1, Ordering::Relaxed);
    let new: String = (0..load.new_words).map(|word| format!(" word{}", number * 7 + word)).collect();
    let start = r#"{"model":"tgi","max_tokens":1,"prompt":""#;
    let length = start.len() + load.shared.len() + new.len() + 2;
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\nconnection: close\r\n\r\n"
    );
    let mut stream = TcpStream::connect(address).unwrap();
    for part in [&head, start, &load.shared, &new, "\"}"] {
        stream.write_all(part.as_bytes()).unwrap();
    }
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
}
