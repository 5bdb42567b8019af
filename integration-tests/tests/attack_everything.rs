//! Tests a server with limited memory under expensive requests of all kinds from several clients. A
//! normal client is served all the while.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use millrace_integration_tests::{ObserverClient, Server, raw_post};
use millrace_test_patience::patience;
use serde_json::{Value, json};

/// The number of concurrent attackers.
const CROWD: usize = 6;
/// The minimum duration of the attack, and the minimum number of rounds.
const AT_LEAST: (Duration, usize) = (Duration::from_secs(6), 2);
/// The writable memory of each of the server's processes in bytes.
const MEMORY: u64 = 1 << 30;
/// The maximum latency of a normal request. The machine may be busy with other work.
const LONGEST: Duration = Duration::from_secs(10);
/// The maximum duration of the whole test.
const IN_ALL: Duration = Duration::from_secs(90);

/// The length of the longest texts in bytes. The server accepts bodies of 2 MB.
const LONG: usize = 1_900_000;

#[test]
#[ignore = "measures times and memory under load: `cargo xtask attack` and the nightly checks run it with a release build"]
fn a_client_is_served_beside_every_attack() {
    // With this limit, texts that are too long for a prompt are tokenized too.
    let server = Server::start_with_memory_limit(MEMORY, &["--max-tokenize-bytes", "2000000"]);
    let attacks = attacks();
    let (next, since) = (AtomicUsize::new(0), Instant::now());
    let observer = ObserverClient::start(&server);
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let attacker = || {
            let mut wrong = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let (time, rounds) = AT_LEAST;
                if since.elapsed() > time && index >= rounds * attacks.len() {
                    return wrong;
                }
                let (name, bytes) = &attacks[index % attacks.len()];
                let begun = Instant::now();
                let (status, answer) = ask(server.address(), bytes);
                if index < attacks.len() {
                    let seconds = begun.elapsed().as_secs_f64();
                    println!("{name}: status {status}, {answer} bytes after {seconds:.2} s");
                }
                // Refusals, answers and a busy server are allowed. Server errors are not.
                if !matches!(status, 200 | 400..=499) {
                    wrong.push(format!("{name}: {status}"));
                }
            }
        };
        let crowd: Vec<_> = (0..CROWD).map(|_| scope.spawn(attacker)).collect();
        crowd.into_iter().flat_map(|attacker| attacker.join().unwrap()).collect()
    });
    let seen = observer.stop();
    assert!(wrong.is_empty(), "{wrong:#?}\n{}", server.log());
    seen.check("every attack at once", patience(LONGEST), 2 * MEMORY);
    assert!(since.elapsed() < patience(IN_ALL), "{:?}", since.elapsed());
    assert_eq!(server.metric("millrace_shard_restarts_total"), 0.0);
    assert!(!server.log().contains("panicked"), "{}", server.log());
}

/// Sends a request and reads the whole response. Returns its status, which is 0 without a response,
/// and its length in bytes.
fn ask(address: &str, request: &[u8]) -> (u16, usize) {
    let Ok(mut stream) = TcpStream::connect(address) else { return (0, 0) };
    stream.set_read_timeout(Some(patience(IN_ALL))).unwrap();
    // A server may close the connection before it has read all bytes.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let status = answer.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    (status.unwrap_or(0), answer.len())
}

/// Returns complete requests with names.
fn attacks() -> Vec<(&'static str, Vec<u8>)> {
    let long = "a ".repeat(LONG / 2);
    let grammar = |kind: &str, value: &str| json!({"inputs": "a", "parameters": {"max_new_tokens": 4, "grammar": {"type": kind, "value": value}}});
    let patterns: Vec<Value> =
        (0..40).map(|i| json!({"pattern": format!("^(.*[a-c].{{{i}}}[d-f].*)$")})).collect();
    let schema = json!({"type": "string", "allOf": patterns});
    let chain: String = (0..15_000).map(|i| format!("T{i}: T{} \"a\"\n", i + 1)).collect();
    let chat = |content: &str| json!({"messages": [{"role": "user", "content": content}], "max_tokens": 4});
    let list: Vec<(&'static str, &'static str, Value)> = vec![
        ("a regex of braces", "/generate", grammar("regex", &"{".repeat(LONG))),
        ("a regex of open groups", "/generate", grammar("regex", &"(a|".repeat(LONG / 3))),
        ("a schema of intersections", "/generate", grammar_json(&schema)),
        (
            "a schema of intersections in Lark",
            "/generate",
            grammar("lark", &format!("start: %json {schema}")),
        ),
        (
            "a chain of tokens in Lark",
            "/generate",
            grammar("lark", &format!("start: T0\n{chain}T15000: \"b\"\n")),
        ),
        ("a long text to tokenize", "/tokenize", json!({"inputs": long})),
        ("a long text without a space to tokenize", "/tokenize", json!({"inputs": "a".repeat(LONG)})),
        (
            "a long prompt that is truncated",
            "/generate",
            json!({"inputs": long, "parameters": {"truncate": 4}}),
        ),
        (
            "an answer of JSON that may nest",
            "/v1/completions",
            json!({"prompt": "a", "max_tokens": 200, "response_format": {"type": "json_object"}}),
        ),
        ("a long chat to tokenize", "/chat_tokenize", chat(&long)),
        ("a long chat", "/v1/chat/completions", chat(&long)),
        ("a long message to count", "/v1/messages/count_tokens", chat(&long)),
        (
            "many answers to one prompt",
            "/v1/completions",
            json!({"prompt": "a", "n": 1_000_000, "max_tokens": 4}),
        ),
        ("an unknown role", "/v1/chat/completions", json!({"messages": [{"role": "root", "content": "a"}]})),
        ("a million stop strings", "/v1/completions", json!({"prompt": "a", "stop": vec!["a"; 400_000]})),
    ];
    let whole = |path: &str, body: &Value| {
        let request = raw_post(path, body.to_string().as_bytes());
        // The response ends with the connection.
        [b"POST ", path.as_bytes(), b" HTTP/1.1\r\nconnection: close", &request[14 + path.len()..]].concat()
    };
    list.into_iter().map(|(name, path, body)| (name, whole(path, &body))).collect()
}

fn grammar_json(schema: &Value) -> Value {
    json!({"inputs": "a", "parameters": {"max_new_tokens": 4, "grammar": {"type": "json", "value": schema}}})
}
