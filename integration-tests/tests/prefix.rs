//! The prefix cache on real weights: what is reused changes no answer, and only what has been computed is reused.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use millrace_integration_tests::{Answer, Server, post, stream};
use serde_json::{Value, json};

/// A prompt of several hundred tokens that ends with `question`.
fn request(question: &str) -> Value {
    let facts: Vec<String> = (10..60).map(|n| format!("Rosa bought {n} lemons on Monday.")).collect();
    let parameters = json!({"max_new_tokens": 40, "stop": ["\u{1}"], "details": true, "top_n_tokens": 2});
    json!({"inputs": format!("{} {question}", facts.join(" ")), "parameters": parameters})
}

/// Tokens with their log-probabilities and alternatives, to the last bit that is shown.
fn details(answer: &Answer) -> &Value {
    assert_eq!(answer.status, 200, "{}", answer.body);
    let details = &answer.body["details"];
    assert!(details["tokens"].as_array().is_some_and(|tokens| !tokens.is_empty()), "{details}");
    details
}

/// Tokens of the prompt, and how many of them were not computed.
fn prompt_and_cached(answer: &Answer) -> (usize, usize) {
    let number = |name: &str| answer.header(name).unwrap().parse().unwrap();
    (number("x-prompt-tokens"), number("x-cached-tokens"))
}

/// Whether all was there that can be: the last token is always computed, and with it the block that it is in.
fn all_cached((prompt, cached): (usize, usize)) -> bool {
    (prompt - 16..prompt).contains(&cached)
}

#[test]
fn a_shared_prefix_is_computed_once_and_changes_nothing() {
    let plain = Server::start(&["--prefix-caching", "false"]);
    let server = Server::start(&[]);
    let mut hits = 0;
    for (round, question) in
        ["Who bought lemons?", "What did Rosa buy?", "Who bought lemons?"].iter().enumerate()
    {
        let body = request(question);
        let expected = post(&plain.url("/generate"), &body);
        let got = post(&server.url("/generate"), &body);
        assert_eq!(details(&got), details(&expected), "round {round}");
        assert_eq!(prompt_and_cached(&expected).1, 0);
        let (prompt, cached) = prompt_and_cached(&got);
        let right = [cached == 0, cached > prompt - 32 && cached < prompt, all_cached((prompt, cached))];
        assert!(right[round], "round {round}: {cached} of {prompt}");
        hits += cached;
    }
    assert_eq!(server.metric("millrace_prefix_cache_hit_tokens_total"), hits as f64);
}

#[test]
fn another_salt_finds_nothing() {
    let server = Server::start(&[]);
    let ask = |salt: Option<&str>| {
        let mut body = request("Who bought lemons?");
        body["parameters"]["cache_salt"] = json!(salt);
        prompt_and_cached(&post(&server.url("/generate"), &body))
    };
    let salts = [None, Some("a"), Some("b")];
    assert_eq!(salts.map(|salt| ask(salt).1), [0; 3]);
    assert!(salts.into_iter().all(|salt| all_cached(ask(salt))));
}

#[test]
fn a_prefill_that_was_cancelled_leaves_nothing_wrong() {
    let body = request("Who bought lemons?");
    let expected = post(&Server::start(&["--prefix-caching", "false"]).url("/generate"), &body);
    // Many steps, so that the client leaves in the middle.
    let server = Server::start(&["--max-batch-prefill-tokens", "1", "--max-batch-size", "2"]);
    drop(stream(&server.url("/generate_stream"), &body));
    server.wait_until("it is cancelled", |server| server.metric("tgi_batch_current_size") == 0.0);
    for round in 0..2 {
        let got = post(&server.url("/generate"), &body);
        assert_eq!(details(&got), details(&expected), "round {round}");
        let (prompt, cached) = prompt_and_cached(&got);
        // What the first attempt has computed is worth as much as if it had ended, and no more is taken from it.
        let right = if round == 0 { cached < prompt - 32 } else { all_cached((prompt, cached)) };
        assert!(right, "round {round}: {cached} of {prompt}");
    }
}
