//! API keys at the real server: prefix caches that keys do not share, priorities that they may
//! have, and bounds on `n`.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use millrace_integration_tests::{Answer, SecretFile, Server, post, post_with};
use serde_json::{Value, json};

/// A conversation of several hundred tokens.
fn chat() -> Value {
    let facts: Vec<String> = (10..60).map(|n| format!("Rosa bought {n} lemons on Monday.")).collect();
    json!({"messages": [{"role": "user", "content": facts.join(" ")}], "max_tokens": 4, "temperature": 0})
}

fn ask(server: &Server, key: &str, body: &Value) -> Answer {
    let authorization = format!("bearer {key}");
    post_with(&server.url("/v1/chat/completions"), &[("authorization", &authorization)], body)
}

/// Tokens that were not computed, as the body and the header tell it.
fn cached(answer: &Answer) -> u64 {
    assert_eq!(answer.status, 200, "{}", answer.body);
    let header: u64 = answer.header("x-cached-tokens").unwrap().parse().unwrap();
    let body = answer.body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert_eq!(header, body);
    body
}

#[test]
fn a_key_learns_nothing_of_what_another_key_has_asked() {
    let server = Server::start(&["--api-key", "one,two"]);
    let body = chat();
    for key in ["one", "two"] {
        assert_eq!(cached(&ask(&server, key, &body)), 0, "the first request of `{key}`");
        assert!(cached(&ask(&server, key, &body)) > 100, "the second request of `{key}`");
    }
    // A salt of the client's own parts its cache further and reaches no other key's.
    let mut salted = body;
    salted["cache_salt"] = json!("key 0");
    assert_eq!(cached(&ask(&server, "two", &salted)), 0);
    assert!(cached(&ask(&server, "two", &salted)) > 100);
}

#[test]
fn keys_may_share_a_cache() {
    let server = Server::start(&["--api-key", "one,two", "--cache-salt-per-key=false"]);
    let body = chat();
    assert_eq!(cached(&ask(&server, "one", &body)), 0);
    assert!(cached(&ask(&server, "two", &body)) > 100);
}

#[test]
fn a_file_says_which_keys_may_have_high_priority() {
    let file = SecretFile::new("priorities", "# the shop\nfast priority=high\nslow\n");
    let server = Server::start(&["--api-key-file", file.path(), "--cache-salt-per-key"]);
    let mut body = chat();
    body["priority"] = json!("high");
    assert_eq!(ask(&server, "fast", &body).status, 200);
    let refused = ask(&server, "slow", &body);
    assert_eq!(refused.status, 403);
    assert_eq!(refused.body["error"]["code"], "insufficient_permissions");
    assert_eq!(ask(&server, "priority=high", &body).status, 401, "the mark is not a key");
    body["priority"] = json!("normal");
    assert_eq!(ask(&server, "slow", &body).status, 200);
}

#[test]
fn max_best_of_bounds_n() {
    let server = Server::start(&["--max-best-of", "3"]);
    let mut body = chat();
    body["temperature"] = json!(1);
    for (n, status) in [(3, 200), (4, 400)] {
        body["n"] = json!(n);
        let answer = post(&server.url("/v1/chat/completions"), &body);
        assert_eq!(answer.status, status, "{n}: {}", answer.body);
        let message = answer.body["error"]["message"].as_str().unwrap_or_default();
        assert_eq!(message.contains("--max-best-of"), status == 400, "{message}");
    }
    let server = Server::start(&["--cache-salt-per-key", "true"]);
    server.says("--cache-salt-per-key has no effect");
    body["n"] = json!(17);
    assert_eq!(post(&server.url("/v1/chat/completions"), &body).status, 400);
}
