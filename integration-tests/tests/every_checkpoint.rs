//! Every golden checkpoint is served as if it were alone: in pieces, in batches, from the prefix
//! cache, by two shards, and after its shard was killed. That takes minutes:
//! `cargo xtask checkpoints`. Otherwise this is a sample of them.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use millrace_integration_tests::Server;
use millrace_integration_tests::golden::{Golden, generate, generate_together, goldens};

/// Requests that are sent together.
const BATCH: usize = 24;

/// Tokens that are generated after each prompt of a batch.
const GENERATED: usize = 12;

/// The words of the server about models whose tensors two shards cannot have in equal parts.
const INDIVISIBLE: &str = "cannot be shared";

/// Checkpoints whose rotation depends on the length of the sequence in transformers, or on the
/// longest one that is served. `shard/tests/suite/golden.rs` compares them at lengths where
/// both rotate alike; here the server is compared with itself.
const ROTATED_BY_LENGTH: [&str; 4] = ["internlm2_dynamic", "llama_dynamic", "llama_dynamic_v4", "phi3_short"];

/// A prompt, and what is generated after it.
type Answer = (Vec<u32>, Vec<u32>);

/// Prompts of a batch: three beginnings of the golden prompts, each with other tokens behind it,
/// and some of them twice.
fn batch(golden: &[Answer]) -> Vec<Vec<u32>> {
    let longest = golden.iter().map(|(prompt, _)| prompt).max_by_key(|prompt| prompt.len()).unwrap();
    let of = |number: usize| {
        let begin = [16, 19, 24][number % 3].min(longest.len());
        let own = (0..number % 7).map(|i| longest[(i * 5 + number) % longest.len()]);
        longest[..begin].iter().copied().chain(own).collect()
    };
    (0..BATCH).map(of).collect()
}

/// Checks that `server` generates what transformers does.
fn check_golden(server: &Server, golden: &[Answer], how: &str) -> Result<(), String> {
    for (prompt, continuation) in golden {
        let (found, _) = generate(server, prompt, continuation.len());
        check(found == *continuation, || format!("{how}: {found:?} instead of {continuation:?}"))?;
    }
    Ok(())
}

fn check(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

/// Sends all prompts again and again while the shard is killed.
fn check_loss(server: &Server, prompts: &[Vec<u32>], alone: &[Vec<u32>]) -> Result<(), String> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = prompts
            .iter()
            .zip(alone)
            .map(|(prompt, answer)| {
                let is_over = &is_over;
                scope.spawn(move || {
                    let mut are_right = true;
                    while !is_over.load(Ordering::Relaxed) {
                        are_right &= generate(server, prompt, GENERATED).0 == *answer;
                    }
                    are_right && generate(server, prompt, GENERATED).0 == *answer
                })
            })
            .collect();
        server.signal_shards("KILL");
        server.wait_for_restarts(1);
        is_over.store(true, Ordering::Relaxed);
        let are_right =
            clients.into_iter().map(|client| client.join().unwrap()).fold(true, |all, one| all & one);
        check(are_right, || "another text after the loss of the shard".to_owned())
    })
}

/// Serves a checkpoint in all ways. Returns what is wrong.
fn serve(name: &str) -> Result<(), String> {
    let golden = Golden::new(name);
    let mut answers = golden.continuations();
    let prompts = batch(&answers);
    let plain = golden.serve(&["--prefix-caching", "false"]);
    if ROTATED_BY_LENGTH.contains(&name) {
        answers.iter_mut().for_each(|(prompt, answer)| *answer = generate(&plain, prompt, answer.len()).0);
    }
    check_golden(&plain, &answers, "alone")?;
    let alone: Vec<Vec<u32>> = prompts.iter().map(|prompt| generate(&plain, prompt, GENERATED).0).collect();
    drop(plain);

    let server = golden.serve(&["--max-batch-prefill-tokens", "16", "--max-batch-size", "24"]);
    check_golden(&server, &answers, "in pieces of 16")?;
    for round in ["first", "second"] {
        let found = generate_together(&server, &prompts, GENERATED);
        check(found == alone, || format!("another text in a batch, the {round} time"))?;
    }
    check_loss(&server, &prompts, &alone)?;
    drop(server);

    match golden.try_serve(&["--num-shard", "2"]) {
        Ok(split) => check_golden(&split, &answers, "two shards"),
        Err(log) => check(log.contains(INDIVISIBLE), || format!("two shards: {log}")),
    }
}

/// Without `MILLRACE_EVERY_CHECKPOINT`, only one in so many checkpoints is served.
const SAMPLE: usize = 40;

#[test]
fn every_checkpoint_is_served_in_all_ways_with_the_same_text() {
    let folders = std::fs::read_dir(goldens()).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<String> = folders
        .filter(|folder| folder.join("golden.safetensors").exists())
        .map(|folder| folder.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort_unstable();
    assert!(names.len() > 290, "{}", names.len());
    if std::env::var_os("MILLRACE_EVERY_CHECKPOINT").is_none() {
        names = names.into_iter().step_by(SAMPLE).collect();
    }
    let (left, wrong) = (Mutex::new(VecDeque::from(names)), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let Some(name) = left.lock().unwrap().pop_front() else { return };
            if let Err(error) = serve(&name) {
                eprintln!("{name}: {error}");
                wrong.lock().unwrap().push(name);
            }
        }
    };
    std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(work))));
    assert!(wrong.lock().unwrap().is_empty(), "{wrong:?}");
}
