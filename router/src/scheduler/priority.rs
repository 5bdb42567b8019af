//! Preemption by priority: a waiting sequence takes the places of running sequences of lower
//! priority.
//!
//! If the first waiting sequence lacks a slot or blocks, the last running sequences of the lowest
//! priority go back to the queue for it. Three rules bound the number of these preemptions:
//!
//! - A sequence never takes the place of a sequence of the same priority.
//! - It never takes the place of a sequence that is ordered before it. A sequence that has aged
//!   into the order of a higher priority therefore keeps its place against all later arrivals.
//! - No sequence is preempted unless the waiting sequence can be admitted into the same step.

use std::cmp::Reverse;

use super::admission::overtaking_allowance;
use super::frame_budget::FrameBudget;
use super::id::SeqId;
use super::prefix_wait::Producer;
use super::prompt_shares;
use super::running::RunningSequence;
use super::sequence::Sequence;
use super::state::Scheduler;

impl Scheduler {
    /// Whether a running sequence has a lower priority than the first waiting one, and priorities
    /// have an effect.
    pub(super) fn has_lower_priority_running(&self) -> bool {
        let Some(first) = self.waiting.iter().next() else { return false };
        let mut running = self.running.iter();
        self.options.ageing_steps > 0 && running.any(|running| running.sequence.priority > first.priority)
    }

    /// Preempts running sequences of lower priority if the first of the `candidates` needs their
    /// slots or blocks. They are in the order of admission. Returns the waiting sequence for which
    /// others were preempted, if any were.
    pub(super) fn preempt_for_priority(
        &mut self,
        candidates: &[SeqId],
        producers: &[Producer],
        bytes: &FrameBudget,
    ) -> Option<SeqId> {
        if !self.has_lower_priority_running() {
            return None;
        }
        let first = self.first_that_can_run(candidates, producers)?;
        let id = first.id;
        let mut leaving = self.places_for(first, bytes);
        if leaving.is_empty() {
            return None;
        }
        // From the end, so that the other indices stay valid.
        leaving.sort_unstable_by_key(|&index| Reverse(index));
        for index in leaving {
            let sequence = self.vacate(index);
            self.waiting.insert(sequence);
            self.priority_preemptions += 1;
        }
        Some(id)
    }

    /// The first of the `candidates` that waits neither for its mask nor for a prefix that is being
    /// computed, if it may overtake those before it.
    fn first_that_can_run(&self, candidates: &[SeqId], producers: &[Producer]) -> Option<&Sequence> {
        let mut allowance = usize::MAX;
        for sequence in candidates.iter().filter_map(|&id| self.waiting.get(id)) {
            if sequence.has_pending() {
                return None;
            }
            let waits = sequence.awaits_mask()
                || self.waits_for_prefix(sequence, &self.prefix_of(sequence), producers);
            if !waits {
                return (sequence.max_positions() <= allowance).then_some(sequence);
            }
            allowance = allowance.min(overtaking_allowance(sequence, &self.limits));
        }
        None
    }

    /// The indices of the running sequences that must leave so that the waiting sequence `first`
    /// can be admitted. The list is empty if none must leave, or if it would not help.
    fn places_for(&self, first: &Sequence, bytes: &FrameBudget) -> Vec<usize> {
        let victims = self.victims_of(first);
        let prefix = self.prefix_of(first);
        let held: usize = victims.iter().map(|&index| self.running[index].table.blocks.len()).sum();
        // The exact check of the blocks takes longer.
        let may_fit = self.cache.blocks_needed(&prefix, first.len()) <= self.cache.available() + held
            && bytes.fits_admission(first.len(), first.sampling_bytes);
        if !may_fit || !self.can_admit_without(first, &victims) {
            return Vec::new();
        }
        let mut fewest = (0..=victims.len()).map(|count| &victims[..count]);
        fewest.find(|leaving| self.can_admit_without(first, leaving)).map(<[_]>::to_vec).unwrap_or_default()
    }

    /// The indices of the running sequences whose places `first` may take: the last sequence of the
    /// lowest priority first.
    fn victims_of(&self, first: &Sequence) -> Vec<usize> {
        let may_be_taken = |running: &RunningSequence| {
            let sequence = &running.sequence;
            let is_new = running.first_step == self.next_step;
            sequence.priority > first.priority && sequence.id > first.id && !is_new
        };
        let mut victims: Vec<usize> =
            (0..self.running.len()).filter(|&index| may_be_taken(&self.running[index])).collect();
        victims.sort_by_key(|&index| Reverse((self.running[index].sequence.priority, index)));
        victims
    }

    /// Whether `first` can be admitted into this step when the running sequences with the indices
    /// `leaving` have left.
    fn can_admit_without(&self, first: &Sequence, leaving: &[usize]) -> bool {
        let prefills = self.staying(leaving).filter(|running| running.is_prefill());
        let prompts: Vec<usize> = prefills.map(RunningSequence::remaining).collect();
        let has_slot = !self.free_slots.is_empty() || !leaving.is_empty();
        has_slot
            && prompt_shares::has_room(&prompts, self.prompt_budget(leaving))
            && self.fits(first, &self.prefix_of(first), &prompts, leaving)
    }
}
