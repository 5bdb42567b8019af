//! The deadline of a step, after which the shards count as hung.
//!
//! A process that is suspended does not answer pings, which is detected in seconds. The deadline of
//! a step is for shards that answer pings and still make no progress. It may be generous, and it
//! must be: the same flags serve a small model on a GPU and a 24B model on two CPU cores, whose
//! 512-token step takes ten minutes.

use std::time::Duration;

use millrace_proto::{Ready, Row, Step};

/// The shortest derived deadline.
const MIN_DEADLINE: Duration = Duration::from_secs(120);

/// Ratio of the deadline to the predicted time.
const MARGIN: f64 = 8.0;

/// Floating-point operations per second that every device is assumed to reach before a step has
/// been measured.
const SLOWEST_DEVICE: f64 = 2e9;

/// Length of a hidden state if the shards do not announce it.
const DEFAULT_WIDTH: f64 = 1024.0;

/// Number of classes of work. Each class has twice the work of the one before, and a step has at
/// most 2^32 tokens of work.
const CLASSES: usize = 33;

/// Predicts the time of steps from the times of earlier steps.
///
/// Work is counted in tokens. A token that attends to as many keys as a hidden state has elements
/// counts twice, because the work of attention grows with the number of keys and other work does
/// not.
#[derive(Debug, Clone)]
pub(super) struct StepDeadline {
    fixed: Option<Duration>,
    parameters: f64,
    width: f64,
    /// Seconds of the slowest recent step of each class of work.
    slowest: [Option<f64>; CLASSES],
}

impl StepDeadline {
    /// The deadline for shards that have announced `ready`. A `fixed` deadline applies to all
    /// steps.
    pub(super) fn new(fixed: Option<Duration>, ready: &Ready) -> Self {
        let width = if ready.hidden_size == 0 { DEFAULT_WIDTH } else { f64::from(ready.hidden_size) };
        let parameters = ready.parameters as f64;
        let mut deadline = StepDeadline { fixed, parameters, width, slowest: [None; CLASSES] };
        if ready.warm_up_tokens > 0 {
            let took = Duration::from_micros(ready.warm_up_micros);
            deadline.observe(f64::from(ready.warm_up_tokens), took);
        }
        deadline
    }

    /// The work of a step, in tokens; 0 for a step without rows, which copies blocks to or from
    /// disk and tells nothing about the model.
    pub(super) fn work(&self, step: &Step) -> f64 {
        if step.rows.is_empty() {
            return 0.0;
        }
        let row_positions = |row: &Row| {
            let keys = f64::from(row.start) + f64::from(row.count);
            f64::from(row.count) * (1.0 + keys / self.width)
        };
        step.rows.iter().map(row_positions).sum::<f64>().max(1.0)
    }

    /// The deadline of a step with this much work.
    pub(super) fn allowed(&self, work: f64) -> Duration {
        self.fixed.unwrap_or_else(|| {
            // Capped at a year, because a duration cannot hold every number.
            let seconds = self.predicted(work).min(3.2e7);
            Duration::from_secs_f64(seconds).max(MIN_DEADLINE)
        })
    }

    /// Learns from the time that a step with this much work has taken.
    pub(super) fn observe(&mut self, work: f64, took: Duration) {
        if work == 0.0 {
            return;
        }
        let took = took.as_secs_f64();
        let slowest = &mut self.slowest[class(work)];
        // A single slow step is forgotten slowly.
        *slowest = Some(slowest.map_or(took, |slowest| took.max(0.9 * slowest + 0.1 * took)));
    }

    /// Maximum number of seconds that a step with this much work should take: the smallest bound
    /// that follows from any class of steps. More work takes at most proportionally longer, and
    /// less work takes no longer.
    fn predicted(&self, work: f64) -> f64 {
        let class_bound = |(class, slowest): (usize, &Option<f64>)| {
            let least_work = (1u64 << class) as f64;
            slowest.map(|slowest| MARGIN * slowest * (work / least_work).max(1.0))
        };
        let measured = self.slowest.iter().enumerate().filter_map(class_bound).reduce(f64::min);
        measured.unwrap_or(2.0 * self.parameters * work / SLOWEST_DEVICE)
    }
}

/// The class of `work`: its binary logarithm.
fn class(work: f64) -> usize {
    // In 0..CLASSES for every number, including NaN.
    (work.max(1.0).log2() as usize).min(CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn step(rows: &[(u32, u32)]) -> Step {
        let row = |&(start, count): &(u32, u32)| Row { start, count, ..Row::default() };
        Step { rows: rows.iter().map(row).collect(), ..Step::default() }
    }

    /// 24 billion parameters on two CPU cores with 40 GFLOP/s together. Reading the weights takes
    /// 2.4 s.
    const LARGE: f64 = 24e9;

    fn takes(tokens: f64) -> f64 {
        (2.0 * LARGE * tokens / 40e9).max(2.4)
    }

    fn large(warm_up_tokens: u32) -> Ready {
        let warm_up_micros = (takes(f64::from(warm_up_tokens)) * 1e6) as u64;
        Ready {
            parameters: LARGE as u64,
            hidden_size: 5120,
            warm_up_tokens,
            warm_up_micros,
            ..Ready::default()
        }
    }

    #[test]
    fn a_long_step_of_a_large_model_on_two_cores_does_not_count_as_hung() {
        let prefill = step(&[(0, 512)]);
        assert!(takes(512.0) > 600.0, "the step takes longer than MIN_DEADLINE");
        for ready in [large(0), large(16)] {
            let mut deadline = StepDeadline::new(None, &ready);
            let work = deadline.work(&prefill);
            assert!(deadline.allowed(work) > seconds(takes(512.0)), "before any step");
            for tokens in [1.0, 64.0, 512.0] {
                deadline.observe(tokens, seconds(takes(tokens)));
                assert!(deadline.allowed(work) > seconds(3.0 * takes(512.0)), "after {tokens} tokens");
                assert!(deadline.allowed(work) < seconds(4.0 * 3600.0), "a hang is detected");
            }
        }
    }

    #[test]
    fn no_derived_deadline_is_shorter_than_the_minimum() {
        let small = Ready { parameters: 1_000_000, hidden_size: 64, ..Ready::default() };
        let mut deadline = StepDeadline::new(None, &small);
        assert_eq!(deadline.allowed(512.0), MIN_DEADLINE);
        deadline.observe(512.0, seconds(0.001));
        assert_eq!(deadline.allowed(512.0), MIN_DEADLINE);
        assert_eq!(deadline.allowed(deadline.work(&step(&[]))), MIN_DEADLINE);
        // A step that only copies blocks is not a fast step of the model.
        let before = deadline.clone();
        deadline.observe(deadline.work(&step(&[])), seconds(1e-6));
        assert_eq!(deadline.slowest, before.slowest);
    }

    #[test]
    fn a_fixed_deadline_is_fixed() {
        let mut deadline = StepDeadline::new(Some(seconds(1.5)), &large(16));
        deadline.observe(512.0, seconds(1000.0));
        assert_eq!(deadline.allowed(512.0), seconds(1.5));
    }

    #[test]
    fn long_contexts_add_work() {
        let deadline = StepDeadline::new(None, &Ready { hidden_size: 1024, ..Ready::default() });
        assert_eq!(deadline.work(&step(&[(0, 128)])), 144.0);
        assert_eq!(deadline.work(&step(&[(130_944, 128), (0, 128)])), 128.0 * 129.0 + 144.0);
        // The same number of tokens at the end of a long context has a later deadline.
        let mut deadline = StepDeadline::new(None, &Ready { hidden_size: 1024, ..Ready::default() });
        deadline.observe(deadline.work(&step(&[(0, 512)])), seconds(60.0));
        let far = deadline.work(&step(&[(99_488, 512)]));
        assert!(deadline.allowed(far) > seconds(60.0 * 50.0), "{:?}", deadline.allowed(far));
    }

    #[test]
    fn a_slow_step_is_forgotten_over_time_and_nothing_overflows() {
        let mut deadline = StepDeadline::new(None, &large(0));
        deadline.observe(1.0, seconds(1e6));
        let at_first = deadline.allowed(1.0);
        (0..200).for_each(|_| deadline.observe(1.0, seconds(0.01)));
        assert!(at_first > seconds(1e6) && deadline.allowed(1.0) == MIN_DEADLINE);
        for work in [0.0, f64::MAX, f64::INFINITY, f64::NAN] {
            deadline.observe(work, Duration::MAX);
            let _ = deadline.allowed(work);
        }
    }
}
