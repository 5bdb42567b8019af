//! Tests the prefix cache on real weights: reuse changes no answer, and only computed blocks are
//! reused.

use millrace_integration_tests::{JsonResponse, Server, post, stream};
use serde_json::{Value, json};

/// A prompt of several hundred tokens that ends with `question`.
fn request(question: &str) -> Value {
    let facts: Vec<String> = (10..60).map(|n| format!("Rosa bought {n} lemons on Monday.")).collect();
    let parameters = json!({"max_new_tokens": 40, "stop": ["\u{1}"], "details": true, "top_n_tokens": 2});
    json!({"inputs": format!("{} {question}", facts.join(" ")), "parameters": parameters})
}

/// Returns the tokens with their logprobs and alternatives in full precision.
fn details(answer: &JsonResponse) -> &Value {
    assert_eq!(answer.status, 200, "{}", answer.body);
    let details = &answer.body["details"];
    assert!(details["tokens"].as_array().is_some_and(|tokens| !tokens.is_empty()), "{details}");
    details
}

/// Returns the number of prompt tokens and the number of cached ones.
fn prompt_and_cached(answer: &JsonResponse) -> (usize, usize) {
    let number = |name: &str| answer.header(name).unwrap().parse().unwrap();
    (number("x-prompt-tokens"), number("x-cached-tokens"))
}

/// Whether all cacheable tokens were cached. The last token is always computed, with the block that
/// contains it.
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
fn answers_to_one_prompt_and_a_herd_of_requests_compute_it_once() {
    let server = Server::start(&[]);
    let count = |name: &str| server.metric(&format!("millrace_prefix_cache_{name}_tokens_total"));
    let prompt = request("Who bought lemons?")["inputs"].clone();
    let body = json!({"prompt": prompt, "n": 4, "max_tokens": 5, "temperature": 1.0, "seed": 1});
    let answer = post(&server.url("/v1/completions"), &body);
    assert_eq!((answer.status, answer.body["choices"].as_array().unwrap().len()), (200, 4));
    let tokens = answer.body["usage"]["prompt_tokens"].as_f64().unwrap();
    let shared = ((tokens - 1.0) / 16.0).floor() * 16.0;
    assert_eq!((count("hit"), count("miss")), (3.0 * shared, tokens + 3.0 * (tokens - shared)));

    // Another prompt, from several clients at the same time.
    let before = (count("hit"), count("miss"));
    let url = server.url("/generate");
    let body = request("What did Rosa buy on Monday?");
    let ask = || prompt_and_cached(&post(&url, &json!({"inputs": format!("Listen. {}", body["inputs"])})));
    let answers: Vec<_> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let all = answers[0].0;
    assert_eq!(answers.iter().filter(|&&answer| all_cached(answer)).count(), 7, "{answers:?}");
    let computed = answers.iter().map(|(prompt, cached)| prompt - cached).sum::<usize>();
    assert!(computed < all + 7 * 17, "{computed} tokens are computed for prompts of {all}");
    assert_eq!(count("hit") - before.0, answers.iter().map(|answer| answer.1 as f64).sum::<f64>());
}

#[test]
fn another_cache_salt_has_no_hits() {
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

/// Starts a server, and sends a request whose client leaves when a part of the prompt is computed.
/// Returns nothing if the server had computed most of the prompt before.
fn start_and_leave_in_the_middle(body: &Value, prompt: usize) -> Option<Server> {
    // The prefill takes a step for each token.
    let flags = ["--max-batch-prefill-tokens", "1", "--max-batch-size", "2", "--heartbeat-timeout", "86400"];
    let server = Server::start(&flags);
    let computed = || {
        let tokens =
            |method: &str| server.metric(&format!("millrace_step_tokens_total{{method=\"{method}\"}}"));
        tokens("prefill") + tokens("decode")
    };
    let events = stream(&server.url("/generate_stream"), body);
    server.wait_until("several blocks are computed", |_| computed() > 40.0);
    // The stopped shard computes nothing more until the client has left.
    server.signal_shards("STOP");
    let is_in_the_middle = computed() < prompt as f64 - 40.0;
    drop(events);
    server.wait_until("it is cancelled", |server| server.metric("tgi_batch_current_size") == 0.0);
    server.signal_shards("CONT");
    is_in_the_middle.then_some(server)
}

#[test]
fn a_cancelled_prefill_leaves_a_correct_cache() {
    let body = request("Who bought lemons?");
    let expected = post(&Server::start(&["--prefix-caching", "false"]).url("/generate"), &body);
    // A test that is not run for a moment leaves too late, and tries again.
    let server = (0..20).find_map(|_| start_and_leave_in_the_middle(&body, prompt_and_cached(&expected).0));
    let server = server.expect("no prompt was left in the middle");
    for round in 0..2 {
        let got = post(&server.url("/generate"), &body);
        assert_eq!(details(&got), details(&expected), "round {round}");
        let (prompt, cached) = prompt_and_cached(&got);
        // The blocks that the first attempt has computed are reused, and no others.
        let right =
            if round == 0 { (32..prompt - 32).contains(&cached) } else { all_cached((prompt, cached)) };
        assert!(right, "round {round}: {cached} of {prompt}");
    }
}
