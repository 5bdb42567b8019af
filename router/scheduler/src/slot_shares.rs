//! How tenants share the slots.
//!
//! Long answers of one tenant may hold all slots. A waiting sequence of a tenant that holds less
//! than its share of them takes the slot of the last running sequence of the tenant that holds the
//! most, if that tenant holds more than its share. The share is the number of slots divided by the
//! number of tenants that have sequences.
//!
//! The sequence that leaves goes back to its place in the queue, and continues with the computed
//! blocks that the prefix cache still has. Where no computed blocks are kept, its work would be
//! lost, so nothing is preempted.

use std::collections::HashMap;

use super::admission::{AdmissionPass, overtaking_allowance};
use super::id::SeqId;
use super::request::Tenant;
use super::running::RunningSequence;
use super::sequence::Sequence;
use super::state::Scheduler;

impl Scheduler {
    /// Whether a sequence of a tenant without slots may be admitted.
    pub(super) fn admits_new_tenants(&self) -> bool {
        !self.free_slots.is_empty()
            || self.limits.max_sequences > 1 && self.cache.hashed_block_size().is_some()
    }

    /// Whether a running sequence may have to leave its slot to another tenant.
    pub(super) fn may_preempt_for_slot(&self) -> bool {
        let Some(first) = self.running.first() else { return false };
        self.free_slots.is_empty()
            && self.admits_new_tenants()
            && self.waiting.tenants().any(|tenant| *tenant != first.sequence.tenant)
    }

    /// Preempts a running sequence if one of the `candidates` belongs to a tenant that holds less
    /// than its share of the slots. Returns the waiting sequence that takes the slot.
    pub(super) fn preempt_for_slot(&mut self, candidates: &[SeqId], pass: &AdmissionPass) -> Option<SeqId> {
        if !self.may_preempt_for_slot() {
            return None;
        }
        let mut held: HashMap<&Tenant, usize> = HashMap::new();
        for running in &self.running {
            *held.entry(&running.sequence.tenant).or_default() += 1;
        }
        let idle = self.waiting.tenants().filter(|tenant| !held.contains_key(tenant)).count();
        let share = self.limits.max_sequences / (held.len() + idle).max(1);
        let (largest, count) = held.iter().max_by_key(|(tenant, count)| (**count, **tenant))?;
        if *count <= share {
            return None;
        }
        let waits = |sequence: &Sequence| {
            sequence.has_pending()
                || sequence.awaits_mask()
                || pass.claims.waits(sequence.id)
                || self.waits_for_prefix(sequence, &self.prefix_of(sequence), &pass.producers)
        };
        // A tenant that has received more tokens takes no slot of one that has received fewer.
        let received = self.shares.counter(largest);
        let may_take = |tenant: &Tenant| {
            held.get(tenant).copied().unwrap_or(0) < share && self.shares.counter(tenant) <= received
        };
        // Sequences of one tenant overtake each other as far as they may without a preemption.
        let mut allowances: HashMap<&Tenant, usize> = HashMap::new();
        let first = candidates.iter().filter_map(|&id| self.waiting.get(id)).find(|sequence| {
            let allowance = allowances.entry(&sequence.tenant).or_insert(usize::MAX);
            let may_overtake = sequence.max_positions() <= *allowance;
            *allowance = (*allowance).min(overtaking_allowance(sequence, &self.limits));
            may_overtake && may_take(&sequence.tenant) && !waits(sequence)
        })?;
        let leaving = self.running.iter().rposition(|running| {
            running.sequence.tenant == **largest
                && running.sequence.priority >= first.priority
                && running.first_step != self.next_step
                && running.has_new_token()
        })?;
        let without = [leaving];
        let prompts = self.staying(&without).filter(|running| running.is_prefill());
        let prompts: Vec<usize> = prompts.map(RunningSequence::remaining).collect();
        let has_room = self.has_prompt_room(&prompts, &without) || self.has_prompt_share(&first.tenant);
        // The first sequence of those that ran before this step always progresses.
        let first_of_all = self.running.iter().position(|running| running.first_step != self.next_step);
        if first_of_all == Some(leaving)
            || !has_room
            || !self.fits(first, &self.prefix_of(first), &prompts, &without)
        {
            return None;
        }
        let id = first.id;
        let mut sequence = self.vacate(leaving);
        // Otherwise it would come before all sequences that have not run.
        sequence.gave_slot = true;
        self.waiting.insert(sequence);
        self.slot_preemptions += 1;
        Some(id)
    }
}
