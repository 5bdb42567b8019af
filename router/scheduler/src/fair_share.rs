//! Fair shares: how many tokens each tenant has received.
//!
//! This is the Virtual Token Counter of Sheng et al., "Fairness in Serving Large Language Models"
//! (OSDI 2024), with equal weights for computed prompt tokens and generated tokens. The next
//! sequence to be admitted is that of the waiting tenant with the smallest counter.
//!
//! A tenant that was idle starts at the floor, so nobody saves up a share. In the paper, the floor
//! is the smallest counter of the waiting tenants. Then a row of ever new tenants, each of which
//! starts there, would keep all others waiting. Here the floor is the virtual time of weighted fair
//! queueing (Demers, Keshav and Shenker, SIGCOMM 1989): it rises by the tokens that all tenants
//! receive, divided by the number of tenants that compete for them.
//!
//! A tenant without a counter stands at the floor, so the counters of idle tenants are kept only
//! above it. The lead of a tenant is bounded, so a tenant that received tokens by its priority does
//! not wait without an end afterwards.

use std::collections::HashMap;
use std::hash::Hash;

/// Maximum number of counters. Beyond it the tenant with the smallest counter is forgotten.
pub(super) const MAX_COUNTERS: usize = 4096;

/// The tokens that each tenant has received. The adapters of one tenant share in the same way, with
/// adapters in the place of tenants.
#[derive(Debug)]
pub(super) struct FairShares<T> {
    /// The counter of every tenant that is not in `counters`.
    floor: u64,
    /// Tokens by which the floor has not yet risen, because they are fewer than the tenants.
    remainder: u64,
    /// The smallest counter of the waiting tenants when a sequence last entered or left the queue.
    smallest: u64,
    /// The counters of all waiting tenants, and of others above the floor.
    counters: HashMap<T, u64>,
}

impl<T> Default for FairShares<T> {
    fn default() -> Self {
        FairShares { floor: 0, remainder: 0, smallest: 0, counters: HashMap::new() }
    }
}

impl<T: Clone + Eq + Hash> FairShares<T> {
    /// The counter of a tenant.
    pub(super) fn counter(&self, tenant: &T) -> u64 {
        self.counters.get(tenant).copied().unwrap_or(self.floor)
    }

    /// Notes that a sequence of a tenant is about to enter the queue. A tenant without other
    /// sequences there starts at the floor, but not behind all that wait.
    pub(super) fn enter<V>(&mut self, tenant: &T, waiting: &HashMap<T, V>) {
        self.settle(waiting);
        if !waiting.contains_key(tenant) {
            let largest = waiting.keys().map(|other| self.counter(other)).max();
            let start = self.floor.min(largest.unwrap_or(u64::MAX));
            self.set(tenant, self.counters.get(tenant).map_or(start, |&counter| counter.max(start)));
        }
    }

    /// Raises the floor to the smallest counter of the waiting tenants at least, and forgets the
    /// counters that are not needed.
    pub(super) fn settle<V>(&mut self, waiting: &HashMap<T, V>) {
        let smallest = waiting.keys().map(|tenant| self.counter(tenant)).min();
        self.smallest = smallest.unwrap_or(self.floor);
        self.floor = self.floor.max(self.smallest);
        let floor = self.floor;
        self.counters.retain(|tenant, counter| *counter > floor || waiting.contains_key(tenant));
    }

    /// Adds tokens to the counter of a tenant, which then leads by at most `max_lead`.
    pub(super) fn charge<V>(&mut self, tenant: &T, tokens: usize, max_lead: u64, waiting: &HashMap<T, V>) {
        let counter = self.counter(tenant);
        let most = counter.max(self.smallest.saturating_add(max_lead));
        let tokens = (tokens as u64).min(most - counter);
        self.set(tenant, counter + tokens);
        let tenants = waiting.len() + usize::from(!waiting.contains_key(tenant));
        self.remainder += tokens;
        self.floor += self.remainder / tenants as u64;
        self.remainder %= tenants as u64;
    }

    fn set(&mut self, tenant: &T, counter: u64) {
        if let Some(known) = self.counters.get_mut(tenant) {
            *known = counter;
            return;
        }
        if self.counters.len() >= MAX_COUNTERS {
            let smallest = self.counters.iter().min_by_key(|(_, counter)| **counter);
            if let Some(tenant) = smallest.map(|(tenant, _)| tenant.clone()) {
                self.counters.remove(&tenant);
            }
        }
        self.counters.insert(tenant.clone(), counter);
    }

    /// Number of tenants with a counter.
    #[cfg(test)]
    pub(super) fn known(&self) -> usize {
        self.counters.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tenant;

    #[test]
    fn the_number_of_counters_is_bounded() {
        let mut shares = FairShares::default();
        let tenant = |i: usize| Tenant::named(i.to_string());
        for i in 0..MAX_COUNTERS + 10 {
            shares.set(&tenant(i), 100 + i as u64);
        }
        assert_eq!(shares.known(), MAX_COUNTERS);
        // The smallest counters are forgotten.
        assert_eq!(shares.counter(&tenant(9)), 0);
        assert_eq!(shares.counter(&tenant(10)), 110);
    }
}
