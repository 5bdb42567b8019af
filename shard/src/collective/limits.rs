//! The limits of a group.

use std::time::Duration;

/// The most ranks a group can have.
pub const MAX_WORLD_SIZE: usize = 64;

/// The longest times that ranks wait for each other. A duration converts to the same time for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// Until all ranks have joined. Some may still be loading.
    pub forming: Duration,
    /// In the middle of a call, until another rank makes the same call.
    pub call: Duration,
}

impl From<Duration> for Deadlines {
    fn from(both: Duration) -> Self {
        Deadlines { forming: both, call: both }
    }
}
