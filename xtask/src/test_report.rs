//! Reads the output of test harnesses that run with `--show-output`: which tests passed, failed,
//! were ignored, or skipped themselves.
//!
//! A test that finds out while it runs that the machine lacks something prints `skipped: REASON`
//! and passes. The standard library's test harness hides the output of tests that pass, so that
//! nobody would see it.

/// The tests of a run, as the output counts them.
#[derive(Debug, Default)]
pub(crate) struct TestReport {
    /// Number of tests that passed, including those that skipped themselves.
    pub(crate) passed: usize,
    /// Number of tests that were ignored.
    pub(crate) ignored: usize,
    /// Name and reason of each test that skipped itself.
    pub(crate) skipped: Vec<String>,
    failed: Vec<FailedTarget>,
    section: Section,
    /// The test whose output is being read.
    test: String,
    /// Failed tests of the executable that is running.
    names: Vec<String>,
}

/// A test executable that failed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FailedTarget {
    /// The arguments that make Cargo run it, such as `--lib`, if Cargo has named them.
    pub(crate) selection: Vec<String>,
    /// Names of the tests that failed. It is empty if the process ended in mid-run.
    pub(crate) names: Vec<String>,
}

/// The section of the output that a line belongs to.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Section {
    /// Lines that a run without `--show-output` prints, too.
    #[default]
    Shown,
    /// The output of tests that passed.
    Outputs,
    /// The names of tests that passed.
    Names,
    /// The output of tests that failed.
    FailedOutputs,
    /// The names of tests that failed.
    FailedNames,
}

impl TestReport {
    /// Reads a line. Returns whether it is to be shown.
    pub(crate) fn read(&mut self, line: &str) -> bool {
        match self.section {
            Section::Shown => self.read_shown(line),
            Section::Outputs if line == "successes:" => self.section = Section::Names,
            Section::Outputs => {
                let heading = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"));
                if let Some(test) = heading {
                    self.test = test.to_owned();
                } else if let Some(reason) = line.strip_prefix("skipped: ") {
                    self.skipped.push(format!("{}: {reason}", self.test));
                }
            }
            Section::Names if line.is_empty() => self.section = Section::Shown,
            Section::Names => {}
            Section::FailedOutputs if line == "failures:" => self.section = Section::FailedNames,
            Section::FailedOutputs => {}
            Section::FailedNames => match line.strip_prefix("    ") {
                Some(name) => self.names.push(name.to_owned()),
                None => self.section = Section::Shown,
            },
        }
        !matches!(self.section, Section::Outputs | Section::Names)
    }

    fn read_shown(&mut self, line: &str) {
        if let Some(result) = line.strip_prefix("test result: ") {
            self.passed += count(result, " passed");
            self.ignored += count(result, " ignored");
        } else if line == "successes:" {
            self.section = Section::Outputs;
        } else if line == "failures:" {
            self.section = Section::FailedOutputs;
        } else if let Some((_, rest)) = line.split_once(" failed, to rerun pass `") {
            let arguments: Vec<&str> = rest.trim_end_matches('`').split_whitespace().collect();
            // Without the package: Cargo would choose other features and build everything again.
            let selection = match arguments.as_slice() {
                ["-p" | "--package", _, selection @ ..] => selection,
                selection => selection,
            };
            let selection = selection.iter().map(|&argument| argument.to_owned()).collect();
            self.failed.push(FailedTarget { selection, names: std::mem::take(&mut self.names) });
        }
    }

    /// Takes the executables with tests that failed out of the report.
    pub(crate) fn take_failed(&mut self) -> Vec<FailedTarget> {
        if !self.names.is_empty() {
            // An executable that was not started by Cargo has no selection.
            let names = std::mem::take(&mut self.names);
            self.failed.push(FailedTarget { selection: Vec::new(), names });
        }
        std::mem::take(&mut self.failed)
    }
}

/// Returns the number before `what` in the last line of a run, such as `ok. 3 passed; 0 failed`.
fn count(result: &str, what: &str) -> usize {
    let number = result.split_once(what).and_then(|(before, _)| before.rsplit(' ').next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "     Running unittests src/lib.rs (target/debug/deps/a-0)
running 3 tests
test a ... ok
test tests::b ... ok
test c ... FAILED

successes:

---- a stdout ----
skipped: only one core
not skipped: this
test result: ok. 7 passed; 0 failed; 7 ignored

---- tests::b stdout ----
skipped: no driver


successes:
    a
    tests::b

failures:

---- c stdout ----
skipped: a test that fails is not skipped

failures:
    c
    tests::d

test result: FAILED. 2 passed; 2 failed; 4 ignored; 0 measured; 0 filtered out

error: test failed, to rerun pass `-p millrace-shard --lib`
test result: ok. 30 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out
error: test failed, to rerun pass `-p millrace-shard --test golden`

Caused by:
  process didn't exit successfully: `golden` (signal: 6, SIGABRT: process abort signal)
error: 2 targets failed:
    `-p millrace-shard --lib`
    `-p millrace-shard --test golden`";

    #[test]
    fn skipped_tests_are_counted_and_the_output_of_others_is_hidden() {
        let mut report = TestReport::default();
        let shown: Vec<&str> = OUTPUT.lines().filter(|line| report.read(line)).collect();
        assert_eq!((report.passed, report.ignored), (32, 5));
        assert_eq!(report.skipped, ["a: only one core", "tests::b: no driver"]);
        assert!(!shown.iter().any(|line| line.contains("7 passed") || line.contains("no driver")));
        for line in ["skipped: a test that fails is not skipped", "    tests::d", "running 3 tests"] {
            assert!(shown.contains(&line), "{line}: {shown:?}");
        }
    }

    #[test]
    fn failed_tests_are_found_with_what_makes_cargo_run_them_again() {
        let mut report = TestReport::default();
        OUTPUT.lines().for_each(|line| {
            report.read(line);
        });
        let owned = |all: &[&str]| all.iter().map(|&one| one.to_owned()).collect::<Vec<_>>();
        let failed = [
            FailedTarget { selection: owned(&["--lib"]), names: owned(&["c", "tests::d"]) },
            FailedTarget { selection: owned(&["--test", "golden"]), names: Vec::new() },
        ];
        assert_eq!(report.take_failed(), failed);
    }

    #[test]
    fn tests_of_an_executable_without_cargo_have_no_selection() {
        let mut report = TestReport::default();
        for line in
            ["running 1 test", "F", "failures:", "", "failures:", "    x::y", "", "test result: FAILED."]
        {
            report.read(line);
        }
        let failed = report.take_failed();
        assert_eq!(failed, [FailedTarget { selection: Vec::new(), names: vec!["x::y".to_owned()] }]);
    }
}
