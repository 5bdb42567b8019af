//! The state of the engine.

use std::sync::Arc;

use millrace_proto::Ready;

/// The state of the engine.
#[derive(Debug, Clone, PartialEq)]
pub enum EngineState {
    /// The shards are starting.
    Loading {
        /// The phase of loading, as text.
        phase: String,
        /// Bytes read so far.
        done: u64,
        /// Bytes to read.
        total: u64,
    },
    /// Requests are served.
    Ready(Arc<Ready>),
    /// The shards were lost and new ones are starting. Requests are accepted and wait; the model is
    /// the same.
    Recovering(Arc<Ready>),
    /// Running requests continue to their end, and no new ones are accepted.
    Draining,
    /// The engine has ended; the text gives the reason.
    Failed(String),
}
