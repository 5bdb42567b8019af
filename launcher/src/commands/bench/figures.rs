//! The figures of one batch size: times, and the work that was done in them.

use millrace_model::estimate::ShardEstimate;
use millrace_shard::offline::{BatchTimes, BenchWorkload, MachineLimits};

/// The work of a batch: its tokens, operations and bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct StepCosts {
    pub(super) workload: BenchWorkload,
    /// Floating-point operations of the prompts.
    prefill_operations: f64,
    /// Bytes of weights, keys and values that all decode steps read.
    decode_bytes: f64,
}

impl StepCosts {
    /// Computes the work of a batch from the shape of the model.
    pub(super) fn new(estimate: &ShardEstimate, batch: usize, prompt: usize, generate: usize) -> Self {
        let contexts = prompt + 1..=prompt + generate;
        StepCosts {
            workload: BenchWorkload { batch, prompt, generate },
            prefill_operations: batch as f64 * estimate.prefill(prompt).operations,
            decode_bytes: contexts.map(|context| estimate.decode(batch, context).read as f64).sum(),
        }
    }
}

/// The measured runs of one batch size.
#[derive(Debug)]
pub(super) struct BatchFigures {
    costs: StepCosts,
    runs: Vec<RunFigures>,
}

/// The figures of one run. All are per second.
#[derive(Debug, Clone, Copy)]
struct RunFigures {
    prefill_tokens: f64,
    prefill_operations: f64,
    decode_tokens: f64,
    decode_bytes: f64,
    /// The limits of the machine just before the run, if they are known.
    limits: Option<MachineLimits>,
}

/// The medians of the runs of one batch size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct BatchSummary {
    pub(super) batch: usize,
    pub(super) prefill_tokens_per_second: f64,
    pub(super) prefill_gflops: f64,
    pub(super) decode_tokens_per_second: f64,
    pub(super) decode_ms_per_step: f64,
    pub(super) decode_gigabytes_per_second: f64,
    /// The limits of the machine, and the shares of them that were reached.
    pub(super) limits: Option<LimitSummary>,
}

/// The medians of the limits of the machine, and of the shares that were reached in each run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LimitSummary {
    pub(super) instruction: &'static str,
    pub(super) peak_gflops: f64,
    pub(super) bandwidth_gigabytes_per_second: f64,
    pub(super) prefill_share_of_peak: f64,
    pub(super) decode_share_of_bandwidth: f64,
}

impl BatchFigures {
    /// Creates the figures of a batch size that has not been measured.
    pub(super) fn new(costs: StepCosts) -> Self {
        BatchFigures { costs, runs: Vec::new() }
    }

    /// Returns the workload of a run.
    pub(super) fn workload(&self) -> BenchWorkload {
        self.costs.workload
    }

    /// Adds a run.
    pub(super) fn add(&mut self, times: &BatchTimes, limits: Option<MachineLimits>) {
        let StepCosts { workload: BenchWorkload { batch, prompt, generate }, .. } = self.costs;
        // A clock may not see a step of a tiny model.
        let seconds = |time: std::time::Duration| time.as_secs_f64().max(1e-9);
        let (prefill, decode) = (seconds(times.prefill), seconds(times.decode.iter().sum()));
        self.runs.push(RunFigures {
            prefill_tokens: (batch * prompt) as f64 / prefill,
            prefill_operations: self.costs.prefill_operations / prefill,
            decode_tokens: (batch * generate) as f64 / decode,
            decode_bytes: self.costs.decode_bytes / decode,
            limits,
        });
    }

    /// Returns the medians of the runs.
    pub(super) fn summary(&self) -> BatchSummary {
        let over = |value: &dyn Fn(&RunFigures) -> f64| median(self.runs.iter().map(value).collect());
        let batch = self.costs.workload.batch;
        let decode_tokens_per_second = over(&|run| run.decode_tokens);
        let limits: Vec<_> = self.runs.iter().filter_map(|run| Some((run, run.limits?))).collect();
        let of_limits = |value: &dyn Fn(&RunFigures, &MachineLimits) -> f64| {
            median(limits.iter().map(|(run, limits)| value(run, limits)).collect())
        };
        BatchSummary {
            batch,
            prefill_tokens_per_second: over(&|run| run.prefill_tokens),
            prefill_gflops: over(&|run| 1e-9 * run.prefill_operations),
            decode_tokens_per_second,
            decode_ms_per_step: 1e3 * batch as f64 / decode_tokens_per_second,
            decode_gigabytes_per_second: over(&|run| 1e-9 * run.decode_bytes),
            limits: limits.first().map(|(_, first)| LimitSummary {
                instruction: first.instruction,
                peak_gflops: of_limits(&|_, limits| 1e-9 * limits.peak),
                bandwidth_gigabytes_per_second: of_limits(&|_, limits| 1e-9 * limits.bandwidth),
                prefill_share_of_peak: of_limits(&|run, limits| run.prefill_operations / limits.peak),
                decode_share_of_bandwidth: of_limits(&|run, limits| run.decode_bytes / limits.bandwidth),
            }),
        }
    }
}

/// Returns the median, or 0 if there are no values.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match (values.len(), values.get(values.len() / 2)) {
        (_, None) => 0.0,
        (len, Some(upper)) if len % 2 == 0 => (values[len / 2 - 1] + upper) / 2.0,
        (_, Some(middle)) => *middle,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;

    /// Returns the figures of a batch of 2 after runs whose steps took these milliseconds.
    pub(in crate::commands::bench) fn figures(runs: &[(u64, u64)], with_limits: bool) -> BatchFigures {
        let workload = BenchWorkload { batch: 2, prompt: 50, generate: 4 };
        let costs = StepCosts { workload, prefill_operations: 4e9, decode_bytes: 8e9 };
        let mut figures = BatchFigures::new(costs);
        for &(prefill, step) in runs {
            let times = BatchTimes {
                prefill: Duration::from_millis(prefill),
                decode: vec![Duration::from_millis(step); 4],
            };
            let limits = MachineLimits { instruction: "f32 multiply-add", peak: 1.6e11, bandwidth: 4e10 };
            figures.add(&times, with_limits.then_some(limits));
        }
        figures
    }

    #[test]
    fn a_summary_has_the_medians_of_all_runs() {
        let summary = figures(&[(50, 100), (500, 1000), (40, 50)], true).summary();
        assert!((summary.prefill_tokens_per_second - 2000.0).abs() < 1e-6);
        assert!((summary.prefill_gflops - 80.0).abs() < 1e-6);
        assert!((summary.decode_tokens_per_second - 20.0).abs() < 1e-6);
        assert!((summary.decode_ms_per_step - 100.0).abs() < 1e-6);
        assert!((summary.decode_gigabytes_per_second - 20.0).abs() < 1e-6);
        let limits = summary.limits.unwrap();
        assert!((limits.prefill_share_of_peak - 0.5).abs() < 1e-6);
        assert!((limits.decode_share_of_bandwidth - 0.5).abs() < 1e-6);
    }

    #[test]
    fn a_device_without_known_limits_has_no_shares() {
        assert_eq!(figures(&[(50, 100)], false).summary().limits, None);
    }

    #[test]
    fn the_median_of_an_even_number_is_between_the_middle_values() {
        assert_eq!(median(vec![4.0, 1.0, 2.0, 100.0]), 3.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(Vec::new()), 0.0);
    }
}
