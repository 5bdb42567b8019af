//! Names of what `/metrics` reports. Text Generation Inference's names where it has one, `millrace_` where it has not.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

// ---- the engine

/// Gauge: requests waiting for their first step.
pub const QUEUE_SIZE: &str = "tgi_queue_size";
/// Gauge: sequences that run.
pub const BATCH_CURRENT_SIZE: &str = "tgi_batch_current_size";
/// Histogram: rows of a step.
pub const BATCH_NEXT_SIZE: &str = "tgi_batch_next_size";
/// Counter by `method`: steps sent.
pub const BATCH_INFERENCE_COUNT: &str = "tgi_batch_inference_count";
/// Counter by `method`: steps answered.
pub const BATCH_INFERENCE_SUCCESS: &str = "tgi_batch_inference_success";
/// Counter by `method`: steps lost with their shards.
pub const BATCH_INFERENCE_FAILURE: &str = "tgi_batch_inference_failure";
/// Histogram by `method`: seconds from sending a step to its answer.
pub const BATCH_INFERENCE_DURATION: &str = "tgi_batch_inference_duration";
/// Histogram by `method`: seconds of a step's forward pass on the shards.
pub const BATCH_FORWARD_DURATION: &str = "tgi_batch_forward_duration";
/// Counter: tokens run through the model, by `method`.
pub const STEP_TOKENS: &str = "millrace_step_tokens_total";
/// Counter: sequences sent back to the queue for want of cache blocks.
pub const PREEMPTIONS: &str = "millrace_preemptions_total";
/// Gauge: KV cache blocks in use.
pub const KV_BLOCKS_USED: &str = "millrace_kv_blocks_used";
/// Gauge: KV cache blocks of the pool.
pub const KV_BLOCKS_TOTAL: &str = "millrace_kv_blocks_total";

/// Describes the engine's metrics to the installed recorder.
pub fn describe_engine() {
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
