//! Everyday tasks: `cargo xtask`.

mod attack;
mod browser;
mod cargo;
mod clients;
mod cuda;
mod fuzz;
mod gpu_pack;
mod install;
mod mutate;
mod nightly;
mod sanitize;
mod sass;
mod simulated;
mod smoke;
mod toolkit;

use std::process::ExitCode;

use cargo::{cargo, cargo_test, cargo_with};

const HELP: &str = "\
cargo xtask TASK

  lint       formatting and clippy, warnings are errors
  test       every test of the workspace, the real binary over HTTP among them (what the README calls)
  attack     the tests that attack the real binary, with what a client beside the attacks experiences
  cuda       the CUDA kernels for every card, by a pinned compiler below target/, and what their machine code promises
  gpu-pack   the kernels' tests and benchmarks as programs for a machine with a card, in target/gpu
  sim        the CUDA kernels' tests on the simulated device in all four orders of threads, and every
             benchmark once: cargo xtask sim [FILTER]
  sanitize   the same in one order, compiled for AddressSanitizer and UndefinedBehaviorSanitizer: cargo xtask sanitize [FILTER]
  mutate     plants every mistake of kernels/cuda/mutations, and fails if the tests miss one: cargo xtask mutate [MODULE]
  clients    other people's clients (OpenAI's, TGI's, Hugging Face's, Anthropic's) and schemathesis against the real server;
             installs them below target/
  agents     programs and libraries that are too large for that (Claude Code, Codex, opencode, aider, LangChain, litellm, lm-eval,
             Vercel's AI SDK, Hugging Face's for JavaScript) against the real server with a scripted model, without a
             network; installs three gigabytes below target/: cargo xtask agents [ARGUMENTS OF PYTEST]
  compatibility
             writes docs/compatibility.md, as the server answers
  fuzz       what strangers send, made up by libFuzzer: cargo xtask fuzz [TARGET] [SECONDS]; a minute each
  cost       the cost fuzzer: whether the cost of untrusted input grows faster than its size, in a release build:
             cargo xtask cost [SECONDS]; a minute
  nightly    the long checks one after the other: cost, fuzz, other seeds, soak, sanitize, mutate and more, some hours together;
             goes on after a failure and fails at the end: cargo xtask nightly [FILTER]
  smoke      the README's first command, as it stands there: serve the demo model and stream an answer from it
  ui         the page /ui in a headless Chromium, which it installs if it is missing: cargo xtask ui [ARGUMENTS OF PYTEST]
  bench      benchmarks of the kernels and of the whole server, on this machine's processor
  soak       random traffic with random kills of the shard, ten minutes: cargo xtask soak [MINUTES]
";

/// With the simulated device, on which the CUDA kernels' tests run, and with the functions that the cost fuzzer runs.
const FEATURES: &str = "--features=millrace/cpu-sim,millrace-router/fuzz";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let task = arguments.next();
    let done = match task.as_deref() {
        Some("lint") => lint(),
        Some("test") => test(),
        Some("attack") => attack::run(),
        Some("cuda") => cuda::run(),
        Some("gpu-pack") => gpu_pack::run(),
        Some("sim") => match arguments.next() {
            Some(filter) => simulated::all_orders(Some(&filter)),
            None => simulated::all_orders(None) && simulated::bench(),
        },
        Some("sanitize") => sanitize::run(arguments.next().as_deref()),
        Some("mutate") => mutate::run(arguments.next().as_deref()),
        Some("clients") => clients::run(),
        Some("agents") => clients::agents(arguments),
        Some("fuzz") => {
            let target = arguments.next().filter(|target| target != "all");
            fuzz::run(target.as_deref(), arguments.next().as_deref().unwrap_or("60"))
        }
        Some("compatibility") => {
            let test = ["test", "--workspace", FEATURES, "--lib", "http::tests::compatibility"];
            cargo_with(&test, &[("MILLRACE_WRITE_COMPATIBILITY", "1")])
        }
        Some("cost") => cost(arguments.next().as_deref().unwrap_or("60"), None),
        Some("nightly") => nightly::run(arguments.next().as_deref()),
        Some("smoke") => smoke::run(),
        Some("ui") => browser::run(arguments),
        Some("bench") => bench(),
        Some("soak") => soak(arguments.next().as_deref().unwrap_or("10")),
        None | Some("help") => {
            print!("{HELP}");
            true
        }
        Some(unknown) => {
            eprint!("unknown task `{unknown}`\n\n{HELP}");
            false
        }
    };
    if done { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn lint() -> bool {
    cargo(&["fmt", "--all", "--check"])
        && cargo(&["clippy", "--workspace", "--all-targets", FEATURES, "--", "-D", "warnings"])
}

/// The binary is built with everything else, before the first test: no test has to build it again. Tests that need
/// published files run where `MILLRACE_TEST_DATA` names them.
fn test() -> bool {
    const BUILT: [(&str, &str); 1] = [("MILLRACE_BINARY_IS_BUILT", "1")];
    let tests = ["test", "--workspace", FEATURES];
    let Some(ignored) = cargo_test(&tests, &BUILT) else { return false };
    if std::env::var_os("MILLRACE_TEST_DATA").is_none() {
        println!(
            "{ignored} tests were skipped; most need published files, which MILLRACE_TEST_DATA would name"
        );
        return true;
    }
    let published = [&tests[..], &["--", "--ignored", "published"]].concat();
    cargo_test(&published, &BUILT).is_some()
}

fn bench() -> bool {
    cargo(&["bench", "--package", "millrace-kernels"])
        && cargo(&["bench", "--package", "millrace-integration-tests"])
}

/// So many seconds of inputs that double, against a release build.
fn cost(seconds: &str, seed: Option<u64>) -> bool {
    if seconds.parse::<f64>().is_err() {
        eprintln!("{seconds}: not a number of seconds");
        return false;
    }
    let test = "test --release --package millrace-router --features fuzz --test cost -- --nocapture"
        .split(' ')
        .collect::<Vec<_>>();
    let seed = seed.map(|seed| seed.to_string());
    let mut environment = vec![("MILLRACE_COST_SECONDS", seconds)];
    environment.extend(seed.as_deref().map(|seed| ("MILLRACE_COST_SEED", seed)));
    cargo_with(&test, &environment)
}

/// Minutes of random traffic and random kills, against the release build.
fn soak(minutes: &str) -> bool {
    let Ok(minutes) = minutes.parse::<f64>() else {
        eprintln!("{minutes}: not a number of minutes");
        return false;
    };
    let seconds = ((minutes * 60.0) as u64).max(1).to_string();
    let test = "test --release --package millrace-integration-tests --test soak -- --nocapture"
        .split(' ')
        .collect::<Vec<_>>();
    cargo_with(&test, &[("MILLRACE_SOAK_SECONDS", &seconds)])
}
