//! Runs tests, and those that fail once more, alone.
//!
//! A test that fails beside others and passes alone is unsteady: it measures the machine, or it
//! shares something with another test. It does not keep a change from landing, but it is named in
//! the last lines of the gate ([`MARK`]) until it is mended.

use std::io::{BufRead, BufReader};
use std::process::Command;

use crate::test_report::{FailedTarget, TestReport};

/// The beginning of a line that names an unsteady test.
pub(crate) const MARK: &str = "UNSTEADY: ";

/// The largest number of failed tests that are run once more. More of them have a common cause,
/// which is not the machine.
pub(crate) const MOST: usize = 8;

/// Runs tests and prints their output. `again` makes the command that runs those which failed.
/// Returns what the output says, or `None` if a test failed twice or nothing could be run.
pub(crate) fn run(first: &mut Command, again: impl Fn(&FailedTarget) -> Command) -> Option<TestReport> {
    let mut report = TestReport::default();
    if follow(first, |line| report.read(line))? {
        return Some(report);
    }
    let failed = report.take_failed();
    let count: usize = failed.iter().map(|target| target.names.len().max(1)).sum();
    if !(1..=MOST).contains(&count) {
        return None;
    }
    let mut all_passed = true;
    for target in &failed {
        println!("once more, alone: {target:?}");
        let mut second = TestReport::default();
        let passed = follow(&mut again(target), |line| second.read(line))?;
        let name = format!("{} {}", target.selection.join(" "), target.names.join(" "));
        if passed && second.passed >= target.names.len() {
            report.passed += target.names.len();
            println!("{MARK}{name}");
        } else {
            all_passed = false;
            println!("failed twice: {name}");
        }
    }
    all_passed.then_some(report)
}

/// Runs a command and prints those lines of its output and errors for which `is_shown` is true.
/// Returns whether the command succeeded, or `None` if it cannot be run.
pub(crate) fn follow(command: &mut Command, mut is_shown: impl FnMut(&str) -> bool) -> Option<bool> {
    // Output and errors share a pipe, so that their lines stay in order.
    let (reader, writer) = std::io::pipe().ok()?;
    command.stdout(writer.try_clone().ok()?).stderr(writer);
    let child = command.spawn();
    // The command keeps the writing ends, which would keep the pipe open for ever.
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut child = child.inspect_err(|e| eprintln!("{command:?}: {e}")).ok()?;
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
        let text = String::from_utf8_lossy(line.trim_ascii_end());
        if is_shown(&text) {
            println!("{text}");
        }
        line.clear();
    }
    child.wait().ok().map(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a command that prints the text, and fails if there is a failure in it.
    fn prints(text: &str) -> Command {
        let mut shell = Command::new("sh");
        let failed = text.contains("FAILED") || text.contains("could not compile");
        shell.args(["-c", "printf '%s\n' \"$1\"; exit $2", "sh", text, if failed { "1" } else { "0" }]);
        shell
    }

    fn failed(names: &[&str]) -> String {
        format!("failures:\n\nfailures:\n    {}\n\ntest result: FAILED. 5 passed;", names.join("\n    "))
    }

    #[test]
    fn a_test_that_passes_alone_is_unsteady_and_does_not_fail_the_run() {
        let report = run(&mut prints(&failed(&["a::b"])), |target| {
            assert_eq!(target.names, ["a::b"]);
            prints("test result: ok. 1 passed;")
        });
        assert_eq!(report.unwrap().passed, 6);
    }

    #[test]
    fn a_test_that_fails_twice_or_does_not_run_again_fails_the_run() {
        let first = failed(&["a"]);
        assert!(run(&mut prints(&first), |_| prints(&first)).is_none());
        assert!(run(&mut prints(&first), |_| prints("test result: ok. 0 passed;")).is_none());
    }

    #[test]
    fn many_failures_and_failures_without_a_test_are_not_tried_again() {
        let many: Vec<String> = (0..=MOST).map(|i| i.to_string()).collect();
        let many = failed(&many.iter().map(String::as_str).collect::<Vec<_>>());
        for first in [many.as_str(), "error: could not compile"] {
            assert!(run(&mut prints(first), |_| unreachable!("nothing runs again")).is_none(), "{first}");
        }
    }
}
