//! Runs the work of a long request in a turn of its tenant.

use futures::FutureExt;
use futures::future::BoxFuture;

use super::context::RequestContext;
use super::params::BYTES_PER_TOKEN;
use super::setup::Service;
use crate::turns::Turn;

/// Maximum number of bytes that are read or written without a turn. Such work takes less time than
/// handing it over.
pub(crate) const MAX_INLINE_BYTES: usize = 32 << 10;

impl Service {
    /// Runs `work`, whose time grows with the body of the current request. If the body is long, the
    /// work waits for a turn of the tenant and does not delay other tasks.
    pub(crate) async fn in_turn<T>(&self, work: impl FnOnce() -> T) -> T {
        let bytes = RequestContext::current().map_or(0, |context| context.body_bytes());
        self.in_turn_for(bytes, work).await
    }

    /// Runs `work`, whose time grows with this number of bytes, like [`Service::in_turn`].
    pub(crate) async fn in_turn_for<T>(&self, bytes: usize, work: impl FnOnce() -> T) -> T {
        if bytes <= MAX_INLINE_BYTES {
            return work();
        }
        self.0.turns.run(RequestContext::current_tenant(), work).await
    }

    /// Returns a future that waits for a turn of the current tenant.
    pub(crate) fn turn(&self) -> BoxFuture<'static, Turn> {
        let (turns, tenant) = (self.0.turns.clone(), RequestContext::current_tenant());
        async move { turns.take(tenant).await }.boxed()
    }

    /// Charges the account of the current caller for a body that was refused because of its form. A
    /// short one costs too little to count.
    pub(crate) fn charge_refused_body() {
        let Some(context) = RequestContext::current() else { return };
        if let Some(account) = context.account().filter(|_| context.body_bytes() > MAX_INLINE_BYTES) {
            account.charge_refused(context.body_bytes() / BYTES_PER_TOKEN);
        }
    }
}
