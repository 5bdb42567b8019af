//! The signal that readers of requests have left.

use std::sync::Arc;

use tokio::sync::Notify;

/// Wakes the event loop when the reader of a request has left. Clones share one signal.
///
/// Signals that the event loop has not yet received are merged into one, so their number is
/// bounded. The event loop looks for the requests without a reader itself.
#[derive(Debug, Clone, Default)]
pub(super) struct Departures(Arc<Notify>);

impl Departures {
    /// Notes that a reader has left. Its channel is closed already.
    pub(super) fn signal(&self) {
        self.0.notify_one();
    }

    /// Waits until a reader has left since the last call returned. Cancel safe.
    pub(super) async fn next(&self) {
        self.0.notified().await;
    }
}
