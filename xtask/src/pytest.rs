//! Runs tests that are written in Python, and those that fail once more.

use std::ffi::OsString;
use std::process::Command;

use crate::steady::{self, MARK, MOST};

/// Runs the tests of the folder `tests` with `arguments` for pytest. `python` makes the command
/// that runs Python, with the environment of the tests. Returns whether all passed, at the latest
/// in their second run ([`steady`]).
pub(crate) fn run(python: impl Fn() -> Command, tests: &str, arguments: &[OsString]) -> bool {
    let pytest = |tests: &[String]| {
        let mut command = python();
        command.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]).args(tests).args(arguments);
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        eprintln!("$ {command:?}");
        command
    };
    let mut failed = Vec::new();
    let read = |line: &str| {
        failed.extend(failed_test(line).map(str::to_owned));
        true
    };
    match steady::follow(&mut pytest(&[tests.to_owned()]), read) {
        Some(false) if (1..=MOST).contains(&failed.len()) => {}
        passed => return passed == Some(true),
    }
    println!("once more, alone: {}", failed.join(" "));
    let passed = steady::follow(&mut pytest(&failed), |_| true) == Some(true);
    if passed {
        failed.iter().for_each(|test| println!("{MARK}{test}"));
    }
    passed
}

/// Returns the test that a line of pytest's summary says has failed.
fn failed_test(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("FAILED ").or_else(|| line.strip_prefix("ERROR "))?;
    let test = rest.split_once(" - ").map_or(rest, |(test, _)| test);
    test.contains("::").then_some(test)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stand-in for Python: a shell whose script gets pytest's arguments, the tests from `$5` on.
    fn shell(script: &str) -> impl Fn() -> Command {
        move || {
            let mut shell = Command::new("sh");
            shell.args(["-c", script]);
            shell
        }
    }

    #[test]
    fn names_of_failed_tests_are_read_from_the_summary() {
        assert_eq!(
            failed_test("FAILED a/t.py::test_x[b c] - AssertionError: no - no"),
            Some("a/t.py::test_x[b c]")
        );
        assert_eq!(failed_test("ERROR a/t.py::test_x"), Some("a/t.py::test_x"));
        for other in ["PASSED a/t.py::test_x", "ERROR: usage", "FAILED to start", "1 failed"] {
            assert_eq!(failed_test(other), None, "{other}");
        }
    }

    #[test]
    fn a_failed_test_is_run_once_more() {
        // The whole folder fails in one test, which passes alone, or does not.
        let folder = "[ \"$5\" != folder ] || { echo 'FAILED t.py::x - why'; exit 1; }";
        assert!(run(shell(folder), "folder", &[]));
        assert!(!run(shell("echo 'FAILED t.py::x - why'; exit 1"), "folder", &[]));
        assert!(!run(shell("echo 'ERROR: no such option'; exit 4"), "folder", &[]));
        assert!(run(shell("exit 0"), "folder", &[]));
    }
}
