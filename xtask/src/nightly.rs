//! The long checks, one after the other: `cargo xtask nightly`.

use std::time::{Duration, Instant};

use crate::cargo::cargo_with;
use crate::{
    arm64, attack, clients, container, deny, fuzz, gpu_pack, gpu_root, lint, mutate, ptx, release, sanitize,
    simulated, suites,
};

/// A check: its name and the function that runs it.
type Stage = (&'static str, fn() -> bool);

/// The checks in their order. Those of every submission come first, because a failure there
/// explains later ones.
const STAGES: &[Stage] = &[
    ("lint", lint::run),
    ("test", suites::test),
    ("clients", clients::run),
    ("agents", || clients::agents(&[])),
    ("container, compiled in a container", || container::run(&["--machine-code".to_owned()])),
    ("cost, an hour", costs),
    ("fuzz, ten minutes for each target", || fuzz::run(None, "600")),
    ("property tests with other seeds", properties),
    ("scheduler simulation, 20 million steps", simulation),
    ("soak, an hour", || suites::soak("60")),
    ("attack, all at once", attack::everything),
    ("sim, in all orders on all GPUs", simulated::all_orders_on_all_gpus),
    ("ptx, all tests in both orders", || ptx::run(Some("all"))),
    ("gpu-pack, started in an empty root", || gpu_pack::run() && gpu_root::run()),
    ("arm64, all cases", arm64::all),
    ("advisories", deny::advisories),
    ("release", || release::run(&[])),
    ("release, built twice", release::builds_are_equal),
    ("sanitize", || sanitize::run(None)),
    ("mutate", || mutate::run(None)),
    ("bench", suites::bench),
];

/// Runs all stages, or those whose names contain `filter`. A stage that fails does not keep the
/// next one from running.
pub(crate) fn run(filter: Option<&str>) -> bool {
    let chosen: Vec<&Stage> =
        STAGES.iter().filter(|(name, _)| filter.is_none_or(|filter| name.contains(filter))).collect();
    if chosen.is_empty() {
        let names: Vec<_> = STAGES.iter().map(|(name, _)| *name).collect();
        eprintln!(
            "cargo xtask nightly [FILTER], with a part of one of these names:\n  {}",
            names.join("\n  ")
        );
        return false;
    }
    let mut results = Vec::new();
    for (name, stage) in chosen {
        eprintln!("=== {name}");
        let begin = Instant::now();
        let passed = stage();
        let result = (*name, passed, begin.elapsed());
        eprintln!("=== {}", line(result));
        results.push(result);
    }
    let total: Duration = results.iter().map(|(_, _, time)| *time).sum();
    eprintln!("\n{}", results.iter().copied().map(line).collect::<Vec<_>>().join("\n"));
    let failed = results.iter().filter(|(_, passed, _)| !passed).count();
    eprintln!("{failed} of {} stages failed, in {}", results.len(), time(total));
    failed == 0
}

fn line((name, passed, took): (&str, bool, Duration)) -> String {
    format!("{} {:>9}  {name}", if passed { "passed" } else { "FAILED" }, time(took))
}

fn time(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// Returns the days since 1970, which seed the random cases: each night tries others, and a failure
/// can be replayed the next morning.
fn day() -> u64 {
    std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs() / 86_400)
}

/// Runs the cost fuzzer for an hour, with other random inputs each night. One night tries far fewer
/// than a million inputs, so that nights do not overlap.
fn costs() -> bool {
    suites::cost("3600", Some(day() * 1_000_000))
}

/// Runs every property test with other cases.
fn properties() -> bool {
    let seed = day().to_string();
    eprintln!("PROPTEST_RNG_SEED={seed}");
    let test = ["test", "--workspace", crate::features::FEATURES];
    cargo_with(&test, &[("MILLRACE_BINARY_IS_BUILT", "1"), ("PROPTEST_RNG_SEED", &seed)])
}

/// Simulates the scheduler under random traffic, block shortages and lost shards.
fn simulation() -> bool {
    let test = ["test", "--release", "--package", "millrace-router", "--lib", "simulation"];
    cargo_with(&test, &[("MILLRACE_SIM_STEPS", "20000000")])
}
