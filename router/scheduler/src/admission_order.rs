//! The order in which the sequences of several tenants leave the queue, and what their tenants are
//! charged.

use std::collections::HashMap;

use super::id::SeqId;
use super::request::Tenant;
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
            shares.charge(&sequence.tenant, tokens, max_lead, waiting);
        }
    }

    /// The first `count` waiting sequences in the order of admission.
    ///
    /// With one tenant this is the order of the ids. With several tenants, sequences of the same
    /// priority that follow each other in that order are ordered by the counters of their tenants.
    /// A later sequence of a tenant is ordered as if the tokens of its earlier ones had been
    /// charged. Sequences that have run before come first, so that no stream waits for new
    /// requests.
    pub(super) fn admission_order(&self, count: usize) -> Vec<SeqId> {
        let mut waiting = self.waiting.iter().peekable();
        if self.waiting.tenants().len() < 2 {
            return waiting.take(count).map(|sequence| sequence.id).collect();
        }
        let mut order = Vec::with_capacity(count);
        while order.len() < count {
            let Some(priority) = waiting.peek().map(|first| first.priority) else { break };
            let mut starts: HashMap<&Tenant, u64> = HashMap::new();
            let mut group = Vec::new();
            while let Some(sequence) = waiting.next_if(|next| next.priority == priority) {
                let start = match sequence.has_run && !sequence.gave_slot {
                    true => None,
                    false => {
                        let tenant = &sequence.tenant;
                        let next = starts.entry(tenant).or_insert_with(|| self.shares.counter(tenant));
                        let start = *next;
                        *next += sequence.len() as u64;
                        Some(start)
                    }
                };
                group.push((start, sequence.id));
            }
            // `None` is less than every start.
            group.sort_unstable();
            order.extend(group.into_iter().map(|(_, id)| id));
        }
        order.truncate(count);
        order
    }
}
