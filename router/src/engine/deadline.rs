//! How long a step may take before the shards count as hung.
//!
//! A process that stands still leaves pings unanswered, which is found in seconds. The deadline of a step is for
//! shards that answer pings and still make no progress, so it may be generous, and must be: the same flags serve a small
//! model on a GPU and a 24B model on two cores, whose 512-token step takes ten minutes.

use std::time::Duration;

use millrace_proto::{Ready, Row, Step};

/// No derived deadline is shorter.
const FLOOR: Duration = Duration::from_secs(120);

/// A step may take this many times the predicted time.
const MARGIN: f64 = 8.0;

/// Floating-point operations per second that every device reaches, before anything has been measured.
const SLOWEST_DEVICE: f64 = 2e9;

/// Width of a state where the shards do not say it.
const UNKNOWN_WIDTH: f64 = 1024.0;

/// Classes of work, each twice as much as the one before. A step has at most 2^32 tokens of work.
const CLASSES: usize = 33;

/// Predicts the time of steps from the times of those that have been answered.
///
/// Work is counted in tokens. A token that attends to as many keys as a state is wide counts twice, because attention
/// grows with the keys and everything else does not.
#[derive(Debug, Clone)]
pub(super) struct StepDeadline {
    fixed: Option<Duration>,
    parameters: f64,
    width: f64,
    /// Seconds of the slowest steps of late, by the power of two of their work.
    slowest: [Option<f64>; CLASSES],
}

impl StepDeadline {
    /// For shards that have announced `ready`. A deadline that is `fixed` holds for all steps.
    pub(super) fn new(fixed: Option<Duration>, ready: &Ready) -> Self {
        let width = if ready.hidden_size == 0 { UNKNOWN_WIDTH } else { f64::from(ready.hidden_size) };
        let parameters = ready.parameters as f64;
        let mut deadline = StepDeadline { fixed, parameters, width, slowest: [None; CLASSES] };
        if ready.warm_up_tokens > 0 {
            let took = Duration::from_micros(ready.warm_up_micros);
            deadline.observe(f64::from(ready.warm_up_tokens), took);
        }
        deadline
    }

    /// The work of a step, in tokens.
    pub(super) fn work(&self, step: &Step) -> f64 {
        let of_row = |row: &Row| {
            let keys = f64::from(row.start) + f64::from(row.count);
            f64::from(row.count) * (1.0 + keys / self.width)
        };
        step.rows.iter().map(of_row).sum::<f64>().max(1.0)
    }

    /// How long a step with this much work may take.
    pub(super) fn allowed(&self, work: f64) -> Duration {
        self.fixed.unwrap_or_else(|| {
            // A number that no duration can hold is as good as a year.
            let seconds = self.predicted(work).min(3.2e7);
            Duration::from_secs_f64(seconds).max(FLOOR)
        })
    }

    /// Takes in the time that a step with this much work has taken.
    pub(super) fn observe(&mut self, work: f64, took: Duration) {
        let took = took.as_secs_f64();
        let slowest = &mut self.slowest[class(work)];
        // A single slow step is forgotten slowly.
        *slowest = Some(slowest.map_or(took, |slowest| took.max(0.9 * slowest + 0.1 * took)));
    }

    /// Seconds that a step with this much work takes at most: the tightest of what the steps of each class say. More
    /// work takes at most proportionally longer, and less work takes no longer.
    fn predicted(&self, work: f64) -> f64 {
        let of_class = |(class, slowest): (usize, &Option<f64>)| {
            let least_work = (1u64 << class) as f64;
            slowest.map(|slowest| MARGIN * slowest * (work / least_work).max(1.0))
        };
        let measured = self.slowest.iter().enumerate().filter_map(of_class).reduce(f64::min);
        measured.unwrap_or(2.0 * self.parameters * work / SLOWEST_DEVICE)
    }
}

/// The power of two of `work`.
fn class(work: f64) -> usize {
    // From 0 to 32, whatever the number.
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

    /// 24 billion parameters on two cores with 40 GFLOP/s together. Reading the weights takes 2.4 s.
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
    fn a_long_step_of_a_large_model_on_two_cores_is_no_hang() {
        let prefill = step(&[(0, 512)]);
        assert!(takes(512.0) > 600.0, "more than the former 120 s");
        for ready in [large(0), large(16)] {
            let mut deadline = StepDeadline::new(None, &ready);
            let work = deadline.work(&prefill);
            assert!(deadline.allowed(work) > seconds(takes(512.0)), "at first");
            for tokens in [1.0, 64.0, 512.0] {
                deadline.observe(tokens, seconds(takes(tokens)));
                assert!(deadline.allowed(work) > seconds(3.0 * takes(512.0)), "after {tokens} tokens");
                assert!(deadline.allowed(work) < seconds(4.0 * 3600.0), "a hang is found some day");
            }
        }
    }

    #[test]
    fn no_derived_deadline_is_shorter_than_the_floor() {
        let small = Ready { parameters: 1_000_000, hidden_size: 64, ..Ready::default() };
        let mut deadline = StepDeadline::new(None, &small);
        assert_eq!(deadline.allowed(512.0), FLOOR);
        deadline.observe(512.0, seconds(0.001));
        assert_eq!(deadline.allowed(512.0), FLOOR);
        assert_eq!(deadline.allowed(deadline.work(&step(&[]))), FLOOR);
    }

    #[test]
    fn a_fixed_deadline_is_fixed() {
        let mut deadline = StepDeadline::new(Some(seconds(1.5)), &large(16));
        deadline.observe(512.0, seconds(1000.0));
        assert_eq!(deadline.allowed(512.0), seconds(1.5));
    }

    #[test]
    fn keys_count_where_there_are_many() {
        let deadline = StepDeadline::new(None, &Ready { hidden_size: 1024, ..Ready::default() });
        assert_eq!(deadline.work(&step(&[(0, 128)])), 144.0);
        assert_eq!(deadline.work(&step(&[(130_944, 128), (0, 128)])), 128.0 * 129.0 + 144.0);
        // As many tokens at the end of a long context may take as much longer.
        let mut deadline = StepDeadline::new(None, &Ready { hidden_size: 1024, ..Ready::default() });
        deadline.observe(deadline.work(&step(&[(0, 512)])), seconds(60.0));
        let far = deadline.work(&step(&[(99_488, 512)]));
        assert!(deadline.allowed(far) > seconds(60.0 * 50.0), "{:?}", deadline.allowed(far));
    }

    #[test]
    fn a_slow_step_is_forgotten_in_time_and_nothing_overflows() {
        let mut deadline = StepDeadline::new(None, &large(0));
        deadline.observe(1.0, seconds(1e6));
        let at_first = deadline.allowed(1.0);
        (0..200).for_each(|_| deadline.observe(1.0, seconds(0.01)));
        assert!(at_first > seconds(1e6) && deadline.allowed(1.0) == FLOOR);
        for work in [0.0, f64::MAX, f64::INFINITY, f64::NAN] {
            deadline.observe(work, Duration::MAX);
            let _ = deadline.allowed(work);
        }
    }
}
