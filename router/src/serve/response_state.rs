//! The part of a response that the connection's activity checks see.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;

/// Whether the client of a response reads it.
#[derive(Debug)]
pub(super) struct ResponseState {
    /// `None` after the end, or after the client has stopped reading. Dropping the body cancels the
    /// request.
    pub(super) body: Mutex<Option<Body>>,
    /// The time since which the library has not asked for data, in the activity's milliseconds; 0
    /// while it waits for the body.
    pub(super) untaken_since: AtomicU64,
    pub(super) is_stalled: AtomicBool,
}

impl ResponseState {
    /// Drops the body if its client has read nothing for `limit`. Returns whether this has happened
    /// now or before.
    pub(super) fn end_if_stalled(&self, now: u64, limit: Duration) -> bool {
        let since = self.untaken_since.load(Ordering::Acquire);
        let is_over = since != 0 && u128::from(now.saturating_sub(since)) > limit.as_millis();
        // The lock is held while the body is being read.
        if is_over && let Ok(mut body) = self.body.try_lock() {
            self.is_stalled.store(true, Ordering::Release);
            drop(body.take());
        }
        self.is_stalled.load(Ordering::Acquire)
    }
}
