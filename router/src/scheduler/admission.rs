//! Who leaves the queue.
//!
//! The first in the queue is admitted as soon as there is room for its tokens and for what the running sequences need
//! meanwhile. While it has to wait for that, others that do fit go past it, but no more of them than it has patience
//! for; then it is kept room for. So a huge prompt does not hold up small ones, nor the small ones it for ever.

use super::cache::Prefix;
use super::frame::FrameBudget;
use super::limits::Limits;
use super::sequence::{Running, SeqId, Sequence};
use super::{Admitted, Scheduler, share};

/// How far into the queue to look for a sequence that fits. It bounds the work for a plan.
const LOOK_AHEAD: usize = 16;

impl Scheduler {
    /// Admits while there is room, and something left of the step's budgets of tokens and bytes.
    pub(super) fn admit(&mut self, bytes: &mut FrameBudget) -> Vec<Admitted> {
        let budget = self.unplanned();
        let mut admitted = Vec::new();
        while !self.free_slots.is_empty() && share::has_room(&self.prompts(), budget) {
            let Some((id, len, prefix)) = self.first_that_fits() else { break };
            // It is the first again in the next step, which has room for it.
            let sampling = self.waiting.get(id).map_or(0, |sequence| sequence.sampling_bytes);
            if !bytes.take_admission(len, sampling) {
                break;
            }
            let cached = self.cache.positions(&prefix);
            let table = self.cache.allocate(prefix, len);
            debug_assert!(table.is_some(), "it fits");
            let Some(table) = table else { break };
            let (Some(sequence), Some(slot)) = (self.waiting.admit(id), self.free_slots.pop()) else { break };
            self.hit_tokens += cached as u64;
            self.miss_tokens += (len - cached) as u64;
            let running = Running::new(sequence, slot, table, cached, self.next_step);
            let index = self.running.partition_point(|other| other.sequence.id < id);
            self.running.insert(index, running);
            admitted.push(Admitted { sequence: id, cached_tokens: cached });
        }
        admitted
    }

    /// The first in the queue for which there is room and that may go past those before it, with its tokens and what is
    /// cached of them.
    fn first_that_fits(&self) -> Option<(SeqId, usize, Prefix)> {
        let prompts = self.prompts();
        let mut patience = usize::MAX;
        for sequence in self.waiting.iter().take(LOOK_AHEAD) {
            // Preempted just now. It comes first when its tokens are there, and nothing takes its room before that.
            if !sequence.is_known() {
                return None;
            }
            // One that is held goes when it can, and is passed as if there were no room for it.
            if !sequence.is_held()
                && sequence.max_positions() <= patience
                && let Some(prefix) = self.fits(sequence, &prompts)
            {
                return Some((sequence.id, sequence.len(), prefix));
            }
            patience = patience.min(patience_of(sequence, &self.limits));
            // Not even a single token would fit.
            if self.cache.available() < 1 + growth_during_prefill(&self.limits, &self.running, &prompts, 1) {
                return None;
            }
        }
        None
    }

    /// Whether there is room for a sequence, given the remaining lengths of the running prompts; and what is cached.
    fn fits(&self, sequence: &Sequence, prompts: &[usize]) -> Option<Prefix> {
        let prefix = match sequence.is_computed_whole() {
            true => Prefix::default(),
            false => self.cache.find(&sequence.salt, &sequence.tokens),
        };
        let remaining = sequence.len() - self.cache.positions(&prefix);
        let reserve = growth_during_prefill(&self.limits, &self.running, prompts, remaining);
        let needed = self.cache.price(&prefix, sequence.len()) + reserve;
        (needed <= self.cache.available()).then_some(prefix)
    }
}

/// Positions of sequences that may still go past this one: all together as many as the pool has.
fn patience_of(sequence: &Sequence, limits: &Limits) -> usize {
    (limits.num_blocks * limits.block_size).saturating_sub(sequence.overtaken)
}

/// Blocks that `running` may take until a newcomer has its first new token that has `remaining` tokens to run. With
/// so many in reserve nobody is preempted before its first token, so no work is ever done for nothing twice.
fn growth_during_prefill(limits: &Limits, running: &[Running], prompts: &[usize], remaining: usize) -> usize {
    // However many decode meanwhile, this much of each step is left to prompts.
    let budget = limits.max_step_tokens - (limits.max_sequences - 1);
    let steps = share::steps_to_finish(prompts.iter().copied().chain([remaining]), budget);
    let growth = |running: &Running| {
        let positions =
            (running.sequence.len() + steps + limits.block_size).min(running.sequence.max_positions());
        limits.blocks_for(positions).saturating_sub(running.table.blocks.len())
    };
    running.iter().map(growth).sum()
}
