//! Aborting a group from any thread.

use std::sync::Arc;

/// A handle that ends a group from any thread. See [`HostCollective::aborter`].
#[derive(Clone)]
pub struct Aborter(pub(super) Arc<dyn Abort>);

impl Aborter {
    /// Creates a handle that calls `abort`.
    pub(crate) fn of(abort: impl Fn() + Send + Sync + 'static) -> Aborter {
        Aborter(Arc::new(abort))
    }

    /// Ends all current and future waits of all ranks with [`CollectiveError::Aborted`]. A second
    /// call does nothing.
    pub fn abort(&self) {
        self.0.abort();
    }
}

/// The action that aborts a group over one transport.
pub(super) trait Abort: Send + Sync {
    fn abort(&self);
}

impl<F: Fn() + Send + Sync> Abort for F {
    fn abort(&self) {
        self();
    }
}
