//! Benchmark of a tenant beside the expensive requests of another one: `cargo bench -p
//! millrace-integration-tests --bench tenants`.
//!
//! The arguments are `-- [SECONDS] [SCENARIO] [BINARY]`. The victim streams short answers with its
//! own API key, one after the other. Six attackers share another key and repeat one kind of
//! request. For each scenario the victim is measured alone and under attack in turns, for SECONDS
//! each, so that other work on the machine influences both. SCENARIO is a part of the names of the
//! scenarios to run, or `all`. BINARY is another build of `millrace` to compare with.
#![allow(clippy::unwrap_used, reason = "a benchmark that fails may panic")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use millrace_integration_tests::Server;
use serde_json::{Value, json};

/// The number of concurrent attackers.
const CROWD: usize = 6;
/// The number of measurements under attack. There is one more without it.
const ROUNDS: usize = 2;
/// The number of tokens of each of the victim's answers.
const TOKENS: usize = 24;
/// The time that the attack runs before the victim is measured.
const LEAD: Duration = Duration::from_secs(1);
/// The time after which a request counts as lost.
const LOST: Duration = Duration::from_secs(60);

/// A kind of request of the attackers.
struct Scenario {
    name: &'static str,
    path: &'static str,
    body: Value,
}

/// The times that the victim has measured.
#[derive(Default)]
struct Times {
    first_tokens: Vec<Duration>,
    gaps: Vec<Duration>,
    lost: usize,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|text| !text.starts_with('-')).collect();
    let seconds = arguments.first().map_or(4.0, |text| text.parse().expect("a number of seconds"));
    let wanted = arguments.get(1).map_or("all", String::as_str);
    let binary = arguments.get(2).map(Path::new);
    println!("| attack | requests | first token, median | p99 | gap, median | p99 |");
    println!("|---|---|---|---|---|---|");
    for scenario in scenarios().iter().filter(|one| wanted == "all" || one.name.contains(wanted)) {
        measure(scenario, Duration::from_secs_f64(seconds), binary);
    }
}

/// Runs a scenario against a new server and prints its line.
fn measure(scenario: &Scenario, time: Duration, binary: Option<&Path>) {
    let flags = ["--api-key", "attacker,victim", "--max-tokenize-bytes", "2000000"];
    let server = match binary {
        Some(binary) => Server::start_binary(binary, &flags),
        None => Server::start(&flags),
    };
    let victim = request(
        "/generate_stream",
        "victim",
        &json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": TOKENS, "ignore_eos": true}}),
    );
    let attack = request(scenario.path, "attacker", &scenario.body);
    let address = server.address();
    // The first requests are not measured.
    measured(address, &victim, Duration::from_millis(500), &mut Times::default());
    let (mut alone, mut attacked) = (Times::default(), Times::default());
    let requests = AtomicUsize::new(0);
    let mut status = 0;
    measured(address, &victim, time, &mut alone);
    for _ in 0..ROUNDS {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let attacker = || {
                let mut last = 0;
                while !over.load(Ordering::Relaxed) {
                    last = attempt(address, &attack);
                    requests.fetch_add(1, Ordering::Relaxed);
                }
                last
            };
            let crowd: Vec<_> = (0..CROWD).map(|_| scope.spawn(attacker)).collect();
            std::thread::sleep(LEAD);
            measured(address, &victim, time, &mut attacked);
            over.store(true, Ordering::Relaxed);
            for attacker in crowd {
                status = attacker.join().unwrap();
            }
        });
        measured(address, &victim, time, &mut alone);
    }
    let [first, first_late, gap, gap_late] = [
        compared(&alone.first_tokens, &attacked.first_tokens, 50),
        compared(&alone.first_tokens, &attacked.first_tokens, 99),
        compared(&alone.gaps, &attacked.gaps, 50),
        compared(&alone.gaps, &attacked.gaps, 99),
    ];
    let requests = requests.into_inner();
    let lost =
        if attacked.lost > 0 { format!(", {} of the victim lost", attacked.lost) } else { String::new() };
    println!(
        "| {} | {requests} ({status}{lost}) | {first} | {first_late} | {gap} | {gap_late} |",
        scenario.name
    );
}

/// Streams answers one after the other for this time and adds their times.
fn measured(address: &str, request: &[u8], time: Duration, times: &mut Times) {
    let since = Instant::now();
    while since.elapsed() < time {
        if stream(address, request, times).is_none() {
            times.lost += 1;
        }
    }
}

/// Streams one answer and adds its times. Returns `None` if there was no answer.
fn stream(address: &str, request: &[u8], times: &mut Times) -> Option<()> {
    let since = Instant::now();
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_nodelay(true).ok()?;
    stream.set_read_timeout(Some(LOST)).ok()?;
    stream.write_all(request).ok()?;
    let mut last = None;
    let mut buffer = [0; 1 << 14];
    loop {
        let read = stream.read(&mut buffer).ok()?;
        let piece = &buffer[..read];
        if read == 0 {
            return last.map(|_| ());
        }
        if piece.windows(6).any(|window| window == b"data: ".as_slice() || window == b"data:{".as_slice()) {
            let now = Instant::now();
            match last.replace(now) {
                None => times.first_tokens.push(now - since),
                Some(before) => times.gaps.push(now - before),
            }
        }
    }
}

/// Sends a request and reads the whole response. Returns its status, or 0 without one.
fn attempt(address: &str, request: &[u8]) -> u16 {
    let Ok(mut stream) = TcpStream::connect(address) else { return 0 };
    if stream.set_read_timeout(Some(LOST)).is_err() {
        return 0;
    }
    // The server may refuse the request before it has read all bytes.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let digits = answer.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

fn request(path: &str, key: &str, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    (head + &body).into_bytes()
}

/// Writes a percentile alone, under attack, and their ratio.
fn compared(alone: &[Duration], attacked: &[Duration], percent: usize) -> String {
    let percentile = |times: &[Duration]| {
        let mut times = times.to_vec();
        times.sort_unstable();
        times.get(times.len().saturating_sub(1) * percent / 100).copied().unwrap_or_default().as_secs_f64()
            * 1e3
    };
    let (alone, attacked) = (percentile(alone), percentile(attacked));
    format!("{alone:.2} → {attacked:.2} ms, {:.1}×", attacked / alone)
}

/// Returns the requests of the attackers.
fn scenarios() -> Vec<Scenario> {
    let scenario = |name, path, body| Scenario { name, path, body };
    let words = |count: usize| "the old dog ran home ".repeat(count / 5);
    let texts = |count: usize| -> Vec<String> {
        (0..count).map(|n| format!("Rosa bought {n} lemons on Monday.")).collect()
    };
    let chat = |role: &str| {
        let mut messages: Vec<Value> = (0..44_999)
            .map(|n| json!({"role": if n % 2 == 0 { "user" } else { "assistant" }, "content": "hello"}))
            .collect();
        messages.push(json!({"role": role, "content": "hello"}));
        json!({"messages": messages, "max_tokens": 4})
    };
    let grammar = json!({"type": "regex", "value": "(a|b|c|d|e)*[f-z]{40}(very|long|words){30}"});
    vec![
        scenario(
            "n = 16 with long prompts",
            "/v1/completions",
            json!({"prompt": words(700), "n": 16, "max_tokens": 60, "temperature": 1}),
        ),
        scenario(
            "128 prompts × n = 4",
            "/v1/completions",
            json!({"prompt": texts(128), "n": 4, "max_tokens": 24, "temperature": 1}),
        ),
        scenario("chats of 45,000 messages that are too long", "/v1/chat/completions", chat("user")),
        scenario(
            "chats of 45,000 messages, the last with an unknown role",
            "/v1/chat/completions",
            chat("root"),
        ),
        scenario(
            "embeddings of 2,048 texts",
            "/v1/embeddings",
            json!({"model": "tgi", "input": texts(2048)}),
        ),
        scenario("tokenize 1.5 MB", "/tokenize", json!({"inputs": words(300_000)})),
        scenario(
            "grammars",
            "/generate",
            json!({"inputs": "a", "parameters": {"max_new_tokens": 60, "grammar": grammar}}),
        ),
        scenario(
            "echo with log-probabilities",
            "/v1/completions",
            json!({"prompt": words(700), "echo": true, "logprobs": 5, "max_tokens": 1}),
        ),
    ]
}
