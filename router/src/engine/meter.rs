//! What the engine's loop tells `/metrics`. Text Generation Inference's names where it has one, `millrace_` where it
//! has not.

use std::time::{Duration, Instant};

use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use millrace_proto::Step;

use crate::scheduler::Stats;

/// Gauge: requests waiting for their first step.
const QUEUE_SIZE: &str = "tgi_queue_size";
/// Gauge: sequences that run.
const BATCH_CURRENT_SIZE: &str = "tgi_batch_current_size";
/// Histogram: rows of a step.
const BATCH_NEXT_SIZE: &str = "tgi_batch_next_size";
/// Counter by `method`: steps sent.
const BATCH_INFERENCE_COUNT: &str = "tgi_batch_inference_count";
/// Counter by `method`: steps answered.
const BATCH_INFERENCE_SUCCESS: &str = "tgi_batch_inference_success";
/// Counter by `method`: steps lost with their shards.
const BATCH_INFERENCE_FAILURE: &str = "tgi_batch_inference_failure";
/// Histogram by `method`: seconds from sending a step to its answer.
const BATCH_INFERENCE_DURATION: &str = "tgi_batch_inference_duration";
/// Histogram by `method`: seconds of a step's forward pass on the shards.
const BATCH_FORWARD_DURATION: &str = "tgi_batch_forward_duration";
/// Counter: tokens run through the model, by `method`.
const STEP_TOKENS: &str = "millrace_step_tokens_total";
/// Counter: sequences sent back to the queue for want of cache blocks.
const PREEMPTIONS: &str = "millrace_preemptions_total";
/// Gauge: KV cache blocks in use.
const KV_BLOCKS_USED: &str = "millrace_kv_blocks_used";
/// Gauge: KV cache blocks of the pool.
const KV_BLOCKS_TOTAL: &str = "millrace_kv_blocks_total";

/// Describes the metrics to the installed recorder.
pub(super) fn describe() {
    describe_gauge!(QUEUE_SIZE, Unit::Count, "Requests waiting for their first step");
    describe_gauge!(BATCH_CURRENT_SIZE, Unit::Count, "Sequences that run");
    describe_histogram!(BATCH_NEXT_SIZE, Unit::Count, "Rows of a step");
    describe_counter!(BATCH_INFERENCE_COUNT, Unit::Count, "Steps sent");
    describe_counter!(BATCH_INFERENCE_SUCCESS, Unit::Count, "Steps answered");
    describe_counter!(BATCH_INFERENCE_FAILURE, Unit::Count, "Steps lost with their shards");
    describe_histogram!(BATCH_INFERENCE_DURATION, Unit::Seconds, "From sending a step to its answer");
    describe_histogram!(BATCH_FORWARD_DURATION, Unit::Seconds, "A step's forward pass");
    describe_counter!(STEP_TOKENS, Unit::Count, "Tokens run through the model");
    describe_counter!(PREEMPTIONS, Unit::Count, "Sequences sent back to the queue for want of cache blocks");
    describe_gauge!(KV_BLOCKS_USED, Unit::Count, "KV cache blocks in use");
    describe_gauge!(KV_BLOCKS_TOTAL, Unit::Count, "KV cache blocks of the pool");
}

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
        counter!(BATCH_INFERENCE_COUNT, "method" => method).increment(1);
        counter!(STEP_TOKENS, "method" => method).increment(tokens);
        histogram!(BATCH_NEXT_SIZE).record(step.rows.len() as f64);
        Measured { sent: Instant::now(), method }
    }

    /// Its answer is there.
    pub(super) fn answered(self, forward_micros: u64) {
        let method = self.method;
        counter!(BATCH_INFERENCE_SUCCESS, "method" => method).increment(1);
        histogram!(BATCH_INFERENCE_DURATION, "method" => method).record(self.sent.elapsed());
        histogram!(BATCH_FORWARD_DURATION, "method" => method).record(Duration::from_micros(forward_micros));
    }

    /// It will never be answered.
    pub(super) fn lost(self) {
        counter!(BATCH_INFERENCE_FAILURE, "method" => self.method).increment(1);
    }
}

/// Shows how full the scheduler is.
pub(super) fn show(stats: &Stats, num_blocks: usize) {
    gauge!(QUEUE_SIZE).set(stats.waiting as f64);
    gauge!(BATCH_CURRENT_SIZE).set(stats.running as f64);
    gauge!(KV_BLOCKS_USED).set(stats.used_blocks as f64);
    gauge!(KV_BLOCKS_TOTAL).set(num_blocks as f64);
    counter!(PREEMPTIONS).absolute(stats.preemptions);
}
