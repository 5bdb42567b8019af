//! Heads that predict further tokens: they guess what their reference guesses, and change no token
//! of any answer.

use std::process::Command;

use millrace_integration_tests::golden::{Golden, generate};
use millrace_integration_tests::{SMALL_SERVER_FLAGS, binary, post, require_simulated_gpus};
use serde_json::json;

use crate::drafts::{assert_same, choices, counts, lose_shard_while_drafting};

/// Rows have drafts even where a model is so small that they are not worth their time.
const ALWAYS: &str = "--speculate-always";
/// Each with whether layers are recurrent.
const MODELS: [(&str, bool); 5] = [
    ("qwen3_5_text", true),
    ("qwen3_5_moe_text", true),
    ("qwen3_next", true),
    ("glm4_moe", false),
    ("deepseek_v3", false),
];

/// vLLM's flag for up to so many guesses.
fn config(count: usize) -> String {
    json!({"method": "mtp", "num_speculative_tokens": count}).to_string()
}

/// The numbers of guesses of one token, and of right ones, for an answer with `guesses` as the
/// guesses after each token but the last two.
fn expected(answer: &[u32], guesses: &[u32], is_recurrent: bool) -> (f64, f64) {
    let (mut count, mut right, mut last) = (0.0, 0.0, 0);
    while last + 2 < answer.len() {
        count += 1.0;
        let is_right = guesses[last] == answer[last + 1];
        right += f64::from(u8::from(is_right));
        // A recurrent layer goes back after a wrong guess, in a step without guesses.
        last += if is_right || is_recurrent { 2 } else { 1 };
    }
    (count, right)
}

/// The head has read every position with the model's state, whatever was guessed before, so each of
/// its guesses is the reference's.
#[test]
fn a_head_guesses_what_its_reference_guesses() {
    let flags = [ALWAYS, "--speculative-config", &config(1)];
    for (name, is_recurrent) in MODELS {
        let (folder, file) = (Golden::with_head(name), Golden::file_with_head(name));
        for (golden, more) in
            [(&folder, &[][..]), (&folder, &["--max-batch-prefill-tokens", "4"]), (&file, &[])]
        {
            let flags = [&flags[..], more].concat();
            let server = golden.serve(&flags);
            for (index, (prompt, wanted)) in golden.continuations().into_iter().enumerate() {
                let before = counts(&server);
                assert_eq!(generate(&server, &prompt, wanted.len()).0, wanted, "{name}");
                let after = counts(&server);
                let found = (after.0 - before.0, after.1 - before.1);
                let guesses = golden.ids(&format!("guess_ids.{index}")).unwrap();
                assert_eq!(found, expected(&wanted, &guesses, is_recurrent), "{name}.{index}, {flags:?}");
                assert!(found.1 > 0.5 * found.0, "{name}: {found:?}");
            }
        }
    }
}

#[test]
fn guesses_of_a_head_change_no_token() {
    let mtp = config(3);
    let always = ["--speculative-config", &mtp, ALWAYS];
    for (name, _) in MODELS {
        let golden = Golden::with_head(name);
        let wanted = choices(&golden.serve(&[]));
        let server = golden.serve(&always);
        // The second time, prompts come from the cache with what was generated after them.
        for _ in 0..2 {
            assert_same(&choices(&server), &wanted, &always);
        }
        let (drafts, right) = counts(&server);
        server.wait_for_restarts(0);
        // The head was not fitted to these prompts.
        assert!(right > 0.0 && drafts > right, "{name}: {right} of {drafts}");
        if !["qwen3_5_text", "glm4_moe"].contains(&name) {
            continue;
        }
        for flags in [
            &[ALWAYS, "--max-batch-prefill-tokens", "4", "--max-batch-size", "5"][..],
            &[ALWAYS, "--prefix-caching", "false", "--max-batch-total-tokens", "512"],
            &[],
        ] {
            let flags = [&always[..2], flags].concat();
            let server = golden.serve(&flags);
            assert_same(&choices(&server), &wanted, &flags);
            server.wait_for_restarts(0);
        }
    }
}

/// Nothing is guessed for an answer with a grammar, so that more states are kept than a step has
/// tokens.
#[test]
fn states_are_read_together_where_nothing_is_guessed() {
    let golden = Golden::with_head("glm4_moe");
    let small = ["--max-batch-prefill-tokens", "4", "--max-batch-size", "5"];
    let mtp = ["--speculative-config", &config(3), ALWAYS];
    let body = json!({
        "prompt": (5..30).collect::<Vec<u32>>(), "max_tokens": 40, "temperature": 0,
        "structured_outputs": {"regex": "[!-z]{60}"},
    });
    let answer = |flags: &[&str]| {
        let server = golden.serve(flags);
        let answer = post(&server.url("/v1/completions"), &body);
        assert_eq!(answer.body["usage"]["completion_tokens"], 40, "{}", answer.body);
        server.wait_for_restarts(0);
        answer.body["choices"].clone()
    };
    assert_eq!(answer(&[&mtp[..], &small].concat()), answer(&small));
}

/// After many tokens without a guess, prompts are not read either. The head then guesses from the
/// last states alone.
#[test]
fn a_head_guesses_again_after_a_time_without_guesses() {
    for (name, _) in MODELS {
        let golden = Golden::with_head(name);
        let server = golden.serve(&[ALWAYS, "--speculative-config", &config(1)]);
        for (index, (prompt, wanted)) in golden.continuations().into_iter().enumerate() {
            for seed in 0..2 {
                let before = counts(&server);
                let regex = json!({"regex": "[!-z]{60}"});
                let body =
                    json!({"prompt": [5, 6, 7], "max_tokens": 40, "seed": seed, "structured_outputs": regex});
                assert_eq!(post(&server.url("/v1/completions"), &body).status, 200);
                assert_eq!(counts(&server), before);
            }
            let before = counts(&server);
            assert_eq!(generate(&server, &prompt, wanted.len()).0, wanted, "{name}");
            let after = counts(&server);
            let (drafts, right) = (after.0 - before.0, after.1 - before.1);
            // With all states, more than half are right.
            assert!(right > 0.25 * drafts && drafts > 20.0, "{name}.{index}: {right} of {drafts}");
        }
        server.wait_for_restarts(0);
    }
}

#[test]
fn a_lost_shard_loses_no_token_while_a_head_guesses() {
    let golden = Golden::with_head("glm4_moe");
    let wanted = choices(&golden.serve(&[]));
    let server = golden.serve(&[ALWAYS, "--speculative-config", &config(2)]);
    lose_shard_while_drafting(&server, &wanted);
    assert!(counts(&server).1 > 100.0);
}

/// The head's weights are packed and kept as the model's are, and share its embedding.
#[test]
fn the_weights_of_a_head_are_quantized_and_kept() {
    let golden = Golden::with_head("glm4_moe");
    let prompt: Vec<u32> = (5..30).collect();
    let (wanted, _) = generate(&golden.serve(&["--quantize", "q8_0"]), &prompt, 40);
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().to_str().unwrap();
    let mtp = config(2);
    let flags = ["--quantize", "q8_0", "--speculative-config", &mtp, ALWAYS, "--packed-weights-cache", cache];
    for mapped in [&[][..], &["--map-packed-weights"], &[]] {
        let server = golden.serve(&[&flags[..], mapped].concat());
        assert_eq!(generate(&server, &prompt, 40).0, wanted);
        assert!(counts(&server).1 > 0.0);
        assert_eq!(std::fs::read_dir(cache).unwrap().count(), 2, "a file for the model and one for its head");
    }
    golden.serve(&flags).wait_for_log("draft model: the MTP head of glm4_moe, ");
}

#[test]
fn heads_that_cannot_guess_are_refused_by_name() {
    let mtp = config(2);
    let mtp = ["--speculative-config", &mtp];
    for (golden, flags, reason) in [
        (
            Golden::new("llama_gqa"),
            &[][..],
            "its heads for the prediction of further tokens are not supported",
        ),
        (Golden::new("deepseek_v2"), &[], "num_nextn_predict_layers is missing"),
        (Golden::new("qwen3_5_text"), &[], "which has no mtp.pre_fc_norm_embedding.weight"),
        (Golden::with_head("glm4_moe"), &["--num-shard", "2"], "is computed by one shard, not by several"),
    ] {
        let log = golden.try_serve(&[&mtp[..], flags].concat()).err().expect("it does not start");
        assert!(log.contains(reason), "{flags:?}: {log}");
    }
    for (flags, reason) in [
        (&["--device", "null"][..], "with the method mtp needs a device; --device null computes nothing"),
        (&["--speculate", "2"], "cannot be used with"),
    ] {
        let refused =
            Command::new(binary()).args(["serve", "--port", "0"]).args(mtp).args(flags).output().unwrap();
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && said.contains(reason), "{said}");
    }

    require_simulated_gpus();
    let golden = Golden::with_head("glm4_moe");
    let gpu = golden.serve_on("cuda-sim", &[&mtp[..], &SMALL_SERVER_FLAGS].concat());
    gpu.wait_for_log("--speculate has no effect: drafts are only verified on the CPU");
    let answer = post(&gpu.url("/v1/completions"), &json!({"prompt": vec![5; 20], "max_tokens": 9}));
    assert_eq!(answer.status, 200, "{}", answer.body);
}
