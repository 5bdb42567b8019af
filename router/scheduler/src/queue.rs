//! The queue of waiting sequences, in the order of their ids.

use std::collections::{BTreeMap, HashMap};

use super::id::{AdapterId, SeqId};
use super::request::Tenant;
use super::sequence::Sequence;

#[derive(Debug, Default)]
pub(super) struct WaitingQueue {
    /// A preempted sequence keeps its id, and so its place.
    sequences: BTreeMap<SeqId, Sequence>,
    tokens: usize,
    /// Number of sequences of each tenant that has any, by their adapters.
    tenants: HashMap<Tenant, AdapterCounts>,
}

/// Number of sequences with each adapter, and without one.
pub(super) type AdapterCounts = HashMap<Option<AdapterId>, usize>;

impl WaitingQueue {
    pub(super) fn insert(&mut self, sequence: Sequence) {
        self.tokens += sequence.len();
        let adapters = self.tenants.entry(sequence.tenant.clone()).or_default();
        *adapters.entry(sequence.adapter).or_default() += 1;
        self.sequences.insert(sequence.id, sequence);
    }

    pub(super) fn remove(&mut self, id: SeqId) -> Option<Sequence> {
        let sequence = self.sequences.remove(&id)?;
        self.tokens -= sequence.len();
        if let Some(adapters) = self.tenants.get_mut(&sequence.tenant) {
            if let Some(count) = adapters.get_mut(&sequence.adapter) {
                *count -= 1;
            }
            adapters.retain(|_, count| *count > 0);
            if adapters.is_empty() {
                self.tenants.remove(&sequence.tenant);
            }
        }
        Some(sequence)
    }

    pub(super) fn get(&self, id: SeqId) -> Option<&Sequence> {
        self.sequences.get(&id)
    }

    /// Changes a sequence in place. `change` may change its length, but not its id,
    /// its tenant or its adapter.
    pub(super) fn update<T>(&mut self, id: SeqId, change: impl FnOnce(&mut Sequence) -> T) -> Option<T> {
        let sequence = self.sequences.get_mut(&id)?;
        let before = sequence.len();
        let result = change(sequence);
        self.tokens = self.tokens - before + sequence.len();
        Some(result)
    }

    /// Iterates over the tenants that have a sequence in the queue.
    pub(super) fn tenants(&self) -> impl ExactSizeIterator<Item = &Tenant> {
        self.tenants.keys()
    }

    /// Number of sequences of each tenant in the queue, by their adapters.
    pub(super) fn by_tenant(&self) -> &HashMap<Tenant, AdapterCounts> {
        &self.tenants
    }

    /// Calls `use_counts` with the number of sequences of a tenant in the queue, by their adapters.
    pub(super) fn with_adapters_of(&self, tenant: &Tenant, use_counts: impl FnOnce(&AdapterCounts)) {
        match self.tenants.get(tenant) {
            Some(counts) => use_counts(counts),
            None => use_counts(&AdapterCounts::new()),
        }
    }

    /// Whether sequences of several tenants, or with several adapters, are in the queue.
    pub(super) fn is_shared(&self) -> bool {
        self.tenants.len() > 1 || self.tenants.values().any(|adapters| adapters.len() > 1)
    }

    /// Whether a tenant has a sequence in the queue.
    pub(super) fn has_tenant(&self, tenant: &Tenant) -> bool {
        self.tenants.contains_key(tenant)
    }

    /// Iterates over the sequences in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.sequences.values()
    }

    /// Removes a sequence and charges its work to the sequences that it overtakes.
    pub(super) fn admit(&mut self, id: SeqId, overtaken: &[SeqId]) -> Option<Sequence> {
        self.overtake(id, overtaken);
        let mut admitted = self.remove(id)?;
        admitted.overtaken = 0;
        (admitted.has_run, admitted.gave_slot, admitted.restored) = (true, false, false);
        Some(admitted)
    }

    /// Charges the work of a sequence to the sequences that it overtakes.
    pub(super) fn overtake(&mut self, id: SeqId, overtaken: &[SeqId]) {
        let work = self.sequences.get(&id).map_or(0, Sequence::max_positions);
        for passed in overtaken {
            if let Some(sequence) = self.sequences.get_mut(passed) {
                sequence.overtaken += work;
            }
        }
    }

    /// Removes all sequences.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Sequence> + use<> {
        std::mem::take(self).sequences.into_values()
    }

    pub(super) fn len(&self) -> usize {
        self.sequences.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    /// Number of tokens of all sequences. So many tokens must be run before each sequence has its
    /// next token, if nothing is cached.
    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }
}
