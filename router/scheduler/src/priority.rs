//! Preemption by priority: a waiting sequence takes the places of running sequences of lower
//! priority.
//!
//! If the first waiting sequence lacks a slot, blocks or a place for its adapter, the last running
//! sequences of the lowest priority go back to the queue for it. If that does not help it, the
//! first one of a higher priority behind it may take their places, within the limit on overtaking:
//! a sequence that has aged may be first in order and yet be of no higher priority than those that
//! run. Three rules bound the number of these preemptions:
//!
//! - A sequence never takes the place of a sequence of the same priority.
//! - It never takes the place of a sequence that is ordered before it. A sequence that has aged
//!   into the order of a higher priority therefore keeps its place against all later arrivals.
//! - No sequence is preempted unless the waiting sequence can be admitted into the same step.

use std::cmp::Reverse;

use super::adapter_places::PlaceClaim;
use super::admission::{AdmissionPass, overtaking_allowance};
use super::frame_budget::FrameBudget;
use super::id::SeqId;
use super::request::Priority;
use super::running::RunningSequence;
use super::sequence::Sequence;
use super::state::Scheduler;

impl Scheduler {
    /// Whether a running sequence has a lower priority than one of the waiting `candidates`, and
    /// priorities have an effect.
    pub(super) fn may_preempt_for(&self, candidates: &[SeqId]) -> bool {
        let waiting = candidates.iter().filter_map(|&id| self.waiting.get(id));
        let Some(highest) = waiting.map(|sequence| sequence.priority).min() else { return false };
        let mut running = self.running.iter();
        self.options.ageing_steps > 0 && running.any(|running| running.sequence.priority > highest)
    }

    /// Preempts running sequences of lower priority if one of the `candidates` needs their slots or
    /// blocks. They are in the order of admission. Returns the waiting sequence for which others
    /// were preempted, if any were.
    pub(super) fn preempt_for_priority(
        &mut self,
        candidates: &[SeqId],
        pass: &AdmissionPass,
        bytes: &FrameBudget,
    ) -> Option<SeqId> {
        if !self.may_preempt_for(candidates) {
            return None;
        }
        let (id, mut leaving) = self.first_that_takes_places(candidates, pass, bytes)?;
        // From the end, so that the other indices stay valid.
        leaving.sort_unstable_by_key(|&index| Reverse(index));
        for index in leaving {
            let sequence = self.vacate(index);
            self.waiting.insert(sequence);
            self.priority_preemptions += 1;
        }
        Some(id)
    }

    /// The first of the `candidates` that can be admitted if others leave, and the indices of those
    /// running sequences; `None` if a candidate before it needs nobody's place. A candidate is
    /// examined if it waits neither for its mask nor for a prefix that is being computed, if it may
    /// overtake those before it, and if none of its priority has been examined.
    fn first_that_takes_places(
        &self,
        candidates: &[SeqId],
        pass: &AdmissionPass,
        bytes: &FrameBudget,
    ) -> Option<(SeqId, Vec<usize>)> {
        let mut allowance = usize::MAX;
        let mut examined: Option<Priority> = None;
        for sequence in candidates.iter().filter_map(|&id| self.waiting.get(id)) {
            if sequence.has_pending() {
                return None;
            }
            let waits = || {
                sequence.awaits_mask()
                    || self.waits_for_prefix(sequence, &self.prefix_of(sequence), &pass.producers)
            };
            let may_overtake = sequence.max_positions() <= allowance;
            if examined.is_none_or(|priority| sequence.priority < priority) && may_overtake && !waits() {
                match self.places_for(sequence, pass.claims.get(sequence.id), bytes) {
                    Some(leaving) if leaving.is_empty() => return None,
                    Some(leaving) => return Some((sequence.id, leaving)),
                    None => examined = Some(sequence.priority),
                }
            }
            allowance = allowance.min(overtaking_allowance(sequence, &self.limits));
        }
        None
    }

    /// The indices of the running sequences that must leave so that the waiting sequence `first`
    /// can be admitted: none, or as few as possible. `None` if it cannot be admitted even then.
    fn places_for(
        &self,
        first: &Sequence,
        claim: Option<PlaceClaim>,
        bytes: &FrameBudget,
    ) -> Option<Vec<usize>> {
        let victims = self.victims_of(first, claim);
        let prefix = self.prefix_of(first);
        let held: usize = victims.iter().map(|&index| self.running[index].table.blocks.len()).sum();
        // The exact check of the blocks takes longer.
        let may_fit = self.cache.blocks_needed(&prefix, first.len()) <= self.cache.available() + held
            && bytes.fits_admission(first.len(), first.sampling_bytes);
        let can_admit =
            |leaving: &[usize]| self.has_place(claim, leaving) && self.can_admit_without(first, leaving);
        if !may_fit || !can_admit(&victims) {
            return None;
        }
        let mut fewest = (0..=victims.len()).map(|count| &victims[..count]);
        fewest.find(|leaving| can_admit(leaving)).map(<[_]>::to_vec)
    }

    /// The indices of the running sequences whose places `first` may take: those that must leave
    /// the place of its adapter first, and then the last sequence of the lowest priority.
    fn victims_of(&self, first: &Sequence, claim: Option<PlaceClaim>) -> Vec<usize> {
        let may_be_taken = |running: &RunningSequence| {
            let sequence = &running.sequence;
            let is_new = running.first_step == self.next_step;
            sequence.priority > first.priority && sequence.id > first.id && !is_new
        };
        let mut victims: Vec<usize> =
            (0..self.running.len()).filter(|&index| may_be_taken(&self.running[index])).collect();
        let order = |&index: &usize| {
            let running = &self.running[index];
            (self.is_in_claimed_place(running, claim), running.sequence.priority, index)
        };
        victims.sort_by_key(|index| Reverse(order(index)));
        victims
    }

    /// Whether `first` can be admitted into this step when the running sequences with the indices
    /// `leaving` have left.
    fn can_admit_without(&self, first: &Sequence, leaving: &[usize]) -> bool {
        let prefills = self.staying(leaving).filter(|running| running.is_prefill());
        let prompts: Vec<usize> = prefills.map(RunningSequence::remaining).collect();
        let has_slot = !self.free_slots.is_empty() || !leaving.is_empty();
        has_slot
            && self.has_prompt_room(&prompts, leaving)
            && self.fits(first, &self.prefix_of(first), &prompts, leaving)
    }
}
