//! Draft models: their guesses change no token of any answer.

use std::process::Command;

use millrace_integration_tests::golden::{Golden, generate};
use millrace_integration_tests::hub::FakeHub;
use millrace_integration_tests::{SMALL_SERVER_FLAGS, Server, binary, post, require_simulated_gpus};
use serde_json::json;

use crate::drafts::{assert_same, choices, counts, lose_shard_while_drafting};

/// Rows have drafts even where a model is so small that they are not worth their time.
const ALWAYS: &str = "--speculate-always";

fn golden(name: &str) -> Golden {
    Golden::new(name).with_positions(512)
}

/// Checks that nearly all guesses were right. When a stop string ends an answer, the guesses in
/// flight count as wrong.
fn assert_right(server: &Server) {
    let (drafts, right) = counts(server);
    assert!(right > 1000.0 && right > 0.97 * drafts, "{right} of {drafts}");
}

/// A model that guesses for itself is always right, whatever is sampled: it draws the same random
/// numbers.
#[test]
fn a_model_is_right_about_itself() {
    let golden = golden("llama_gqa");
    let wanted = choices(&golden.serve(&[]));
    let draft = ["--draft-model", golden.path(), ALWAYS];
    let folder = tempfile::tempdir().unwrap();
    let disk = format!("--kv-disk={},50M", folder.path().display());
    for flags in [
        &[][..],
        &["--speculate", "1", "--max-batch-size", "1"],
        &["--max-batch-prefill-tokens", "4", "--max-batch-size", "5"],
        &["--prefix-caching", "false", "--max-batch-total-tokens", "512"],
        &["--max-batch-total-tokens", "512", &disk],
    ] {
        let flags = [&draft[..], flags].concat();
        let server = golden.serve(&flags);
        // The second time, prompts come from the cache with what was generated after them.
        for _ in 0..2 {
            assert_same(&choices(&server), &wanted, &flags);
        }
        assert_right(&server);
    }
}

#[test]
fn another_model_is_wrong_at_times_and_changes_no_token() {
    for (model, draft, positions) in [
        ("llama_gqa", "llama_mha", 512),
        // The draft model has too few positions for the ends of the answers.
        ("llama_gqa", "qwen3", 64),
        // It has tokens that the model does not have.
        ("llama_gqa", "mistral_sliding", 512),
        // The model has tokens that it does not have.
        ("llama_mqa", "llama_gqa", 512),
        // Recurrent states go back to a checkpoint after a wrong guess.
        ("qwen3_5_text", "llama_yi", 512),
    ] {
        let golden = golden(model);
        let draft = Golden::new(draft).with_positions(positions);
        let wanted = choices(&golden.serve(&[]));
        let config = json!({"method": "draft_model", "model": draft.path(), "num_speculative_tokens": 3});
        let config = config.to_string();
        let flags = [ALWAYS, "--speculative-config", &config];
        let server = golden.serve(&flags);
        for _ in 0..2 {
            assert_same(&choices(&server), &wanted, &flags);
        }
        let (drafts, right) = counts(&server);
        assert!(drafts > right && drafts > 100.0, "{model}: {right} of {drafts}");
    }
}

#[test]
fn guesses_that_are_not_worth_their_time_change_no_token_either() {
    let golden = golden("llama_gqa");
    let wanted = choices(&golden.serve(&[]));
    let flags = ["--draft-model", golden.path(), "--speculate", "4"];
    assert_same(&choices(&golden.serve(&flags)), &wanted, &flags);
}

#[test]
fn a_lost_shard_loses_no_token_while_a_draft_model_guesses() {
    let golden = golden("llama_gqa");
    let wanted = choices(&golden.serve(&[]));
    let server = golden.serve(&["--draft-model", golden.path(), ALWAYS]);
    lose_shard_while_drafting(&server, &wanted);
    assert_right(&server);
}

/// A prompt that is longer than the draft model reads in one step has its first guesses some steps
/// later.
#[test]
fn a_long_prompt_is_read_in_parts() {
    let golden = Golden::new("llama_gqa").with_positions(2048);
    let prompt: Vec<u32> = (0..1500).map(|i| 3 + i * i * 7 % 50).collect();
    let (wanted, _) = generate(&golden.serve(&[]), &prompt, 40);
    let server = golden.serve(&["--draft-model", golden.path(), ALWAYS]);
    let (drafts_before, _) = counts(&server);
    assert_eq!((generate(&server, &prompt, 40).0, drafts_before), (wanted.clone(), 0.0));
    let (first, right) = counts(&server);
    assert!(first == right && (1.0..35.0).contains(&first), "{right} of {first}");
    // What it has read is shared as the prompt is.
    assert_eq!(generate(&server, &prompt, 40).0, wanted);
    let (both, _) = counts(&server);
    assert!(both - first > first, "{first}, then {}", both - first);
}

#[test]
fn the_packed_weights_of_both_models_are_kept() {
    let (model, draft) = (golden("llama_gqa"), golden("llama_mha"));
    let prompt: Vec<u32> = (5..30).collect();
    let (wanted, _) = generate(&model.serve(&["--quantize", "q8_0"]), &prompt, 40);
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().to_str().unwrap();
    let flags =
        ["--quantize", "q8_0", "--draft-model", draft.path(), ALWAYS, "--packed-weights-cache", cache];
    for mapped in [&[][..], &["--map-packed-weights"], &[]] {
        let server = model.serve(&[&flags[..], mapped].concat());
        assert_eq!(generate(&server, &prompt, 40).0, wanted);
        assert!(counts(&server).0 > 0.0);
        assert_eq!(std::fs::read_dir(cache).unwrap().count(), 2, "a file for each model");
    }
}

#[test]
fn a_draft_model_may_be_a_gguf_file_or_come_from_the_hub() {
    let answer = |server: &Server| {
        let body = json!({"prompt": "Once upon a time", "max_tokens": 60, "temperature": 0.8, "seed": 3});
        let answer = post(&server.url("/v1/completions"), &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body["choices"][0]["text"].clone()
    };
    let wanted = answer(&Server::start(&["--device", "cpu"]));
    let folder = tempfile::tempdir().unwrap();
    let gguf = folder.path().join("demo.gguf");
    let gguf = gguf.to_str().unwrap();
    let converted =
        Command::new(binary()).args(["convert", "demo", gguf, "--dtype", "bf16"]).output().unwrap();
    assert!(converted.status.success(), "{converted:?}");
    let hub = FakeHub::with_demo_model();
    let environment = hub.environment(folder.path());
    let variables: Vec<(&str, &str)> =
        environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    for draft in [gguf, "org/tiny"] {
        let flags = ["--device", "cpu", "--draft-model", draft, ALWAYS];
        let server = Server::start_with_env(&variables, &flags);
        assert_eq!(answer(&server), wanted, "{draft}");
        let (drafts, right) = counts(&server);
        assert!(drafts > 20.0 && right == drafts, "{draft}: {right} of {drafts}");
    }
}

#[test]
fn draft_models_that_cannot_guess_are_refused_by_name() {
    let golden = golden("qwen3_5_text");
    for (draft, flags, reason) in [
        ("lfm2", &[][..], "the draft model, of type lfm2, has recurrent layers"),
        ("llama_yi", &["--num-shard", "2"], "is computed by one shard, not by several; use --num-shard 1"),
    ] {
        let draft = Golden::new(draft);
        let flags = [&["--draft-model", draft.path()][..], flags].concat();
        let log = golden.try_serve(&flags).err().expect("it does not start");
        assert!(log.contains(reason), "{flags:?}: {log}");
    }
    // Its letters have other ids than those of the demo model.
    let other = Golden::new("llama_gqa");
    other.shift_tokens();
    for (draft, more, reason) in [
        ("/absent/folder", &["--device", "cpu"][..], "--draft-model /absent/folder: there is no such folder"),
        (other.path(), &["--device", "cpu"], "a draft model needs the tokens of the model"),
        (
            "demo",
            &["--device", "cpu", "--speculate", "0"],
            "--draft-model guesses nothing with --speculate 0",
        ),
        ("demo", &["--device", "null"], "--draft-model needs a device; --device null computes nothing"),
    ] {
        let flags = ["serve", "--port", "0", "--draft-model", draft];
        let refused = Command::new(binary()).args(flags).args(more).output().unwrap();
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && said.contains(reason), "{said}");
    }

    require_simulated_gpus();
    let llama = Golden::new("llama_gqa");
    let flags = [&["--draft-model", llama.path()][..], &SMALL_SERVER_FLAGS].concat();
    let gpu = llama.serve_on("cuda-sim", &flags);
    gpu.wait_for_log("--speculate has no effect: drafts are only verified on the CPU");
    let answer = post(&gpu.url("/v1/completions"), &json!({"prompt": vec![5; 20], "max_tokens": 9}));
    assert_eq!(answer.status, 200, "{}", answer.body);
}
