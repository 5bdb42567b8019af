//! Speculation: drafts change no token of any answer.

use millrace_integration_tests::{SMALL_SERVER_FLAGS, Server, long_generation, post, require_simulated_gpus};
use serde_json::{Value, json};

use millrace_integration_tests::golden::Golden;

/// Rows have drafts even where a model is so small that they are not worth their time.
const ALWAYS: [&str; 3] = ["--speculate", "6", "--speculate-always"];

/// Prompts that repeat themselves, and one that does not.
fn prompts() -> Vec<Vec<u32>> {
    let period = |length: u32| (0..40).map(|i| 5 + i % length).collect();
    let other = (0..17).map(|i| 3 + i * i * 7 % 50).collect();
    vec![period(3), period(7), period(11), other]
}

/// Ways to sample: what a draft is compared with depends on the tokens before it in each of them.
fn ways() -> Vec<Value> {
    vec![
        json!({"temperature": 0}),
        json!({"temperature": 0, "frequency_penalty": 0.4, "presence_penalty": 0.2}),
        json!({"temperature": 0, "repetition_penalty": 1.2, "logprobs": 3}),
        json!({"temperature": 0.7, "seed": 1, "top_p": 0.9, "n": 3}),
        json!({"temperature": 0.3, "seed": 2, "top_k": 5, "min_tokens": 30}),
        json!({"temperature": 0.1, "seed": 3, "max_tokens": 33, "echo": true}),
        json!({"temperature": 0, "logit_bias": {"9": 4.0}}),
        json!({"temperature": 0, "stop": ["M@", "8Q"]}),
    ]
}

/// Returns the choices of all prompts and ways, which are requested at the same time.
pub(super) fn choices(server: &Server) -> Vec<Value> {
    let prompts = prompts();
    let of_request = |prompt: &Vec<u32>, mut body: Value| {
        body["prompt"] = json!(prompt);
        body["ignore_eos"] = json!(true);
        body["return_token_ids"] = json!(true);
        if body["max_tokens"].is_null() {
            body["max_tokens"] = json!(90);
        }
        let answer = post(&server.url("/v1/completions"), &body);
        assert_eq!(answer.status, 200, "{body}: {}", answer.body);
        answer.body["choices"].clone()
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = prompts
            .iter()
            .flat_map(|prompt| ways().into_iter().map(move |way| (prompt, way)))
            .map(|(prompt, way)| scope.spawn(move || of_request(prompt, way)))
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    })
}

/// Checks that all answers are equal. A failure shows the first one that is not.
pub(super) fn assert_same(found: &[Value], wanted: &[Value], flags: &[&str]) {
    assert_eq!(found.len(), wanted.len());
    for (index, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        assert_eq!(found, wanted, "{flags:?}: answer {index}");
    }
}

/// The numbers of drafts that were verified, and that were right.
pub(super) fn counts(server: &Server) -> (f64, f64) {
    let count = |name: &str| server.metric(&format!("vllm:spec_decode_num_{name}_tokens_total"));
    (count("draft"), count("accepted"))
}

#[test]
fn drafts_change_no_token() {
    let golden = Golden::new("llama_gqa").with_positions(512);
    let alone = choices(&golden.serve(&[]));
    // Two shards add numbers in another order.
    let two_shards = choices(&golden.serve(&["--num-shard", "2"]));
    for flags in [
        &[][..],
        &["--num-shard", "2"],
        &["--max-batch-size", "1"],
        &["--max-batch-prefill-tokens", "4", "--max-batch-size", "5"],
        &["--prefix-caching", "false", "--max-batch-total-tokens", "512"],
    ] {
        let server = golden.serve(&[&ALWAYS[..], flags].concat());
        let wanted = if flags.contains(&"--num-shard") { &two_shards } else { &alone };
        assert_same(&choices(&server), wanted, flags);
        let (drafts, right) = counts(&server);
        assert!(right > 0.0 && drafts > right, "{flags:?}: {right} of {drafts}");
        // The second time, prompts come from the cache with what was generated after them.
        assert_same(&choices(&server), wanted, flags);
    }
}

#[test]
fn the_usage_counts_the_drafts_of_a_request() {
    let golden = Golden::new("llama_gqa").with_positions(512);
    let usage = |server: &Server, prompt: &[u32], n: usize| {
        let body = json!({
            "prompt": prompt, "max_tokens": 90, "n": n, "seed": 2, "ignore_eos": true,
            "temperature": if n == 1 { 0.0 } else { 0.3 }, "top_k": 5,
        });
        let answer = post(&server.url("/v1/completions"), &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body["usage"]["completion_tokens_details"].clone()
    };
    assert_eq!(usage(&golden.serve(&[]), &prompts()[0], 1), Value::Null, "nothing is guessed");
    let server = golden.serve(&ALWAYS);
    let (mut verified, mut accepted) = (0.0, 0.0);
    for prompt in prompts() {
        for n in [1, 3] {
            let details = usage(&server, &prompt, n);
            // An answer without guesses has no details.
            let count = |name: &str| details[name].as_f64().unwrap_or_default();
            accepted += count("accepted_prediction_tokens");
            verified += count("accepted_prediction_tokens") + count("rejected_prediction_tokens");
            assert!(details.get("reasoning_tokens").is_none(), "{details}");
        }
    }
    assert!(accepted > 0.0 && verified > accepted, "{accepted} of {verified}");
    assert_eq!(counts(&server), (verified, accepted));
}

#[test]
fn drafts_that_are_not_worth_their_time_change_no_token_either() {
    let golden = Golden::new("llama_gqa").with_positions(512);
    let wanted = choices(&golden.serve(&[]));
    let flags = ["--speculate", "4"];
    assert_same(&choices(&golden.serve(&flags)), &wanted, &flags);
}

#[test]
fn earlier_answers_give_drafts_and_change_no_token() {
    let golden = Golden::new("llama_gqa").with_positions(512);
    let wanted = choices(&golden.serve(&[]));
    let suffix = [
        "--speculate-always",
        "--speculative-config",
        r#"{"method": "suffix", "num_speculative_tokens": 6}"#,
    ];
    let server = golden.serve(&suffix);
    assert_same(&choices(&server), &wanted, &suffix);
    let (_, first) = counts(&server);
    assert_same(&choices(&server), &wanted, &suffix);
    let (_, both) = counts(&server);
    // The prompt that does not repeat itself gets most of its answers from the first round.
    assert!(both - first > first + 100.0, "{first} drafts were right at first, {both} in both rounds");
}

#[test]
fn a_lost_shard_loses_no_token_while_drafts_are_verified() {
    let text = long_generation(&Server::start(&[]), || ());
    let server = Server::start(&ALWAYS);
    let restarted = long_generation(&server, || {
        server.signal_shards("KILL");
        server.wait_for_restarts(1);
    });
    assert_eq!(restarted, text);
    assert!(counts(&server).0 > 0.0);
}

#[test]
fn constrained_answers_have_no_drafts() {
    let server = Server::start(&ALWAYS);
    let body = json!({
        "prompt": "a a a a a a a a", "max_tokens": 40, "temperature": 0,
        "structured_outputs": {"regex": "(ab ){12}"},
    });
    let answer = post(&server.url("/v1/completions"), &body);
    assert_eq!(answer.body["choices"][0]["text"], "ab ".repeat(12), "{}", answer.body);
    assert_eq!(counts(&server), (0.0, 0.0));
}

/// Recurrent states cannot go back to the last right draft, so they are kept before the drafts.
#[test]
fn drafts_change_no_token_of_models_with_recurrent_layers() {
    let mut wrong = 0.0;
    for name in ["qwen3_5_text", "lfm2", "falcon_h1", "mamba2", "nemotron_h"] {
        let golden = Golden::new(name).with_positions(512);
        let wanted = choices(&golden.serve(&[]));
        for flags in [
            &[][..],
            &["--max-batch-size", "3", "--state-checkpoints", "2"],
            &["--prefix-caching", "false", "--max-batch-prefill-tokens", "4", "--max-batch-size", "5"],
        ] {
            let server = golden.serve(&[&ALWAYS[..], flags].concat());
            assert_same(&choices(&server), &wanted, flags);
            let (drafts, right) = counts(&server);
            assert!(right > 0.0, "{name} {flags:?}: {right} of {drafts}");
            wrong += drafts - right;
            assert_same(&choices(&server), &wanted, flags);
        }
    }
    let golden = Golden::new("qwen3_5_text").with_positions(512);
    let shards = ["--num-shard", "2"];
    let server = golden.serve(&[&ALWAYS[..], &shards].concat());
    assert_same(&choices(&server), &choices(&golden.serve(&shards)), &shards);
    // Random weights repeat themselves so often that all drafts of some models are right.
    assert!(wrong > 0.0);
}

#[test]
fn a_lost_shard_loses_no_state_that_was_kept_before_drafts() {
    let golden = Golden::new("qwen3_5_text").with_positions(512);
    let wanted = choices(&golden.serve(&[]));
    lose_shard_while_drafting(&golden.serve(&ALWAYS), &wanted);
}

/// Kills the shard after some drafts, and checks that the answers are the ones wanted.
pub(super) fn lose_shard_while_drafting(server: &Server, wanted: &[Value]) {
    std::thread::scope(|scope| {
        let client = scope.spawn(|| choices(server));
        while counts(server).0 < 20.0 {
            std::thread::yield_now();
        }
        server.signal_shards("KILL");
        assert_same(&client.join().unwrap(), wanted, &[]);
    });
    server.wait_for_restarts(1);
}

#[test]
fn models_that_cannot_verify_drafts_say_so() {
    let server = Golden::new("lfm2").serve(&[&ALWAYS[..], &["--state-checkpoints", "off"]].concat());
    server.wait_for_log("recurrent layers go back to a checkpoint after a wrong draft, and there are none");
    let answer = post(&server.url("/v1/completions"), &json!({"prompt": vec![5; 20], "max_tokens": 9}));
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(counts(&server), (0.0, 0.0));

    require_simulated_gpus();
    let gpu = Golden::new("llama_gqa").serve_on("cuda-sim", &[&ALWAYS[..], &SMALL_SERVER_FLAGS].concat());
    gpu.wait_for_log("--speculate has no effect: drafts are only verified on the CPU");
}
