//! Bounds on concurrent encoding.

use std::sync::Arc;

use tokio::sync::Semaphore;

/// Semaphores for the three kinds of encoding work.
#[derive(Debug)]
pub(super) struct EncodeLanes {
    /// Bounds the short texts that are encoded at the same time.
    pub(super) short: Arc<Semaphore>,
    /// Bounds the chunks of long texts that are encoded at the same time.
    pub(super) long: Arc<Semaphore>,
    /// Allows one large chunk at a time. A chunk is large if the text has no split points in it.
    pub(super) large: Arc<Semaphore>,
}

impl EncodeLanes {
    pub(super) fn new(workers: usize) -> Self {
        let lane = |places: usize| Arc::new(Semaphore::new(places.clamp(1, Semaphore::MAX_PERMITS)));
        EncodeLanes { short: lane(workers), long: lane(workers), large: lane(1) }
    }
}
