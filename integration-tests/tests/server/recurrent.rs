//! Serves models with recurrent layers: neither the other requests of a batch, nor a previous user
//! of a slot, nor the checkpoint that a prompt begins with changes an answer.

use millrace_integration_tests::{Server, post, stream};
use serde_json::{Value, json};

use millrace_integration_tests::golden::{Golden, generate, generate_together};

/// Prompts of different lengths. Two are equal, and one begins with another one.
fn prompts() -> Vec<Vec<u32>> {
    let of = |seed: u32, length: u32| (0..length).map(|i| 3 + (i * i * 7 + i * seed + seed) % 50).collect();
    let mut all: Vec<Vec<u32>> = (1..9).map(|seed| of(seed, 3 + seed * 37 % 34)).collect();
    all.push(all[4].clone());
    let longer = [&all[5][..], &[7, 9, 11]].concat();
    all.push(longer);
    all
}

/// Returns the logprobs of the tokens of a prompt.
fn scores(server: &Server, prompt: &[u32]) -> Vec<f64> {
    let body = json!({"prompt": prompt, "echo": true, "logprobs": 1, "max_tokens": 0});
    let answer = post(&server.url("/v1/completions"), &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let logprobs = &answer.body["choices"][0]["logprobs"]["token_logprobs"];
    logprobs.as_array().unwrap().iter().filter_map(Value::as_f64).collect()
}

/// The families differ in the rule of their recurrence, and in what is beside it.
const NAMES: [&str; 6] =
    ["granitemoehybrid", "qwen3_next", "lfm2", "falcon_h1", "nemotron_h_experts", "kimi_linear"];

#[test]
fn a_batch_changes_no_answer() {
    for name in NAMES {
        let golden = Golden::new(name);
        let server = golden.serve(&[]);
        server.wait_for_log("prompts with the same prefix are shared at up to 32 checkpoints");
        for (prompt, continuation) in golden.continuations() {
            let (found, _) = generate(&server, &prompt, continuation.len());
            assert_eq!(found, continuation, "{name}: the greedy path of transformers");
        }
        let prompts = prompts();
        let alone: Vec<Vec<u32>> = prompts
            .iter()
            .map(|prompt| {
                let (ids, cached) = generate(&server, prompt, 20);
                assert_eq!(cached, 0, "{name}: it is too short for a checkpoint");
                ids
            })
            .collect();
        assert_ne!(alone[0], alone[1], "{name}: prompts matter");
        assert_eq!(generate_together(&server, &prompts, 20), alone, "{name}");
        // Each slot serves several sequences, and prompts are computed in pieces between the tokens
        // of other sequences.
        let small = golden.serve(&["--max-batch-size", "3", "--max-batch-prefill-tokens", "4"]);
        assert_eq!(generate_together(&small, &prompts, 20), alone, "{name} in pieces");
        for server in [server, small] {
            assert_eq!(server.metric("millrace_prefix_cache_hit_tokens_total"), 0.0, "{name}");
            assert_eq!(server.metric("millrace_state_checkpoints"), 0.0, "{name}");
        }
    }
}

/// Prompts with a common prefix of 150 tokens, one of which continues another one.
fn long_prompts() -> Vec<Vec<u32>> {
    let of = |seed: u32, length: u32| (0..length).map(move |i| 3 + (i * i * 7 + i * seed + seed) % 50);
    let prompt = |own: u32, length: u32| of(1, 150).chain(of(own, length)).collect::<Vec<u32>>();
    vec![prompt(2, 100), prompt(3, 90), prompt(4, 77), prompt(2, 180), prompt(2, 100)]
}

#[test]
fn a_prompt_that_begins_at_a_checkpoint_gets_the_same_answer() {
    for name in NAMES {
        let golden = Golden::new(name).with_positions(512);
        let prompts = long_prompts();
        let off = golden.serve(&["--state-checkpoints", "off"]);
        off.wait_for_log("prompts are not shared");
        let answers: Vec<Vec<u32>> = prompts.iter().map(|prompt| generate(&off, prompt, 20).0).collect();
        assert_eq!(generate(&off, &prompts[0], 20), (answers[0].clone(), 0), "{name}");
        for flags in [&[][..], &["--num-shard", "2"], &["--max-batch-prefill-tokens", "40"]] {
            let server = golden.serve(&[&["--state-checkpoints", "4"], flags].concat());
            let mut cached = Vec::new();
            for (prompt, answer) in prompts.iter().zip(&answers) {
                let (found, hit) = generate(&server, prompt, 20);
                assert_eq!(found, *answer, "{name} {flags:?}, {hit} cached tokens");
                cached.push(hit);
            }
            // The second prompt finds where it leaves the first one, and saves its states there.
            assert_eq!(cached, [0, 0, 144, 240, 240], "{name} {flags:?}");
            assert_eq!(generate_together(&server, &prompts, 20), answers, "{name} {flags:?}");
            assert_eq!(server.metric("millrace_state_checkpoints"), 4.0, "{name}");
        }
    }
}

/// The only slot has the state of a sequence whose client left in the middle of its prompt or of
/// its answer.
#[test]
fn the_slot_of_a_cancelled_request_leaks_no_state() {
    let golden = Golden::new("granitemoehybrid");
    let prompts = prompts();
    let fresh = generate(&golden.serve(&[]), &prompts[2], 20).0;
    let server = golden.serve(&["--max-batch-size", "1", "--max-batch-prefill-tokens", "1"]);
    for (prompt, tokens) in [(&prompts[0], 1), (&prompts[7], 0), (&prompts[1], 12)] {
        let body = json!({
            "prompt": prompt, "max_tokens": 64 - prompt.len(), "temperature": 0, "ignore_eos": true,
            "stream": true,
        });
        let mut events = stream(&server.url("/v1/completions"), &body);
        assert_eq!(events.status, 200);
        assert_eq!(events.by_ref().take(tokens).count(), tokens);
        drop(events);
        assert_eq!(generate(&server, &prompts[2], 20).0, fresh, "after {tokens} tokens");
    }
}

/// Ranks share the heads of recurrent layers.
#[test]
fn two_ranks_give_the_greedy_path_of_transformers() {
    for name in NAMES {
        let golden = Golden::new(name);
        let split = golden.serve(&["--num-shard", "2"]);
        for (prompt, continuation) in golden.continuations() {
            let (found, _) = generate(&split, &prompt, continuation.len());
            assert_eq!(found, continuation, "{name}");
        }
    }
}

/// Weights of 8 bits change the logprobs of a prompt slightly, and those of 4 bits more. The bounds
/// are about twice the distances. The weights are random and larger than trained ones, so that
/// rounding changes more than in real models, above all where a key of a gated delta net is short.
#[test]
fn quantized_models_score_close_to_exact_ones() {
    for (name, bound) in [
        ("granitemoehybrid_dense", 0.1),
        ("qwen3_5_text", 0.5),
        ("lfm2", 0.12),
        ("falcon_h1", 0.05),
        ("nemotron_h_experts", 0.015),
    ] {
        let golden = Golden::new(name);
        let text: Vec<u32> = golden.continuations().remove(0).0;
        let want = scores(&golden.serve(&[]), &text);
        assert!(want.len() + 1 == text.len() && want.iter().any(|logprob| *logprob < -1.0), "{want:?}");
        let distance = |format: &str| {
            let server = golden.serve(&["--quantize", format, "--activations", "exact"]);
            server.wait_for_log(&format!("matrices of layers as {format}"));
            let found = scores(&server, &text);
            let sum: f64 = found.iter().zip(&want).map(|(a, b)| (a - b).abs()).sum();
            sum / want.len() as f64
        };
        let [int8, q8_0, int4] = ["int8", "q8_0", "int4"].map(distance);
        println!("{name}: int8 {int8:.4}, q8_0 {q8_0:.4}, int4 {int4:.4} apart");
        assert!(int8 > 0.0 && int8 < bound && q8_0 < bound, "{name}: {int8} {q8_0}");
        assert!(int4 > 2.0 * int8, "{name}: {int4} {int8}");
    }
}
