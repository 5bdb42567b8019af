//! The shares of tenants, and the shares of the adapters of each tenant.
//!
//! Tenants share first. The part of a tenant is shared by its adapters, of which the model without
//! an adapter is one. So a client gets no larger part by naming several adapters, and on a server
//! without API keys, which has one tenant, adapters share as tenants do.

use std::collections::HashMap;

use super::fair_share::{FairShares, MAX_COUNTERS};
use super::id::AdapterId;
use super::queue::WaitingQueue;
use super::request::Tenant;
use super::sequence::Sequence;

/// The tokens that each tenant, and each adapter of a tenant, has received.
#[derive(Debug, Default)]
pub(super) struct Shares {
    tenants: FairShares<Tenant>,
    /// The shares of the tenants that have named an adapter.
    adapters: HashMap<Tenant, FairShares<Option<AdapterId>>>,
}

impl Shares {
    /// The counter of a tenant.
    pub(super) fn counter(&self, tenant: &Tenant) -> u64 {
        self.tenants.counter(tenant)
    }

    /// The counter of a sequence's adapter among those of its tenant. `None` if the tenant has
    /// named no adapter.
    pub(super) fn adapter_counter(&self, sequence: &Sequence) -> Option<u64> {
        Some(self.adapters.get(&sequence.tenant)?.counter(&sequence.adapter))
    }

    /// Notes that a sequence is about to enter the queue.
    pub(super) fn enter(&mut self, sequence: &Sequence, queue: &WaitingQueue) {
        let Sequence { tenant, adapter, .. } = sequence;
        self.tenants.enter(tenant, queue.by_tenant());
        if adapter.is_some() && !self.adapters.contains_key(tenant) {
            if self.adapters.len() >= MAX_COUNTERS {
                self.adapters.retain(|known, _| queue.has_tenant(known));
            }
            if self.adapters.len() < MAX_COUNTERS {
                self.adapters.insert(tenant.clone(), FairShares::default());
            }
        }
        if let Some(shares) = self.adapters.get_mut(tenant) {
            queue.with_adapters_of(tenant, |waiting| shares.enter(adapter, waiting));
        }
    }

    /// Notes that a sequence is about to leave the queue.
    pub(super) fn settle(&mut self, tenant: &Tenant, queue: &WaitingQueue) {
        self.tenants.settle(queue.by_tenant());
        if let Some(shares) = self.adapters.get_mut(tenant) {
            queue.with_adapters_of(tenant, |waiting| shares.settle(waiting));
        }
    }

    /// Adds tokens to the counters of the tenant and the adapter of a sequence, which then lead by
    /// at most `max_lead`.
    pub(super) fn charge(
        &mut self,
        tenant: &Tenant,
        adapter: Option<AdapterId>,
        tokens: usize,
        max_lead: u64,
        queue: &WaitingQueue,
    ) {
        self.tenants.charge(tenant, tokens, max_lead, queue.by_tenant());
        if let Some(shares) = self.adapters.get_mut(tenant) {
            queue.with_adapters_of(tenant, |waiting| shares.charge(&adapter, tokens, max_lead, waiting));
        }
    }

    /// Forgets everything. It is called when no sequence is waiting or running.
    pub(super) fn reset(&mut self) {
        *self = Shares::default();
    }

    /// Number of tenants with a counter.
    #[cfg(test)]
    pub(super) fn known(&self) -> usize {
        self.tenants.known()
    }
}
