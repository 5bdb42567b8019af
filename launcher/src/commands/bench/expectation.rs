//! The time that a benchmark will take, estimated from a short run.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use millrace_model::estimate::ShardEstimate;
use millrace_shard::offline::BenchWorkload;

/// The times of a short prompt and of the decode step after it.
#[derive(Debug, Clone, Copy)]
pub(super) struct FirstRun {
    /// Tokens of the prompt.
    pub(super) tokens: usize,
    pub(super) prefill: Duration,
    pub(super) decode: Duration,
}

/// The expected times of all runs.
#[derive(Debug, Clone)]
pub(super) struct Expectation {
    first: FirstRun,
    /// Tokens of the prompts that are measured.
    prompt: usize,
    /// Seconds of one prompt.
    prompt_seconds: f64,
    /// Seconds of a decode step, by the number of sequences.
    step_seconds: Vec<(usize, f64)>,
    /// Seconds of all runs.
    total_seconds: f64,
}

impl Expectation {
    /// Scales the times of a short run to longer prompts and larger batches. Prompts take as long
    /// as their operations; a decode step takes as long as its reads or its operations, whichever
    /// is longer.
    pub(super) fn new(
        first: FirstRun,
        estimate: &ShardEstimate,
        prompt: usize,
        workloads: &[BenchWorkload],
    ) -> Self {
        let per_operation = first.prefill.as_secs_f64() / estimate.prefill(first.tokens).operations.max(1.0);
        let first_step = estimate.decode(1, first.tokens + 1);
        let per_byte = first.decode.as_secs_f64() / (first_step.read as f64).max(1.0);
        let step_seconds = |batch: usize| {
            let step = estimate.decode(batch, prompt + 1);
            (step.read as f64 * per_byte).max(step.operations * per_operation)
        };
        let mut expected = Expectation {
            first,
            prompt,
            prompt_seconds: estimate.prefill(prompt).operations * per_operation,
            step_seconds: workloads.iter().map(|run| (run.batch, step_seconds(run.batch))).collect(),
            total_seconds: 0.0,
        };
        let run_seconds = |run: &BenchWorkload| {
            run.batch as f64 * expected.prompt_seconds
                + run.generate as f64 * expected.step_seconds(run.batch)
        };
        expected.total_seconds = workloads.iter().map(run_seconds).sum();
        expected
    }

    /// Returns the expected seconds of all runs.
    pub(super) fn total_seconds(&self) -> f64 {
        self.total_seconds
    }

    /// Returns the expected seconds of one token of a prompt.
    pub(super) fn token_seconds(&self) -> f64 {
        self.prompt_seconds / self.prompt.max(1) as f64
    }

    /// Returns the expected seconds of a decode step of `batch` sequences.
    pub(super) fn step_seconds(&self, batch: usize) -> f64 {
        self.step_seconds.iter().find(|(of, _)| *of == batch).map_or(0.0, |(_, seconds)| *seconds)
    }
}

impl Display for Expectation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let FirstRun { tokens, prefill, .. } = self.first;
        write!(
            f,
            "a prompt of {} tokens takes about {}, because one of {tokens} took {}; all runs take about {}",
            self.prompt,
            Seconds(self.prompt_seconds),
            Seconds(prefill.as_secs_f64()),
            Seconds(self.total_seconds)
        )
    }
}

/// A time, in the unit that a reader thinks in.
pub(super) struct Seconds(pub(super) f64);

impl Display for Seconds {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            seconds if seconds < 0.0995 => write!(f, "{:.1} ms", 1e3 * seconds),
            seconds if seconds < 9.95 => write!(f, "{seconds:.1} s"),
            seconds if seconds < 119.5 => write!(f, "{seconds:.0} s"),
            seconds if seconds < 7170.0 => write!(f, "{:.0} min", seconds / 60.0),
            seconds => write!(f, "{:.1} h", seconds / 3600.0),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use millrace_formats::Source;
    use millrace_model::WeightStorage;
    use millrace_model::memory_plan::UnpaddedDevice;
    use millrace_model::{DType, KvFormat, families};

    use super::*;

    /// Returns the expectation for the demo model after a first run of 10 tokens, which took 20 ms,
    /// and a decode step of 1 ms.
    pub(in crate::commands::bench) fn expectation(prompt: usize, workloads: &[BenchWorkload]) -> Expectation {
        let model = families::load_dummy(&Source::Memory(crate::model::DEMO), &Default::default()).unwrap();
        let storage = WeightStorage::choose(DType::BF16, None, &model, &UnpaddedDevice).unwrap();
        let estimate = ShardEstimate::new(&model.spec, 1, storage, KvFormat::from(DType::BF16)).unwrap();
        let first =
            FirstRun { tokens: 10, prefill: Duration::from_millis(20), decode: Duration::from_millis(1) };
        Expectation::new(first, &estimate, prompt, workloads)
    }

    #[test]
    fn longer_prompts_take_at_least_as_long_for_each_token() {
        let runs = [
            BenchWorkload { batch: 1, prompt: 100, generate: 1 },
            BenchWorkload { batch: 8, prompt: 100, generate: 4 },
        ];
        let expected = expectation(100, &runs);
        // Attention makes the later tokens of a prompt dearer; the head is computed once.
        assert!((0.1..0.4).contains(&expected.prompt_seconds), "{}", expected.prompt_seconds);
        assert!(expected.step_seconds(1) >= 1e-3 && expected.step_seconds(8) > expected.step_seconds(1));
        let total = 9.0 * expected.prompt_seconds + expected.step_seconds(1) + 4.0 * expected.step_seconds(8);
        assert!((expected.total_seconds() - total).abs() < 1e-9);
        let text = expected.to_string();
        assert!(text.starts_with("a prompt of 100 tokens takes about 0."), "{text}");
        assert!(text.contains(", because one of 10 took 20.0 ms; all runs take about "), "{text}");
    }

    #[test]
    fn a_prompt_as_long_as_the_first_takes_as_long() {
        let expected = expectation(10, &[BenchWorkload { batch: 1, prompt: 10, generate: 0 }]);
        assert!((expected.total_seconds() - 0.02).abs() < 1e-9);
        assert!((expected.token_seconds() - 0.002).abs() < 1e-9);
    }

    #[test]
    fn times_have_units_that_people_read() {
        for (seconds, text) in [
            (0.0042, "4.2 ms"),
            (0.25, "0.2 s"),
            (9.9, "9.9 s"),
            (75.0, "75 s"),
            (1500.0, "25 min"),
            (9000.0, "2.5 h"),
        ] {
            assert_eq!(Seconds(seconds).to_string(), text);
        }
    }
}
