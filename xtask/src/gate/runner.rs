//! Runs stages one after the other, and says in the last lines what failed and how to repeat it.

use std::collections::VecDeque;
use std::process::Command;
use std::time::{Duration, Instant};

use super::stages::{Runs, Stage};
use crate::cargo::cargo_path;
use crate::steady::{self, MARK};

/// The number of a failed stage's last lines that are repeated at the end.
const TAIL: usize = 30;

/// The result of a stage.
#[derive(Debug, Clone)]
struct Outcome {
    command: String,
    passed: bool,
    took: Duration,
    /// The last lines of its output.
    tail: VecDeque<String>,
    /// Its lines about unsteady tests.
    unsteady: Vec<String>,
}

/// Runs `cargo xtask COMMAND` for each stage. A stage that fails does not keep the next one from
/// running. Optional stages that would end after `budget` are left out, and named at the end: on a
/// slow machine, a run that is cut off would say nothing. Returns whether all that ran passed.
pub(super) fn run(stages: &[&Stage], budget: Option<Duration>) -> bool {
    let begin = Instant::now();
    let (mut outcomes, mut late) = (Vec::new(), Vec::new());
    for stage in stages {
        if !fits(stage, begin.elapsed(), budget) {
            late.push(stage.command);
            continue;
        }
        println!("=== {}", stage.command);
        let mut cargo = Command::new(cargo_path());
        cargo.args(["xtask"]).args(stage.command.split(' '));
        let outcome = run_one(stage.command, &mut cargo);
        println!("=== {}", line(&outcome));
        outcomes.push(outcome);
    }
    print!("{}", summary(&outcomes, &late));
    outcomes.iter().all(|outcome| outcome.passed)
}

/// Whether a stage must run, or ends within the budget.
fn fits(stage: &Stage, elapsed: Duration, budget: Option<Duration>) -> bool {
    let expected = Duration::from_secs(60 * u64::from(stage.minutes));
    matches!(stage.runs, Runs::Always) || budget.is_none_or(|budget| elapsed + expected <= budget)
}

fn run_one(name: &str, command: &mut Command) -> Outcome {
    let begin = Instant::now();
    let (mut tail, mut unsteady) = (VecDeque::new(), Vec::new());
    let passed = steady::follow(command, |line| {
        if line.starts_with(MARK) {
            unsteady.push(line.to_owned());
        }
        tail.push_back(line.to_owned());
        if tail.len() > TAIL {
            tail.pop_front();
        }
        true
    });
    Outcome { command: name.to_owned(), passed: passed == Some(true), took: begin.elapsed(), tail, unsteady }
}

fn line(outcome: &Outcome) -> String {
    let passed = if outcome.passed { "passed" } else { "FAILED" };
    format!("{passed} {:>6} s  {}", outcome.took.as_secs(), outcome.command)
}

/// Returns the last lines of the run: the end of each failed stage's output, the seconds of all
/// stages, unsteady tests, stages that were left out, and how to repeat what failed.
fn summary(outcomes: &[Outcome], late: &[&str]) -> String {
    let mut text = String::new();
    for failed in outcomes.iter().filter(|outcome| !outcome.passed) {
        text += &format!("\n=== the last lines of {}\n", failed.command);
        failed.tail.iter().for_each(|line| text += &format!("{line}\n"));
    }
    text += "\n";
    outcomes.iter().for_each(|outcome| text += &format!("{}\n", line(outcome)));
    let total: Duration = outcomes.iter().map(|outcome| outcome.took).sum();
    text += &format!("{} stages in {} s\n", outcomes.len(), total.as_secs());
    for unsteady in outcomes.iter().flat_map(|outcome| &outcome.unsteady) {
        text += &format!("{unsteady}\n");
    }
    for command in late {
        text += &format!("LEFT OUT for lack of time: cargo xtask {command}\n");
    }
    for failed in outcomes.iter().filter(|outcome| !outcome.passed) {
        text += &format!("{} failed; repeat it with: cargo xtask {0}\n", failed.command);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        shell
    }

    #[test]
    fn the_last_lines_say_what_failed_and_how_to_repeat_it() {
        let good = run_one("lint", &mut shell("echo fine; echo 'UNSTEADY: --lib a::b'"));
        let bad = run_one("sim one", &mut shell("seq 1 40; echo broken >&2; exit 3"));
        let text = summary(&[good, bad], &["arm64"]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "=== the last lines of sim one");
        assert_eq!((lines[2], lines[1 + TAIL]), ("12", "broken"));
        assert!(
            text.contains("passed      0 s  lint\nFAILED      0 s  sim one\n2 stages in 0 s\n"),
            "{text}"
        );
        assert!(
            text.contains("\nUNSTEADY: --lib a::b\nLEFT OUT for lack of time: cargo xtask arm64\n"),
            "{text}"
        );
        assert_eq!(lines.last(), Some(&"sim one failed; repeat it with: cargo xtask sim one"));
    }

    #[test]
    fn optional_stages_that_would_end_too_late_are_left_out() {
        let stage = |runs| Stage { command: "x", runs, minutes: 9, covered_by: None };
        let (always, optional) = (stage(Runs::Always), stage(Runs::IfTouched(&[])));
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        assert!(fits(&optional, minutes(66), Some(minutes(75))));
        assert!(!fits(&optional, minutes(67), Some(minutes(75))));
        assert!(fits(&optional, minutes(67), None) && fits(&always, minutes(90), Some(minutes(75))));
    }
}
