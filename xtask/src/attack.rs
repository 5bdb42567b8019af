//! The tests that attack the real binary: `cargo xtask attack`.

use std::time::Instant;

use crate::cargo::cargo_with;
use crate::features::FEATURES;

/// The folder of the tests.
const FOLDER: &str = "integration-tests/tests";

/// Runs the test of all attacks at once, which measures times and memory, against a release build.
pub(crate) fn everything() -> bool {
    let test = "test --release --package millrace-integration-tests --test attack_everything -- --ignored --nocapture";
    cargo_with(&test.split(' ').collect::<Vec<_>>(), &[])
}

/// Runs every test file whose name begins with `attack_`, one after the other, and prints what the
/// tests measure. [`everything`] is last.
pub(crate) fn run() -> bool {
    let Ok(entries) = std::fs::read_dir(FOLDER) else {
        eprintln!("cannot read {FOLDER}; run this in the root of the repository");
        return false;
    };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut tests: Vec<String> = names
        .filter_map(|name| Some(name.strip_suffix(".rs")?.to_owned()))
        .filter(|name| name.starts_with("attack_"))
        .collect();
    tests.sort();
    if tests.is_empty() {
        eprintln!("{FOLDER} has no attacks");
        return false;
    }
    // The test `version` belongs to the launcher and makes Cargo build the binary.
    let mut arguments = vec!["test", "--workspace", FEATURES, "--test", "version"];
    tests.iter().for_each(|test| arguments.extend(["--test", test.as_str()]));
    let built = [("MILLRACE_BINARY_IS_BUILT", "1")];
    if !cargo_with(&[&arguments[..], &["--no-run"]].concat(), &built) {
        return false;
    }
    let begin = Instant::now();
    let passed = cargo_with(&[&arguments[..], &["--", "--nocapture"]].concat(), &built);
    eprintln!("{} files of attacks in {:.0} s", tests.len(), begin.elapsed().as_secs_f64());
    everything() && passed
}
