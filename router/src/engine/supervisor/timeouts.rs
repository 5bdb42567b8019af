//! Timeouts of the shards.

use std::time::Duration;

/// Maximum times for which a shard may be silent.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct ShardTimeouts {
    /// While a group starts.
    pub(in crate::engine) startup: Duration,
    /// Between a ping and its answer.
    pub(in crate::engine) heartbeat: Duration,
    /// While a step is computed. Without a value it is derived from the steps before.
    pub(in crate::engine) step: Option<Duration>,
}
