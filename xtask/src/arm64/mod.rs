//! 64-bit ARM on any machine: the tests of kernels and shard under an emulator.

pub(crate) mod root;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use root::Root;

/// The emulator with all instructions.
const EMULATOR: &str = "qemu-aarch64 -cpu max -L /usr/aarch64-linux-gnu";

/// The instruction sets of [`EMULATOR`], by their names in the kernels' tests.
const INSTRUCTION_SETS: [&str; 4] = ["neon-bf16", "neon-dotprod", "neon", "portable"];

/// A run of tests.
struct Tests {
    /// Arguments of `cargo test`.
    cargo: &'static [&'static str],
    /// Arguments of the test harness.
    harness: &'static [&'static str],
}

/// The tests of every submission: those of the kernels. The emulator is 10 to 30 times as slow as a
/// CPU, so that property tests try a part of their cases ([`CASES`]), and [`LEFT_OUT`] is left out.
const SHORT: &[Tests] = &[
    Tests { cargo: &["--package", "millrace-cpu", "--lib"], harness: &[] },
    // Without the simulated GPU, whose kernels would be compiled under the emulator.
    Tests { cargo: &["--package", "millrace-kernel-suite", "--no-default-features"], harness: &SKIP },
];

/// Tests that take minutes each, because they attend to thousands of tokens.
const LEFT_OUT: [&str; 2] = ["long_contexts_match_the_reference", "ranges_of_keys_do_not_change_bits"];

const SKIP: [&str; 4] = ["--skip", LEFT_OUT[0], "--skip", LEFT_OUT[1]];

/// The tests that have hours.
const LONG: &[Tests] = &[Tests {
    cargo: &[
        "--package",
        "millrace-numbers",
        "--package",
        "millrace-backend",
        "--package",
        "millrace-cpu",
        "--package",
        "millrace-cuda",
        "--package",
        "millrace-kernel-suite",
        "--package",
        "millrace-model",
        "--package",
        "millrace-convert",
        "--package",
        "millrace-shard",
        "--no-default-features",
    ],
    harness: &[],
}];

/// The number by which the kernels' property tests divide their cases.
const CASES: (&str, &str) = ("MILLRACE_TEST_CASES_DIVISOR", "12");

/// Runs the tests that fit a submission. Returns whether they pass.
pub(crate) fn run() -> bool {
    succeeds(|root| {
        let found = test(root, SHORT, &[CASES])?;
        let missing: Vec<_> =
            INSTRUCTION_SETS.into_iter().filter(|isa| !found.iter().any(|found| found == isa)).collect();
        println!("arm64: left to `cargo xtask arm64 all`: the shard's tests, {}", LEFT_OUT.join(", "));
        println!("arm64: these instruction sets computed: {}", found.join(", "));
        if missing.is_empty() {
            Ok(())
        } else {
            Err(format!("these instruction sets were not tested: {}", missing.join(", ")))
        }
    })
}

/// Runs all tests of kernels and shards with all of their cases, and builds everything. Returns
/// whether all of it succeeds.
pub(crate) fn all() -> bool {
    succeeds(|root| {
        let build = ["build", "--workspace", "--bin", "millrace", "--release"];
        if !crate::install::command("cargo", root.cargo(EMULATOR, &[]).args(build)) {
            return Err("millrace cannot be built".to_owned());
        }
        test(root, LONG, &[]).map(|_| ())
    })
}

fn succeeds(body: impl FnOnce(&Root) -> Result<(), String>) -> bool {
    let begin = Instant::now();
    let done = Root::make().and_then(|root| {
        println!("arm64: the root is ready after {} s", begin.elapsed().as_secs());
        body(&root)
    });
    done.inspect_err(|why| eprintln!("{why}")).is_ok()
}

/// Runs tests, and returns the instruction sets that they say they computed with.
fn test(root: &Root, all: &[Tests], environment: &[(&str, &str)]) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    for tests in all {
        let begin = Instant::now();
        let mut cargo = root.cargo(EMULATOR, environment);
        cargo.args(["test", "--locked"]).args(tests.cargo).arg("--").args(tests.harness).arg("--show-output");
        let name = tests.cargo.join(" ");
        eprintln!("$ cargo test {name} -- {}", tests.harness.join(" "));
        run_tests(cargo, &mut found).ok_or_else(|| format!("arm64: the tests {name} fail"))?;
        println!("arm64: {name}: {} s", begin.elapsed().as_secs());
    }
    Ok(found)
}

fn run_tests(mut cargo: Command, found: &mut Vec<String>) -> Option<()> {
    let mut cargo = cargo.stdout(Stdio::piped()).spawn().ok()?;
    let mut report = crate::test_report::TestReport::default();
    for line in BufReader::new(cargo.stdout.take()?).lines().map_while(Result::ok) {
        found.extend(
            line.strip_prefix("this machine has ").filter(|isa| !isa.contains(' ')).map(str::to_owned),
        );
        if report.read(&line) {
            println!("{line}");
        }
    }
    let passed = cargo.wait().is_ok_and(|status| status.success()) && report.passed > 0;
    passed.then_some(())
}
