//! How a running group fails.

use std::time::Duration;

use crate::engine::group::GroupEvent;

/// Why a running group must be replaced.
#[derive(Debug, thiserror::Error)]
pub(in crate::engine) enum GroupFailure {
    /// The rank has ended, or has announced its end.
    #[error("shard {0} is lost")]
    Dead(usize, GroupEvent),
    /// Rank 0 sent an answer that does not match its step.
    #[error("shard 0 sent {0}")]
    MalformedAnswer(String),
    /// The rank sent a message that is not an answer.
    #[error("shard {0} sent a message that has no place while serving")]
    UnexpectedMessage(usize),
    /// A step has not been answered in this time. `fixed` tells whether the operator has set it.
    #[error("a step has taken more than {:.1} s ({})", .after.as_secs_f64(), deadline_source(*.fixed))]
    StepTimeout { after: Duration, fixed: bool },
    /// The rank has not answered pings for this time.
    #[error("shard {rank} has not answered for {} s (--heartbeat-timeout)", .after.as_secs_f64())]
    HeartbeatTimeout { rank: usize, after: Duration },
}

/// Explains where the deadline of a step comes from.
fn deadline_source(is_fixed: bool) -> &'static str {
    match is_fixed {
        true => "--step-timeout",
        false => "many times the predicted time; --step-timeout sets a fixed time",
    }
}
