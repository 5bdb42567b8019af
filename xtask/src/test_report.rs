//! Reads the output of `cargo test -- --show-output`: which tests passed, were ignored, or skipped
//! themselves.
//!
//! A test that finds out while it runs that the machine lacks something prints `skipped: WHY` and
//! passes. The standard library's test harness hides the output of tests that pass, so that nobody
//! would see it.

/// The tests of a run, as the output counts them.
#[derive(Debug, Default)]
pub(crate) struct TestReport {
    /// Number of tests that passed, including those that skipped themselves.
    pub(crate) passed: usize,
    /// Number of tests that were ignored.
    pub(crate) ignored: usize,
    /// Name and reason of each test that skipped itself.
    pub(crate) skipped: Vec<String>,
    section: Section,
    /// The test whose output is being read.
    test: String,
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
}

impl TestReport {
    /// Reads a line. Returns whether it is to be shown.
    pub(crate) fn read(&mut self, line: &str) -> bool {
        match self.section {
            Section::Shown if line == "successes:" => self.section = Section::Outputs,
            Section::Shown => {
                if let Some(result) = line.strip_prefix("test result: ") {
                    self.passed += count(result, " passed");
                    self.ignored += count(result, " ignored");
                }
                return true;
            }
            Section::Outputs if line == "successes:" => self.section = Section::Names,
            Section::Outputs => {
                let heading = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"));
                if let Some(test) = heading {
                    self.test = test.to_owned();
                } else if let Some(why) = line.strip_prefix("skipped: ") {
                    self.skipped.push(format!("{}: {why}", self.test));
                }
            }
            Section::Names if line.is_empty() => self.section = Section::Shown,
            Section::Names => {}
        }
        false
    }
}

/// Returns the number before `what` in the last line of a run, such as `ok. 3 passed; 0 failed`.
fn count(result: &str, what: &str) -> usize {
    let number = result.split_once(what).and_then(|(before, _)| before.rsplit(' ').next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::TestReport;

    const OUTPUT: &str = "running 3 tests
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

test result: FAILED. 2 passed; 1 failed; 4 ignored; 0 measured; 0 filtered out
test result: ok. 30 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out";

    #[test]
    fn skipped_tests_are_counted_and_the_output_of_others_is_hidden() {
        let mut report = TestReport::default();
        let shown: Vec<&str> = OUTPUT.lines().filter(|line| report.read(line)).collect();
        assert_eq!((report.passed, report.ignored), (32, 5));
        assert_eq!(report.skipped, ["a: only one core", "tests::b: no driver"]);
        assert_eq!(shown.len(), 12, "{shown:?}");
        assert!(!shown.iter().any(|line| line.contains("7 passed") || line.contains("no driver")));
    }
}
