//! Tests API keys with the real server: separate prefix caches, priorities, and bounds on `n`.

use millrace_integration_tests::{JsonResponse, SecretFile, Server, post, post_with};
use serde_json::{Value, json};

/// A conversation of several hundred tokens.
fn chat() -> Value {
    let facts: Vec<String> = (10..60).map(|n| format!("Rosa bought {n} lemons on Monday.")).collect();
    json!({"messages": [{"role": "user", "content": facts.join(" ")}], "max_tokens": 4, "temperature": 0})
}

fn ask(server: &Server, key: &str, body: &Value) -> JsonResponse {
    let authorization = format!("bearer {key}");
    post_with(&server.url("/v1/chat/completions"), &[("authorization", &authorization)], body)
}

/// Returns the number of cached tokens that the body and the header report.
fn cached(answer: &JsonResponse) -> u64 {
    assert_eq!(answer.status, 200, "{}", answer.body);
    let header: u64 = answer.header("x-cached-tokens").unwrap().parse().unwrap();
    let body = answer.body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert_eq!(header, body);
    body
}

#[test]
fn keys_do_not_share_prefix_caches() {
    let server = Server::start(&["--api-key", "one,two"]);
    let body = chat();
    for key in ["one", "two"] {
        assert_eq!(cached(&ask(&server, key, &body)), 0, "the first request of `{key}`");
        assert!(cached(&ask(&server, key, &body)) > 100, "the second request of `{key}`");
    }
    // A client's own salt divides its cache further and does not reach another key's.
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
fn a_key_file_grants_high_priority() {
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
fn a_key_file_limits_keys_and_names_them_in_metrics() {
    let file = SecretFile::new("limits", "limited tokens-per-minute=1 name=shop\nfree\n");
    let server = Server::start(&["--api-key-file", file.path()]);
    let body = chat();
    let accepted = ask(&server, "limited", &body);
    assert_eq!(accepted.status, 200);
    let generated = accepted.body["usage"]["completion_tokens"].as_f64().unwrap();
    let refused = ask(&server, "limited", &body);
    assert_eq!((refused.status, &refused.body["error"]["code"]), (429, &json!("rate_limit_exceeded")));
    assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() > 60);
    assert_eq!(ask(&server, "free", &body).status, 200);
    assert_eq!(server.metric(r#"millrace_key_requests_total{key="shop"}"#), 1.0);
    assert_eq!(server.metric(r#"millrace_key_tokens_total{key="shop",kind="generated"}"#), generated);
    let refused = r#"millrace_key_refused_total{key="shop",limit="tokens_per_minute"}"#;
    assert_eq!(server.metric(refused), 1.0);
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
    server.wait_for_log("--cache-salt-per-key has no effect");
    body["n"] = json!(17);
    assert_eq!(post(&server.url("/v1/chat/completions"), &body).status, 400);
}

/// Two requests of one key with thousands of texts leave room for another key.
#[test]
fn a_key_below_its_share_is_accepted_at_the_limit() {
    let server = Server::start(&["--api-key", "greedy,modest", "--max-concurrent-requests", "8"]);
    let endless = json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 900}});
    let open = |key: &str| {
        let config = ureq::Agent::config_builder().http_status_as_error(false).build();
        let request = ureq::Agent::new_with_config(config).post(server.url("/generate_stream"));
        request.header("x-api-key", key).send_json(&endless).unwrap()
    };
    // The streams stay open as long as these responses.
    let mut streams: Vec<_> = (0..8).map(|_| open("greedy")).collect();
    assert!(streams.iter().all(|stream| stream.status() == 200));
    assert_eq!(open("greedy").status(), 429, "one key alone has the limit exactly");
    // The other key has half of the places, and the limit holds for it, too.
    for _ in 0..4 {
        streams.push(open("modest"));
        assert_eq!(streams.last().unwrap().status(), 200);
    }
    assert_eq!(open("modest").status(), 429);
    assert_eq!(open("greedy").status(), 429);
    drop(streams);
    // The server notices later that the clients have left.
    let is_idle = |server: &Server| {
        ["tgi_batch_current_size", "tgi_queue_size"].iter().all(|name| server.metric(name) == 0.0)
    };
    server.wait_until("no stream is left", is_idle);
    server.wait_until("places are free", |server| ask(server, "modest", &chat()).status == 200);

    let texts: Vec<String> = (0..2048).map(|n| format!("Rosa bought {n} lemons on Monday.")).collect();
    let embed = || {
        let body = json!({"model": "m", "input": texts});
        post_with(&server.url("/v1/embeddings"), &[("authorization", "Bearer greedy")], &body).status
    };
    std::thread::scope(|scope| {
        let floods = [scope.spawn(embed), scope.spawn(embed)];
        while floods.iter().any(|flood| !flood.is_finished()) {
            let answer = ask(&server, "modest", &chat());
            assert_eq!(answer.status, 200, "{}", answer.body);
        }
    });
}

/// Long answers of one key hold all slots. Another key takes one, and the answer that left it is
/// complete nevertheless.
#[test]
fn a_key_without_a_slot_takes_one_of_another_key() {
    let flags = ["--api-key", "greedy,modest", "--max-batch-size", "4"];
    let server = Server::start(&[&flags[..], &["--device", "null", "--null-step-micros", "5000"]].concat());
    let ask = |key: &str, tokens: u64| {
        let body = json!({"prompt": "Once upon a time", "max_tokens": tokens, "ignore_eos": true});
        let authorization = format!("Bearer {key}");
        post_with(&server.url("/v1/completions"), &[("authorization", &authorization)], &body)
    };
    let tokens = |answer: &JsonResponse| answer.body["usage"]["completion_tokens"].as_u64();
    std::thread::scope(|scope| {
        let long: Vec<_> = (0..4).map(|_| scope.spawn(|| ask("greedy", 800))).collect();
        server.wait_until("all slots are taken", |server| server.metric("tgi_batch_current_size") == 4.0);
        let short = ask("modest", 4);
        assert_eq!((short.status, tokens(&short)), (200, Some(4)), "{}", short.body);
        for answer in long {
            let answer = answer.join().unwrap();
            assert_eq!((answer.status, tokens(&answer)), (200, Some(800)), "{}", answer.body);
        }
    });
    // Without a slot of another key, the short answer would have waited for the end of a long one.
    assert_eq!(server.metric("millrace_slot_preemptions_total"), 1.0);
}
