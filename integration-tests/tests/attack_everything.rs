//! The expensive requests of every kind at the same time, from several attackers, against a server whose memory is limited.
//! A client beside them is served all the while.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use millrace_integration_tests::{Attack, Outcome, Server, Victim, attack, raw_post};
use serde_json::{Value, json};

/// Attackers at the same time.
const CROWD: usize = 6;
/// How often each attack is carried out.
const ROUNDS: usize = 3;
/// Writable memory of each of the server's processes, in bytes.
const MEMORY: u64 = 1 << 30;
/// The longest that a request beside the attack may take. The machine that runs this may be busy with other things.
const LONGEST: Duration = Duration::from_secs(10);
/// The longest that all of it may take.
const IN_ALL: Duration = Duration::from_secs(90);

/// Bytes of the longest texts; the server takes bodies of 2 MB.
const LONG: usize = 1_900_000;

#[test]
fn a_client_is_served_beside_every_attack() {
    let server = Server::start_limited(MEMORY, &[]);
    let attacks = attacks();
    let (next, since) = (AtomicUsize::new(0), Instant::now());
    let victim = Victim::start(&server);
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let attacker = || {
            let mut wrong = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= ROUNDS * attacks.len() {
                    return wrong;
                }
                let (name, bytes) = &attacks[index % attacks.len()];
                let begun = Instant::now();
                let outcome = attack(server.address(), &Attack::Write(bytes.clone()));
                println!("{name}: {outcome:?} after {:.2} s", begun.elapsed().as_secs_f64());
                // A refusal, an answer, or a server that is too busy for this client: never a failure of the server.
                if !matches!(outcome, Outcome::Status(200 | 400..=499)) {
                    wrong.push(format!("{name}: {outcome:?}"));
                }
            }
        };
        let crowd: Vec<_> = (0..CROWD).map(|_| scope.spawn(attacker)).collect();
        crowd.into_iter().flat_map(|attacker| attacker.join().unwrap()).collect()
    });
    let seen = victim.stop();
    assert!(wrong.is_empty(), "{wrong:#?}\n{}", server.log());
    seen.check("every attack at once", LONGEST, 2 * MEMORY);
    assert!(since.elapsed() < IN_ALL, "{:?}", since.elapsed());
    assert_eq!(server.metric("millrace_shard_restarts_total"), 0.0);
    assert!(!server.log().contains("panicked"), "{}", server.log());
}

/// Whole requests, with names.
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
        ("a long chat to tokenize", "/chat_tokenize", chat(&long)),
        ("a long chat", "/v1/chat/completions", chat(&long)),
        ("a long message to count", "/v1/messages/count_tokens", chat(&long)),
        (
            "many answers to one prompt",
            "/v1/completions",
            json!({"prompt": "a", "n": 1_000_000, "max_tokens": 4}),
        ),
        (
            "a role that nobody knows",
            "/v1/chat/completions",
            json!({"messages": [{"role": "root", "content": "a"}]}),
        ),
        ("a million stop strings", "/v1/completions", json!({"prompt": "a", "stop": vec!["a"; 400_000]})),
    ];
    list.into_iter().map(|(name, path, body)| (name, raw_post(path, body.to_string().as_bytes()))).collect()
}

fn grammar_json(schema: &Value) -> Value {
    json!({"inputs": "a", "parameters": {"max_new_tokens": 4, "grammar": {"type": "json", "value": schema}}})
}
