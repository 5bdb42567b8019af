//! What the engine's loop tells `/metrics`.

use std::time::{Duration, Instant};

use metrics::{counter, gauge, histogram};
use millrace_proto::Step;

use crate::metrics as names;
use crate::scheduler::Stats;

/// A step under way.
#[derive(Debug)]
pub(super) struct Measured {
    sent: Instant,
    method: &'static str,
}

impl Measured {
    /// A step is being sent. One with a chunk of a prompt in it counts as prefill.
    pub(super) fn sent(step: &Step) -> Self {
        let prefill = step.rows.iter().any(|row| row.count > 1);
        let method = if prefill { "prefill" } else { "decode" };
        let tokens: u64 = step.rows.iter().map(|row| u64::from(row.count)).sum();
        counter!(names::BATCH_INFERENCE_COUNT, "method" => method).increment(1);
        counter!(names::STEP_TOKENS, "method" => method).increment(tokens);
        histogram!(names::BATCH_NEXT_SIZE).record(step.rows.len() as f64);
        Measured { sent: Instant::now(), method }
    }

    /// Its answer is there.
    pub(super) fn answered(self, forward_micros: u64) {
        let method = self.method;
        counter!(names::BATCH_INFERENCE_SUCCESS, "method" => method).increment(1);
        histogram!(names::BATCH_INFERENCE_DURATION, "method" => method).record(self.sent.elapsed());
        histogram!(names::BATCH_FORWARD_DURATION, "method" => method)
            .record(Duration::from_micros(forward_micros));
    }

    /// It will never be answered.
    pub(super) fn lost(self) {
        counter!(names::BATCH_INFERENCE_FAILURE, "method" => self.method).increment(1);
    }
}

/// Shows how full the scheduler is.
pub(super) fn show(stats: &Stats, num_blocks: usize) {
    gauge!(names::QUEUE_SIZE).set(stats.waiting as f64);
    gauge!(names::BATCH_CURRENT_SIZE).set(stats.running as f64);
    gauge!(names::KV_BLOCKS_USED).set(stats.used_blocks as f64);
    gauge!(names::KV_BLOCKS_TOTAL).set(num_blocks as f64);
    counter!(names::PREEMPTIONS).absolute(stats.preemptions);
}
