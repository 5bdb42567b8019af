//! Tests requests that end shards, that shards cannot run, or that lead to NaN logits. Each fails
//! alone with a clear error, and the other requests get their usual results.

use millrace_integration_tests::{JsonResponse, ModelCopy, Server, TILDE, long_generation, post, stream};
use serde_json::{Value, json};

/// Returns the value of a labeled metric, or 0 if it does not exist.
fn labelled(server: &Server, name: &str) -> f64 {
    let (_, text) = server.get("/metrics");
    let value = |line: &str| line.strip_prefix(name)?.trim().parse().ok();
    text.lines().find_map(value).unwrap_or(0.0)
}

fn complete(server: &Server, prompt: &Value) -> JsonResponse {
    post(
        &server.url("/v1/completions"),
        &json!({"model": "tgi", "prompt": prompt, "max_tokens": 8, "temperature": 0}),
    )
}

fn assert_healthy(server: &Server) {
    assert_eq!(server.get("/ready").0, 200, "{}", server.log());
    assert!(!server.log().contains("panicked"), "{}", server.log());
}

#[test]
fn end_tokens_and_prompts_beyond_the_model_s_vocabulary_end_no_shard() {
    let model = ModelCopy::new("over-vocabulary");
    // The tokenizer has a token that the model lacks, and the model folder declares it as an end
    // token.
    model.edit("tokenizer.json", |tokenizer| {
        let mut over = tokenizer["added_tokens"][0].clone();
        (over["id"], over["content"]) = (json!(1024), json!("<|over|>"));
        tokenizer["added_tokens"].as_array_mut().unwrap().push(over);
    });
    model.edit("generation_config.json", |config| config["eos_token_id"] = json!([2, 0, 1024]));
    let server = Server::start(&["--model-id", model.path()]);
    for body in [
        json!({"prompt": "Once", "min_tokens": 4, "max_tokens": 8}),
        json!({"prompt": "Once", "min_tokens": 4, "max_tokens": 8, "stop": ["<|over|>"]}),
    ] {
        let answer = post(&server.url("/v1/completions"), &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert!(answer.body["usage"]["completion_tokens"].as_u64().unwrap() >= 4, "{}", answer.body);
    }
    // The token has no embedding. The request is refused, and the server continues.
    for (path, body, status) in [
        ("/generate", json!({"inputs": "a <|over|>"}), 422),
        ("/generate_stream", json!({"inputs": "a <|over|>"}), 422),
        ("/v1/completions", json!({"prompt": "a <|over|>"}), 400),
        ("/v1/completions", json!({"prompt": [5, 1024]}), 400),
        ("/v1/embeddings", json!({"input": "a <|over|>"}), 400),
    ] {
        let answer = post(&server.url(path), &body);
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
        assert!(answer.body.to_string().contains("outside of the vocabulary"), "{path}: {}", answer.body);
    }
    // In a message it is ordinary text, like every special token.
    let message =
        json!({"model": "tgi", "max_tokens": 5, "messages": [{"role": "user", "content": "<|over|>"}]});
    let answer = post(&server.url("/v1/messages"), &message);
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(server.metric("millrace_shard_restarts_total"), 0.0);
    assert_healthy(&server);
}

#[test]
fn a_request_that_ends_the_shards_fails_alone() {
    let deadly = TILDE.to_string();
    let server = Server::start_with_env(&[("MILLRACE_TEST_DEADLY_TOKEN", deadly.as_str())], &[]);
    let undisturbed = long_generation(&server, || {});
    assert_eq!(server.metric("millrace_shard_restarts_total"), 0.0);
    for killed in 1..=2 {
        let beside = long_generation(&server, || {
            let answer = post(&server.url("/generate"), &json!({"inputs": "a ~ b"}));
            assert_eq!(answer.status, 424, "{}", answer.body);
            let text = answer.body.to_string();
            assert!(text.contains("ended the shards three times"), "{text}");
        });
        assert_eq!(beside, undisturbed, "the concurrent stream loses nothing");
        assert_eq!(server.metric("millrace_blamed_requests_total"), f64::from(killed));
        server.wait_for_restarts(3 * killed);
    }
    // Several such requests run at once, without other requests that would show that the shard
    // works.
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let ask = || post(&server.url("/v1/completions"), &json!({"prompt": "~", "max_tokens": 3})).status;
        let clients: Vec<_> = (0..3).map(|_| scope.spawn(ask)).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    assert_eq!(statuses, [500; 3]);
    assert_eq!(server.metric("millrace_blamed_requests_total"), 5.0);
    assert_eq!(long_generation(&server, || {}), undisturbed);
    assert_healthy(&server);
}

#[test]
fn nan_logits_fail_only_their_request() {
    for value in [f32::NAN, f32::INFINITY] {
        let model = ModelCopy::new("not-finite");
        model.overwrite_embedding(TILDE, value);
        let server = Server::start(&["--model-id", model.path()]);
        let undisturbed = long_generation(&server, || {});
        let beginning =
            "Rosa bought more lemons on Monday and gave some of them to a friend of hers who had none. ";
        let asked = json!(beginning.repeat(3));
        let before = complete(&server, &asked).body["choices"][0]["text"].clone();
        let beside =
            long_generation(&server, || fail_in_each_api(&server, &format!("{} ~", asked.as_str().unwrap())));
        assert_eq!(beside, undisturbed);
        // The blocks that the failed request left in the prefix cache are not reused.
        assert_eq!(complete(&server, &asked).body["choices"][0]["text"], before);
        let longer = json!(format!("{} ~ and then", asked.as_str().unwrap()));
        assert_eq!(complete(&server, &longer).status, 500);
        assert!(labelled(&server, "millrace_row_errors_total{kind=\"not_finite\"}") >= 8.0);
        assert_eq!(server.metric("millrace_shard_restarts_total"), 0.0);
        assert_healthy(&server);
    }
}

/// Sends the request to every API, with and without streaming.
fn fail_in_each_api(server: &Server, text: &str) {
    let user = json!([{"role": "user", "content": text}]);
    for (path, body, status) in [
        ("/generate", json!({"inputs": text}), 424),
        (
            "/generate",
            json!({"inputs": text, "parameters": {"do_sample": true, "seed": 1, "top_p": 0.5}}),
            424,
        ),
        ("/v1/completions", json!({"prompt": text, "temperature": 0}), 500),
        ("/v1/completions", json!({"prompt": text, "prompt_logprobs": 1, "max_tokens": 1}), 500),
        ("/v1/chat/completions", json!({"messages": user}), 500),
        ("/v1/responses", json!({"input": text}), 500),
        ("/v1/messages", json!({"model": "tgi", "max_tokens": 9, "messages": user}), 500),
        ("/v1/embeddings", json!({"input": text}), 500),
    ] {
        let answer = post(&server.url(path), &body);
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
        assert!(answer.body.to_string().contains("not finite"), "{path}: {}", answer.body);
    }
    for (path, body) in [
        ("/generate_stream", json!({"inputs": text})),
        ("/v1/completions", json!({"prompt": text, "stream": true})),
        ("/v1/chat/completions", json!({"messages": user, "stream": true})),
        ("/v1/responses", json!({"input": text, "stream": true})),
        ("/v1/messages", json!({"model": "tgi", "max_tokens": 9, "messages": user, "stream": true})),
    ] {
        let last = stream(&server.url(path), &body).last().unwrap();
        assert!(last.to_string().contains("not finite"), "{path}: {last}");
    }
}

#[test]
fn many_answers_to_a_long_cached_prompt_fit_the_messages() {
    const PROMPT: u32 = 200_000;
    let model = ModelCopy::new("long-prompt");
    // Three bytes for nearly every token: 128 prompts have 77 MB, which exceeds the maximum message
    // size.
    model.edit("config.json", |config| {
        config["max_position_embeddings"] = json!(210_000);
        config["vocab_size"] = json!(131_072);
    });
    let flags = ["--device", "null", "--max-best-of", "128", "--payload-limit", "20000000"];
    let room = [
        "--max-batch-size",
        "128",
        "--max-batch-prefill-tokens",
        "65536",
        "--max-concurrent-requests",
        "256",
    ];
    let server = Server::start(&[&["--model-id", model.path()][..], &flags, &room].concat());
    let prompt: Vec<u32> = (0..PROMPT).map(|at| 20_000 + at % 100_000).collect();
    let ask = |n: u32| {
        let body = json!({"prompt": prompt, "n": n, "max_tokens": 2, "temperature": 0.9, "seed": 1});
        let answer = post(&server.url("/v1/completions"), &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body["choices"].as_array().unwrap().len()
    };
    assert_eq!(ask(1), 1);
    assert_eq!(ask(128), 128);
    assert!(server.metric("millrace_prefix_cache_hit_tokens_total") > 100.0 * f64::from(PROMPT));
    assert_eq!(server.metric("millrace_shard_restarts_total"), 0.0);
    assert_healthy(&server);
}
