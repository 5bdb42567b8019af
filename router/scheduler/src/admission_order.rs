//! The order in which the sequences of several tenants and adapters leave the queue, and what their
//! tenants are charged.

use std::collections::HashMap;

use super::id::{AdapterId, SeqId};
use super::request::Tenant;
use super::sequence::Sequence;
use super::state::Scheduler;

/// Maximum lead of a tenant over the smallest counter of the waiting tenants, in sizes of the KV
/// cache. The paper that [`fair_share`](super::fair_share) names proves that two tenants that both
/// keep having sequences in the queue are never further apart.
const MAX_LEAD: u64 = 2;

impl Scheduler {
    /// Charges tokens to the tenant of a sequence, if the sequence has not ended.
    pub(super) fn charge(&mut self, id: SeqId, tokens: usize) {
        let max_lead = MAX_LEAD * (self.limits.num_blocks * self.limits.block_size) as u64;
        let position = self.position(id);
        let Scheduler { running, waiting, shares, .. } = self;
        let sequence = match position {
            Some(index) => Some(&running[index].sequence),
            None => waiting.get(id),
        };
        if let Some(sequence) = sequence {
            shares.charge(&sequence.tenant, sequence.adapter, tokens, max_lead, waiting);
        }
    }

    /// The first `count` waiting sequences in the order of admission.
    ///
    /// With one tenant and one adapter this is the order of the ids. With several tenants,
    /// sequences of the same priority that follow each other in that order are ordered by the
    /// counters of their tenants, and the sequences of one tenant by the counters of their
    /// adapters. A later sequence is ordered as if the tokens of the earlier ones had been charged.
    /// Sequences that have run before come first, so that no stream waits for new requests.
    pub(super) fn admission_order(&self, count: usize) -> Vec<SeqId> {
        let mut waiting = self.waiting.iter().peekable();
        if !self.waiting.is_shared() {
            return waiting.take(count).map(|sequence| sequence.id).collect();
        }
        let mut order = Vec::with_capacity(count);
        while order.len() < count {
            let Some(priority) = waiting.peek().map(|first| first.priority) else { break };
            let mut fresh = Vec::new();
            while let Some(sequence) = waiting.next_if(|next| next.priority == priority) {
                match sequence.has_run && !sequence.gave_slot {
                    true => order.push(sequence.id),
                    false => fresh.push(sequence),
                }
            }
            self.sort_by_adapter(&mut fresh);
            let mut next: HashMap<&Tenant, u64> = HashMap::new();
            let mut starts: Vec<(u64, SeqId)> = Vec::with_capacity(fresh.len());
            for sequence in fresh {
                let tenant = &sequence.tenant;
                let counter = next.entry(tenant).or_insert_with(|| self.shares.counter(tenant));
                starts.push((*counter, sequence.id));
                *counter += sequence.len() as u64;
            }
            starts.sort_unstable();
            order.extend(starts.into_iter().map(|(_, id)| id));
        }
        order.truncate(count);
        order
    }

    /// Sorts sequences, which are in the order of their ids, so that those of each tenant are in
    /// the order of the counters of their adapters.
    fn sort_by_adapter(&self, sequences: &mut [&Sequence]) {
        let mut next: HashMap<(&Tenant, Option<AdapterId>), u64> = HashMap::new();
        let mut starts: HashMap<SeqId, u64> = HashMap::new();
        for sequence in &*sequences {
            let Some(counter) = self.shares.adapter_counter(sequence) else { continue };
            let counter = next.entry((&sequence.tenant, sequence.adapter)).or_insert(counter);
            starts.insert(sequence.id, *counter);
            *counter += sequence.len() as u64;
        }
        if !starts.is_empty() {
            // The sort is stable, and tenants without adapters keep their order.
            sequences.sort_by_key(|sequence| starts.get(&sequence.id).copied().unwrap_or_default());
        }
    }
}
