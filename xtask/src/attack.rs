//! The tests that attack the real binary: `cargo xtask attack`.

use std::time::Instant;

use crate::cargo::cargo_with;
use crate::features::FEATURES;

/// Runs the test of all attacks at once, which measures times and memory, against a release build.
pub(crate) fn everything() -> bool {
    let test = "test --release --package millrace-integration-tests --test attack_everything -- --ignored --nocapture";
    cargo_with(&test.split(' ').collect::<Vec<_>>(), &[])
}

/// Runs the tests of every module whose name begins with `attack_`, one after the other, and prints
/// what the tests measure. [`everything`] is last.
pub(crate) fn run() -> bool {
    // The test `version` belongs to the launcher and makes Cargo build the binary.
    let arguments = ["test", "--workspace", FEATURES, "--test", "version", "--test", "server"];
    let built = [("MILLRACE_BINARY_IS_BUILT", "1")];
    if !cargo_with(&[&arguments[..], &["--no-run"]].concat(), &built) {
        return false;
    }
    let begin = Instant::now();
    let harness = ["--", "attack_", "--test-threads=1", "--nocapture"];
    let passed = cargo_with(&[&arguments[..], &harness].concat(), &built);
    eprintln!("all attacks but the last in {:.0} s", begin.elapsed().as_secs_f64());
    everything() && passed
}
