//! The signal that readers of requests have left.

use std::sync::Arc;

use tokio::sync::Notify;

/// Wakes the event loops when the reader of a request has left, or a group of shards has become
/// ready. Clones share one signal for each event loop. All of them are woken, because a request may
/// have moved.
///
/// Signals that an event loop has not yet received are merged into one, so their number is bounded.
/// The event loop looks for what has changed itself.
#[derive(Debug, Clone)]
pub(super) struct Departures(Arc<[Notify]>);

impl Departures {
    /// The signals of so many event loops.
    pub(super) fn new(groups: usize) -> Self {
        Departures((0..groups).map(|_| Notify::new()).collect())
    }

    /// Notes that a reader has left. Its channel is closed already.
    pub(super) fn signal(&self) {
        self.0.iter().for_each(Notify::notify_one);
    }

    /// Waits until the event loop of this group has been signalled since the last call returned.
    /// Cancel safe.
    pub(super) async fn next(&self, group: usize) {
        self.0[group].notified().await;
    }
}
