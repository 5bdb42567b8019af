//! Tasks that are one call of Cargo: tests, benchmarks, soak and cost runs.

use crate::cargo::{cargo, cargo_test, cargo_with};
use crate::features::FEATURES;

/// Tells tests of the binary that Cargo has built it together with them.
const BUILT: (&str, &str) = ("MILLRACE_BINARY_IS_BUILT", "1");

/// Runs every test. Returns whether all passed.
///
/// The binary is built together with the tests before the first one runs, so no test builds it
/// again. Tests that need published files run where `MILLRACE_TEST_DATA` names their folder.
pub(crate) fn test() -> bool {
    let tests = ["test", "--workspace", FEATURES];
    let Some(mut all) = cargo_test(&tests, &[], &[BUILT]) else { return false };
    let has_data = std::env::var_os("MILLRACE_TEST_DATA").is_some();
    if has_data {
        let Some(published) = cargo_test(&tests, &["--ignored", "published"], &[BUILT]) else { return false };
        all.ignored = all.ignored.saturating_sub(published.passed);
        all.skipped.extend(published.skipped);
    }
    for reason in &all.skipped {
        println!("skipped: {reason}");
    }
    let hint = if has_data { "" } else { "; most need published files from the folder MILLRACE_TEST_DATA" };
    println!("{} tests were ignored and {} skipped themselves{hint}", all.ignored, all.skipped.len());
    true
}

/// Builds the binary as the tests do. The test `version` belongs to the launcher and makes Cargo
/// build it. `cargo build` would build every crate again, without the features of the tests'
/// dependencies.
pub(crate) fn build_binary() -> bool {
    cargo(&["test", "--workspace", FEATURES, "--test", "version", "--no-run"])
}

/// Writes `docs/compatibility.md` from the server's answers.
pub(crate) fn compatibility() -> bool {
    let test = ["test", "--workspace", FEATURES, "--lib", "http::tests::compatibility"];
    cargo_with(&test, &[("MILLRACE_WRITE_COMPATIBILITY", "1")])
}

/// Writes the tables of `docs/models.md`. The table of chat templates comes first, because that of
/// families refers to it.
pub(crate) fn models() -> bool {
    ["models_page_tests::", "models_page::", "features_page::"].into_iter().all(|tests| {
        let test = ["test", "--workspace", FEATURES, "--lib", tests];
        cargo_with(&test, &[("MILLRACE_WRITE_MODELS", "1")])
    })
}

/// Runs the benchmarks that need no GPU, with the profile of what is shipped.
pub(crate) fn bench() -> bool {
    cargo(&["bench", "--profile", "dist", "--package", "millrace-cpu"])
        && cargo(&["bench", "--profile", "dist", "--package", "millrace-integration-tests"])
}

/// Runs the cost fuzzer against a release build for the given time. A run of more than ten minutes
/// begins with other random inputs each day. A day tries far fewer than a million inputs, so that
/// days do not overlap.
pub(crate) fn cost(seconds: &str) -> bool {
    let Ok(time) = seconds.parse::<f64>() else {
        eprintln!("{seconds}: not a number of seconds");
        return false;
    };
    let test = "test --release --package millrace-router --features fuzz --test cost -- --nocapture"
        .split(' ')
        .collect::<Vec<_>>();
    let seed = (day() * 1_000_000).to_string();
    let mut environment = vec![("MILLRACE_COST_SECONDS", seconds)];
    if time > 600.0 {
        environment.push(("MILLRACE_COST_SEED", &seed));
    }
    cargo_with(&test, &environment)
}

/// Returns the days since 1970, which seed random cases: each day tries others, and a failure can
/// be repeated on the next one.
pub(crate) fn day() -> u64 {
    std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs() / 86_400)
}

/// Runs every property test with the random cases of `seed`, or of the day.
pub(crate) fn properties(seed: Option<&str>) -> bool {
    let seed = seed.map_or_else(|| day().to_string(), str::to_owned);
    eprintln!("repeat these cases with: cargo xtask properties {seed}");
    let test = ["test", "--workspace", FEATURES];
    cargo_test(&test, &[], &[BUILT, ("PROPTEST_RNG_SEED", &seed)]).is_some()
}

/// Serves every golden checkpoint with the real binary.
pub(crate) fn checkpoints() -> bool {
    // The test `version` belongs to the launcher and makes Cargo build the binary.
    let test = ["test", "--workspace", FEATURES, "--test", "version", "--test", "every_checkpoint"];
    cargo_with(&[&test[..], &["--", "--nocapture"]].concat(), &[BUILT, ("MILLRACE_EVERY_CHECKPOINT", "1")])
}

/// Simulates the scheduler under random traffic, block shortages and lost shards.
pub(crate) fn simulation() -> bool {
    let test = ["test", "--release", "--package", "millrace-scheduler", "--lib", "simulation"];
    cargo_with(&test, &[("MILLRACE_SIM_STEPS", "20000000")])
}

/// Runs random traffic with random kills against a release build for the given time.
pub(crate) fn soak(minutes: &str) -> bool {
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
