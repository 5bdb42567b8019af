//! The progress of a benchmark on standard error: a bar on a terminal, else some lines.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget};
use millrace_shard::offline::WorkloadStep;

use super::expectation::{Expectation, Seconds};
use crate::progress::style;

/// The time between two updates of the bar. Another thread draws it, so that no step waits.
const BAR_UPDATE: Duration = Duration::from_millis(200);

/// The time between two lines without a terminal.
const LINE_UPDATE: Duration = Duration::from_secs(10);

/// The progress of all runs, in seconds of the expected time.
pub(super) struct BenchProgress {
    bar: ProgressBar,
    is_terminal: bool,
    work: Option<Work>,
}

/// The work of all runs.
struct Work {
    expected: Expectation,
    /// The run that is computed.
    name: String,
    /// The sequences of that run.
    batch: usize,
    /// Expected seconds of the steps that were computed.
    done: f64,
    since: Instant,
    last_line: Instant,
}

impl BenchProgress {
    /// Shows that a first short run is computed.
    pub(super) fn start() -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        let target = if is_terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        if is_terminal {
            bar.set_style(style("{spinner} {msg}"));
            bar.set_message("a first short prompt");
            bar.enable_steady_tick(BAR_UPDATE);
        }
        BenchProgress { bar, is_terminal, work: None }
    }

    /// Says how long the benchmark will take.
    pub(super) fn expect(&mut self, expected: Expectation) {
        self.bar.suspend(|| eprintln!("{expected}"));
        self.bar.set_style(style("{msg:<24} {wide_bar} {percent:>3}% ({eta} left)"));
        self.bar.set_length(units(expected.total_seconds()).max(1));
        let now = Instant::now();
        self.work =
            Some(Work { expected, name: String::new(), batch: 1, done: 0.0, since: now, last_line: now });
    }

    /// Names the run that begins, and gives the number of its sequences.
    pub(super) fn begin(&mut self, name: String, batch: usize) {
        self.bar.set_message(name.clone());
        if let Some(work) = &mut self.work {
            (work.name, work.batch) = (name, batch);
        }
    }

    /// Counts a step that was computed.
    pub(super) fn add(&mut self, step: WorkloadStep) {
        let Some(work) = &mut self.work else { return };
        work.add(step);
        if self.is_terminal {
            self.bar.set_position(units(work.done));
        } else if let Some(line) = work.line(Instant::now()) {
            eprintln!("{line}");
        }
    }

    /// Removes the bar.
    pub(super) fn finish(self) {
        self.bar.finish_and_clear();
    }
}

impl Work {
    fn add(&mut self, step: WorkloadStep) {
        self.done += match step {
            WorkloadStep::Prefill(tokens) => tokens as f64 * self.expected.token_seconds(),
            WorkloadStep::Decode => self.expected.step_seconds(self.batch),
        };
    }

    /// Returns a line about the progress if it is time for one.
    fn line(&mut self, now: Instant) -> Option<String> {
        if now.duration_since(self.last_line) < LINE_UPDATE || self.done <= 0.0 {
            return None;
        }
        self.last_line = now;
        let share = (self.done / self.expected.total_seconds()).min(1.0);
        let left = now.duration_since(self.since).as_secs_f64() * (1.0 / share - 1.0);
        Some(format!("{}: {:.0}% of all runs, about {} left", self.name, 100.0 * share, Seconds(left)))
    }
}

/// Returns seconds in the units of the bar.
fn units(seconds: f64) -> u64 {
    (1e6 * seconds) as u64
}

#[cfg(test)]
mod tests {
    use millrace_shard::offline::BenchWorkload;

    use super::super::expectation::tests::expectation;
    use super::*;

    #[test]
    fn lines_come_in_intervals_and_end_at_all_of_the_work() {
        let runs = [BenchWorkload { batch: 2, prompt: 10, generate: 3 }];
        let since = Instant::now();
        let mut work = Work {
            expected: expectation(10, &runs),
            name: "run 1 of 1, batch 2".into(),
            batch: 2,
            done: 0.0,
            since,
            last_line: since,
        };
        let later = |seconds| since + Duration::from_secs(seconds);
        assert_eq!(work.line(later(30)), None, "nothing was computed");
        work.add(WorkloadStep::Prefill(20));
        assert_eq!(work.line(later(9)), None);
        let line = work.line(later(10)).unwrap();
        assert!(
            line.starts_with("run 1 of 1, batch 2: ") && line.contains("% of all runs, about "),
            "{line}"
        );
        assert_eq!(work.line(later(19)), None);
        (0..3).for_each(|_| work.add(WorkloadStep::Decode));
        let line = work.line(later(20)).unwrap();
        assert_eq!(line, "run 1 of 1, batch 2: 100% of all runs, about 0.0 ms left");
    }
}
