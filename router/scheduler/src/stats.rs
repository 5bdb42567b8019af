//! Statistics of the scheduler.

/// Gauges and counters for `/metrics`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedulerStats {
    /// Sequences in the queue.
    pub waiting: usize,
    /// Tokens of the sequences in the queue.
    pub waiting_tokens: usize,
    /// Sequences that hold a slot.
    pub running: usize,
    /// Sequences in quarantine, each of which runs alone. They are also in the queue, or hold a
    /// slot.
    pub quarantined: usize,
    /// Blocks that running sequences hold, shared or not.
    pub used_blocks: usize,
    /// Blocks that only the prefix cache holds. They are evicted when a sequence needs blocks.
    pub cached_blocks: usize,
    /// Total number of times that a sequence went back to the queue because no block was free.
    pub preemptions: u64,
    /// Total number of times that a sequence went back to the queue because a sequence of higher
    /// priority needed its place.
    pub priority_preemptions: u64,
    /// Total number of times that a sequence went back to the queue because a sequence of another
    /// tenant needed its slot.
    pub slot_preemptions: u64,
    /// Number of rows of constrained sequences whose masks came too late for their step, so far.
    pub deferred_rows: u64,
    /// Total number of drafts in rows that have been answered.
    pub drafted_tokens: u64,
    /// Total number of drafts that became tokens of their sequences.
    pub accepted_drafts: u64,
    /// Total number of tokens of admitted sequences that were found in the prefix cache.
    pub prefix_hit_tokens: u64,
    /// Total number of tokens of admitted sequences that had to be computed.
    pub prefix_miss_tokens: u64,
    /// Total number of blocks that were evicted from the prefix cache.
    pub prefix_evicted_blocks: u64,
    /// Checkpoints of recurrent states with which sequences can begin.
    pub state_checkpoints: usize,
    /// Blocks that the disk cache holds.
    pub disk_blocks: usize,
    /// Total number of blocks that were read from the disk cache.
    pub disk_read_blocks: u64,
    /// Total number of blocks that were written to the disk cache.
    pub disk_written_blocks: u64,
    /// Total number of reads from the disk cache that failed. Their blocks were computed.
    pub disk_failed_reads: u64,
    /// Total number of writes to the disk cache that failed.
    pub disk_failed_writes: u64,
}
