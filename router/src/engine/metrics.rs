//! Metrics of the event loop. They have the names of Text Generation Inference where it has such a
//! metric, and names with `millrace_` otherwise.

use std::time::{Duration, Instant};

use metrics::{
    Counter, Label, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use millrace_proto::{Step, StepOutput};
use millrace_scheduler::{RowFailure, SchedulerLimits, SchedulerStats};

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
/// Counter: sequences sent back to the queue because no KV cache block was free.
const PREEMPTIONS: &str = "millrace_preemptions_total";
/// Counter: sequences sent back to the queue because a sequence of higher priority needed their
/// places.
const PRIORITY_PREEMPTIONS: &str = "millrace_priority_preemptions_total";
/// Counter: sequences sent back to the queue because another tenant held less than its share of the
/// slots.
const SLOT_PREEMPTIONS: &str = "millrace_slot_preemptions_total";
/// Counter: rows whose masks came too late for their step.
const DEFERRED_ROWS: &str = "millrace_deferred_rows_total";
/// vLLM's names.
const DRAFT_TOKENS: &str = "vllm:spec_decode_num_draft_tokens_total";
const ACCEPTED_DRAFTS: &str = "vllm:spec_decode_num_accepted_tokens_total";
/// Gauge: KV cache blocks in use.
const KV_BLOCKS_USED: &str = "millrace_kv_blocks_used";
/// Gauge: KV cache blocks of the pool.
const KV_BLOCKS_TOTAL: &str = "millrace_kv_blocks_total";
/// Counter: microseconds that the shards waited for a step although there was work.
const SHARD_IDLE: &str = "millrace_shard_idle_micros_total";
/// Counter: microseconds that rank 0 spent in collectives with other ranks, including the time to
/// wait for them.
const SHARD_COLLECTIVE: &str = "millrace_shard_collective_micros_total";
/// Counter: groups of shards restarted after a loss.
const RESTARTS: &str = "millrace_shard_restarts_total";
/// Histogram: seconds from the loss of the shards to the first token after it.
const RECOVERY_DURATION: &str = "millrace_recovery_duration";
/// Counter: requests that failed because they were queued for too long.
const QUEUE_TIMEOUTS: &str = "millrace_queue_timeouts_total";
/// Counter by `kind`, `refused` or `not_finite`: requests that failed alone because the shards had
/// no result for them.
const ROW_ERRORS: &str = "millrace_row_errors_total";
/// Counter: requests that failed because the shards were lost while they ran alone.
const BLAMED: &str = "millrace_blamed_requests_total";
/// Gauge: sequences that run alone because they were part of two losses of the shards.
const QUARANTINED: &str = "millrace_quarantined_sequences";
/// Counter: tokens of admitted sequences that were found in the prefix cache.
const PREFIX_HITS: &str = "millrace_prefix_cache_hit_tokens_total";
/// Counter: tokens of admitted sequences that had to be computed.
const PREFIX_MISSES: &str = "millrace_prefix_cache_miss_tokens_total";
/// Counter: blocks evicted from the prefix cache.
const PREFIX_EVICTIONS: &str = "millrace_prefix_cache_evicted_blocks_total";
/// Gauge: blocks that hold computed prefixes.
const PREFIX_BLOCKS: &str = "millrace_prefix_cache_blocks";
/// Gauge: saved recurrent states.
const STATE_CHECKPOINTS: &str = "millrace_state_checkpoints";
/// Gauge: blocks that the disk cache holds.
const DISK_BLOCKS: &str = "millrace_kv_disk_blocks";
/// Counter: tokens whose keys and values were read from the disk cache.
const DISK_READ: &str = "millrace_kv_disk_read_tokens_total";
/// Counter: tokens whose keys and values were written to the disk cache.
const DISK_WRITTEN: &str = "millrace_kv_disk_written_tokens_total";
/// Counter by `kind`, `read` or `write`: copies of blocks from or to the disk cache that failed.
const DISK_FAILED: &str = "millrace_kv_disk_failed_blocks_total";
/// Gauge: tokens of waiting sequences.
const QUEUE_TOKENS: &str = "millrace_queue_tokens";

/// Gauge: tokens that the blocks in use can hold.
const BATCH_CURRENT_MAX_TOKENS: &str = "tgi_batch_current_max_tokens";
/// Gauge: tokens that the pool can hold.
const BATCH_MAX_TOTAL_TOKENS: &str = "tgi_batch_max_total_tokens";
// The inference extension of the Gateway API and llm-d select endpoints by these names.
/// Gauge: requests waiting for their first step.
const VLLM_WAITING: &str = "vllm:num_requests_waiting";
/// Gauge: sequences that run.
const VLLM_RUNNING: &str = "vllm:num_requests_running";
/// Gauge: the share of the KV cache in use, 0 to 1.
const VLLM_KV_USAGE: &str = "vllm:kv_cache_usage_perc";
/// Gauge by `block_size` and `num_gpu_blocks`, always 1.
const VLLM_CACHE_CONFIG: &str = "vllm:cache_config_info";

/// Counter by `key`: requests accepted for a named API key.
const KEY_REQUESTS: &str = "millrace_key_requests_total";
/// Counter by `key` and `limit`: requests refused because a named API key has reached a limit.
const KEY_REFUSED: &str = "millrace_key_refused_total";
/// Counter by `key` and `kind`, `prompt` or `generated`: tokens of a named API key.
const KEY_TOKENS: &str = "millrace_key_tokens_total";

/// The counters of a named API key. Operators choose the names, so their number is bounded.
#[derive(Clone)]
pub(super) struct AccountCounters {
    name: String,
    requests: Counter,
    prompt: Counter,
    generated: Counter,
}

impl std::fmt::Debug for AccountCounters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AccountCounters").field("name", &self.name).finish_non_exhaustive()
    }
}

impl AccountCounters {
    pub(super) fn new(name: &str) -> Self {
        let name = name.to_owned();
        let tokens = |kind| counter!(KEY_TOKENS, "key" => name.clone(), "kind" => kind);
        AccountCounters {
            requests: counter!(KEY_REQUESTS, "key" => name.clone()),
            prompt: tokens("prompt"),
            generated: tokens("generated"),
            name,
        }
    }

    /// Counts an accepted request.
    pub(super) fn accepted(&self) {
        self.requests.increment(1);
    }

    /// Counts a request that a limit refuses.
    pub(super) fn refused(&self, limit: &'static str) {
        counter!(KEY_REFUSED, "key" => self.name.clone(), "limit" => limit).increment(1);
    }

    pub(super) fn prompt_tokens(&self, tokens: usize) {
        self.prompt.increment(tokens as u64);
    }

    pub(super) fn generated_token(&self) {
        self.generated.increment(1);
    }
}

/// Describes the metrics to the installed recorder.
pub(super) fn describe() {
    describe_counter!(KEY_REQUESTS, Unit::Count, "Requests accepted for a named API key");
    describe_counter!(KEY_REFUSED, Unit::Count, "Requests refused by a limit of a named API key");
    describe_counter!(KEY_TOKENS, Unit::Count, "Tokens of a named API key");
    create_series();
    describe_gauge!(VLLM_WAITING, Unit::Count, "Requests waiting for their first step");
    describe_gauge!(VLLM_RUNNING, Unit::Count, "Sequences that run");
    describe_gauge!(VLLM_KV_USAGE, "Share of the KV cache in use, 0 to 1");
    describe_gauge!(VLLM_CACHE_CONFIG, "Block size and number of blocks of the KV cache, as labels");
    describe_gauge!(BATCH_CURRENT_MAX_TOKENS, Unit::Count, "Tokens that the blocks in use can hold");
    describe_gauge!(BATCH_MAX_TOTAL_TOKENS, Unit::Count, "Tokens that the KV cache can hold");
    describe_gauge!(QUEUE_SIZE, Unit::Count, "Requests waiting for their first step");
    describe_gauge!(BATCH_CURRENT_SIZE, Unit::Count, "Sequences that run");
    describe_histogram!(BATCH_NEXT_SIZE, Unit::Count, "Rows of a step");
    describe_counter!(BATCH_INFERENCE_COUNT, Unit::Count, "Steps sent");
    describe_counter!(BATCH_INFERENCE_SUCCESS, Unit::Count, "Steps answered");
    describe_counter!(BATCH_INFERENCE_FAILURE, Unit::Count, "Steps lost with their shards");
    describe_histogram!(BATCH_INFERENCE_DURATION, Unit::Seconds, "From sending a step to its answer");
    describe_histogram!(BATCH_FORWARD_DURATION, Unit::Seconds, "A step's forward pass");
    describe_counter!(STEP_TOKENS, Unit::Count, "Tokens run through the model");
    describe_counter!(
        PREEMPTIONS,
        Unit::Count,
        "Sequences sent back to the queue because no KV cache block was free"
    );
    describe_counter!(DEFERRED_ROWS, Unit::Count, "Rows whose masks came too late for their step");
    describe_counter!(DRAFT_TOKENS, Unit::Count, "Guessed tokens that were verified (--speculate)");
    describe_counter!(ACCEPTED_DRAFTS, Unit::Count, "Guessed tokens that were right");
    describe_counter!(
        PRIORITY_PREEMPTIONS,
        Unit::Count,
        "Sequences sent back to the queue because a sequence of higher priority needed their places"
    );
    describe_counter!(
        SLOT_PREEMPTIONS,
        Unit::Count,
        "Sequences sent back to the queue because another tenant held less than its share of the slots"
    );
    describe_counter!(
        SHARD_IDLE,
        Unit::Microseconds,
        "Time that the shards waited for a step although there was work"
    );
    describe_counter!(SHARD_COLLECTIVE, Unit::Microseconds, "Time of rank 0 in collectives with other ranks");
    describe_counter!(RESTARTS, Unit::Count, "Groups of shards restarted after a loss");
    describe_histogram!(RECOVERY_DURATION, Unit::Seconds, "From the loss of the shards to the first token");
    describe_counter!(QUEUE_TIMEOUTS, Unit::Count, "Requests that were queued for too long");
    describe_counter!(ROW_ERRORS, Unit::Count, "Requests that failed alone, by kind of failure");
    describe_counter!(BLAMED, Unit::Count, "Requests that failed because they caused the loss of the shards");
    describe_gauge!(QUARANTINED, Unit::Count, "Sequences that run alone because the shards were lost twice");
    describe_gauge!(KV_BLOCKS_USED, Unit::Count, "KV cache blocks in use");
    describe_gauge!(KV_BLOCKS_TOTAL, Unit::Count, "KV cache blocks of the pool");
    describe_counter!(PREFIX_HITS, Unit::Count, "Tokens of admitted sequences that were in the prefix cache");
    describe_counter!(PREFIX_MISSES, Unit::Count, "Tokens of admitted sequences that had to be computed");
    describe_counter!(PREFIX_EVICTIONS, Unit::Count, "Blocks evicted from the prefix cache");
    describe_gauge!(PREFIX_BLOCKS, Unit::Count, "Blocks that hold computed prefixes and nothing else");
    describe_gauge!(STATE_CHECKPOINTS, Unit::Count, "Saved recurrent states with which prompts can begin");
    describe_gauge!(DISK_BLOCKS, Unit::Count, "Blocks that the disk cache holds");
    describe_counter!(DISK_READ, Unit::Count, "Tokens of prefixes that were read from the disk cache");
    describe_counter!(DISK_WRITTEN, Unit::Count, "Tokens that were written to the disk cache");
    describe_counter!(DISK_FAILED, Unit::Count, "Blocks that could not be read or written, by kind");
    describe_gauge!(QUEUE_TOKENS, Unit::Count, "Tokens of waiting sequences");
}

/// Creates the series before their first event, so that a rate over them is 0 instead of unknown.
fn create_series() {
    for name in [SHARD_IDLE, SHARD_COLLECTIVE, RESTARTS, QUEUE_TIMEOUTS, BLAMED] {
        counter!(name).increment(0);
    }
    for kind in ["refused", "not_finite"] {
        counter!(ROW_ERRORS, "kind" => kind).increment(0);
    }
    for method in ["prefill", "decode"] {
        for name in [BATCH_INFERENCE_COUNT, BATCH_INFERENCE_SUCCESS, BATCH_INFERENCE_FAILURE, STEP_TOKENS] {
            counter!(name, "method" => method).increment(0);
        }
    }
}

/// The times of a step that the shards report.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepTimes {
    forward_micros: u64,
    idle_micros: u64,
    collective_micros: u64,
}

impl StepTimes {
    pub(super) fn of(output: &StepOutput) -> Self {
        let StepOutput { forward_micros, idle_micros, collective_micros, .. } = *output;
        StepTimes { forward_micros, idle_micros, collective_micros }
    }
}

/// Measures a step in flight.
#[derive(Debug)]
pub(super) struct StepTimer {
    sent: Instant,
    method: &'static str,
    /// Whether idle time of the shards before the step counts: they waited because of the router.
    waited_for: bool,
}

impl StepTimer {
    /// Notes that a step is sent. A step with a chunk of a prompt counts as prefill, and one
    /// without rows, which copies blocks to or from disk, as copy. `waited_for` is false if the
    /// shards were idle because there were no requests.
    pub(super) fn start(step: &Step, waited_for: bool) -> Self {
        let prefill = step.rows.iter().any(|row| row.count > 1);
        let method = match step.rows.is_empty() {
            true => "copy",
            false if prefill => "prefill",
            false => "decode",
        };
        let tokens: u64 = step.rows.iter().map(|row| u64::from(row.count)).sum();
        counter!(BATCH_INFERENCE_COUNT, "method" => method).increment(1);
        counter!(STEP_TOKENS, "method" => method).increment(tokens);
        histogram!(BATCH_NEXT_SIZE).record(step.rows.len() as f64);
        StepTimer { sent: Instant::now(), method, waited_for }
    }

    /// Notes the answer to the step.
    pub(super) fn answered(self, times: StepTimes) {
        let StepTimes { forward_micros, idle_micros, collective_micros } = times;
        let method = self.method;
        counter!(BATCH_INFERENCE_SUCCESS, "method" => method).increment(1);
        histogram!(BATCH_INFERENCE_DURATION, "method" => method).record(self.sent.elapsed());
        histogram!(BATCH_FORWARD_DURATION, "method" => method).record(Duration::from_micros(forward_micros));
        counter!(SHARD_COLLECTIVE).increment(collective_micros);
        if self.waited_for {
            counter!(SHARD_IDLE).increment(idle_micros);
        }
    }

    /// Notes that the step is lost.
    pub(super) fn lost(self) {
        counter!(BATCH_INFERENCE_FAILURE, "method" => self.method).increment(1);
    }
}

/// Counts a new group of shards.
pub(super) fn restarted() {
    counter!(RESTARTS).increment(1);
}

/// Records the time from a loss to the first token after it.
pub(super) fn recovered(time: Duration) {
    histogram!(RECOVERY_DURATION).record(time);
}

/// Counts a request that was queued for too long.
pub(super) fn queue_timeout() {
    counter!(QUEUE_TIMEOUTS).increment(1);
}

/// Counts a request for which the shards had no result.
pub(super) fn row_failed(failure: &RowFailure) {
    let kind = match failure {
        RowFailure::Refused(_) => "refused",
        RowFailure::NotFinite(_) => "not_finite",
    };
    counter!(ROW_ERRORS, "kind" => kind).increment(1);
}

/// Counts a request that caused the loss of the shards.
pub(super) fn blamed() {
    counter!(BLAMED).increment(1);
}

/// The gauges and totals of a group of shards. If there are several groups, they have the label
/// `group`.
#[derive(Debug)]
pub(super) struct GroupMetrics {
    labels: Vec<Label>,
}

impl GroupMetrics {
    /// The metrics of the group with this number from 0, or of the only one.
    pub(super) fn new(group: Option<usize>) -> Self {
        GroupMetrics {
            labels: group.map(|group| Label::new("group", group.to_string())).into_iter().collect(),
        }
    }

    /// The labels of the group, and these.
    fn with(&self, further: &[(&'static str, String)]) -> Vec<Label> {
        let further = further.iter().map(|(name, value)| Label::new(*name, value.clone()));
        self.labels.iter().cloned().chain(further).collect()
    }

    /// Sets the gauges.
    pub(super) fn show(&self, stats: &SchedulerStats, limits: &SchedulerLimits) {
        let SchedulerLimits { block_size, num_blocks, .. } = *limits;
        gauge!(VLLM_WAITING, self.labels.clone()).set(stats.waiting as f64);
        gauge!(VLLM_RUNNING, self.labels.clone()).set(stats.running as f64);
        gauge!(VLLM_KV_USAGE, self.labels.clone()).set(stats.used_blocks as f64 / num_blocks as f64);
        gauge!(
            VLLM_CACHE_CONFIG,
            self.with(&[("block_size", block_size.to_string()), ("num_gpu_blocks", num_blocks.to_string())])
        )
        .set(1.0);
        gauge!(BATCH_CURRENT_MAX_TOKENS, self.labels.clone()).set((stats.used_blocks * block_size) as f64);
        gauge!(BATCH_MAX_TOTAL_TOKENS, self.labels.clone()).set((num_blocks * block_size) as f64);
        gauge!(QUEUE_SIZE, self.labels.clone()).set(stats.waiting as f64);
        gauge!(BATCH_CURRENT_SIZE, self.labels.clone()).set(stats.running as f64);
        gauge!(QUARANTINED, self.labels.clone()).set(stats.quarantined as f64);
        gauge!(KV_BLOCKS_USED, self.labels.clone()).set(stats.used_blocks as f64);
        gauge!(KV_BLOCKS_TOTAL, self.labels.clone()).set(num_blocks as f64);
        counter!(PREEMPTIONS, self.labels.clone()).absolute(stats.preemptions);
        counter!(PRIORITY_PREEMPTIONS, self.labels.clone()).absolute(stats.priority_preemptions);
        counter!(SLOT_PREEMPTIONS, self.labels.clone()).absolute(stats.slot_preemptions);
        counter!(DEFERRED_ROWS, self.labels.clone()).absolute(stats.deferred_rows);
        counter!(DRAFT_TOKENS, self.labels.clone()).absolute(stats.drafted_tokens);
        counter!(ACCEPTED_DRAFTS, self.labels.clone()).absolute(stats.accepted_drafts);
        counter!(PREFIX_HITS, self.labels.clone()).absolute(stats.prefix_hit_tokens);
        counter!(PREFIX_MISSES, self.labels.clone()).absolute(stats.prefix_miss_tokens);
        counter!(PREFIX_EVICTIONS, self.labels.clone()).absolute(stats.prefix_evicted_blocks);
        gauge!(PREFIX_BLOCKS, self.labels.clone()).set(stats.cached_blocks as f64);
        gauge!(STATE_CHECKPOINTS, self.labels.clone()).set(stats.state_checkpoints as f64);
        gauge!(DISK_BLOCKS, self.labels.clone()).set(stats.disk_blocks as f64);
        counter!(DISK_READ, self.labels.clone()).absolute(stats.disk_read_blocks * block_size as u64);
        counter!(DISK_WRITTEN, self.labels.clone()).absolute(stats.disk_written_blocks * block_size as u64);
        counter!(DISK_FAILED, self.with(&[("kind", "read".to_owned())])).absolute(stats.disk_failed_reads);
        counter!(DISK_FAILED, self.with(&[("kind", "write".to_owned())])).absolute(stats.disk_failed_writes);
        gauge!(QUEUE_TOKENS, self.labels.clone()).set(stats.waiting_tokens as f64);
    }
}
