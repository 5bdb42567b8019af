//! Admission: which sequences leave the queue.
//!
//! The first sequence in the queue is admitted as soon as there are blocks for its tokens and for
//! the growth of the running sequences meanwhile. While it waits for blocks, for its mask or for a
//! prefix ([`prefix_wait`](super::prefix_wait)), later sequences that fit may overtake it, up to a
//! limit on their total work; after that, blocks are kept for it. So a huge prompt does not delay
//! small ones, and small prompts do not delay a huge one forever.
//!
//! If more adapters are loaded than there are places, a sequence also waits for a place
//! ([`adapter_places`](super::adapter_places)). Sequences that can run meanwhile do not overtake
//! it.
//!
//! The first sequence is that of [`admission_order`](Scheduler::admission_order), which gives
//! several tenants fair shares. With [`Schedule::Lpm`], the sequence with the longest cached prefix
//! of those with its priority is admitted first. The limit on overtaking is the same.

use std::collections::HashMap;

use super::adapter_places::PlaceClaims;
use super::cache::Prefix;
use super::frame_budget::FrameBudget;
use super::id::SeqId;
use super::limits::SchedulerLimits;
use super::options::Schedule;
use super::output::Admitted;
use super::prefix_wait::Producer;
use super::prompt_shares;
use super::request::Priority;
use super::running::RunningSequence;
use super::sequence::Sequence;
use super::state::Scheduler;
use super::state_checkpoints::MAX_SAVES;

/// Maximum number of waiting sequences that are considered for a step, apart from those that wait
/// for a prefix. It bounds the time to plan.
const MAX_CONSIDERED: usize = 16;

/// Maximum number of sequences that are considered and wait for a prefix or for a place of their
/// adapters. A herd of equal prompts, or of requests for one adapter, does not keep the sequences
/// behind it from being considered.
const MAX_WAITING_FOR_OTHERS: usize = 128;

/// Why a sequence is not admitted in the step that is being planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NotNow {
    /// There are no blocks for it, or it awaits its mask.
    DoesNotFit,
    /// A running sequence is computing its prefix, or the prefix is being read from disk.
    WaitsForPrefix,
    /// There is no place for its adapter.
    WaitsForPlace,
}

/// The state of admission during one plan.
#[derive(Debug)]
pub(super) struct AdmissionPass {
    pub(super) producers: Vec<Producer>,
    /// The claims on places for adapters.
    pub(super) claims: PlaceClaims,
    /// Sequences without blocks, mask or prefix. During one plan blocks only become fewer, so the
    /// reasons hold until its end.
    passed_over: HashMap<SeqId, NotNow>,
}

/// A waiting sequence that can be admitted.
#[derive(Debug)]
struct Candidate {
    id: SeqId,
    priority: Priority,
    len: usize,
    prefix: Prefix,
}

impl AdmissionPass {
    /// Why a sequence is not admitted, as far as it is known.
    fn not_now(&self, id: SeqId) -> Option<NotNow> {
        match self.claims.waits(id) {
            true => Some(NotNow::WaitsForPlace),
            false => self.passed_over.get(&id).copied(),
        }
    }
}

impl Scheduler {
    /// Admits sequences while there are blocks, slots, and tokens and bytes left in the step.
    pub(super) fn admit(&mut self, bytes: &mut FrameBudget) -> Vec<Admitted> {
        let mut admitted = Vec::new();
        if self.waiting.is_empty() {
            return admitted;
        }
        let mut pass = self.admission_pass();
        loop {
            let has_room = self.has_prompt_room(&self.remaining_prefills(), &[]);
            if !has_room && self.step_limit.is_none() {
                break;
            }
            let mut candidates = self.admission_order(MAX_CONSIDERED + MAX_WAITING_FOR_OTHERS);
            pass.claims = self.place_claims(&candidates);
            if !has_room {
                self.keep_prompt_shares(&mut candidates, &admitted);
            }
            let may_preempt = self.may_preempt_for(&candidates) || self.may_preempt_for_slot();
            if candidates.is_empty() || self.free_slots.is_empty() && !may_preempt {
                break;
            }
            let preempted = self.preempt_for_priority(&candidates, &pass, bytes);
            let preempted = preempted.or_else(|| self.preempt_for_slot(&candidates, &pass));
            let is_chosen = preempted.is_none();
            let candidate = match preempted {
                // Others have left for this sequence, so no other sequence is chosen.
                Some(id) => {
                    pass = AdmissionPass { claims: pass.claims, ..self.admission_pass() };
                    self.candidate(id)
                }
                None if self.free_slots.is_empty() => None,
                None => self.choose(&candidates, &mut pass),
            };
            let Some(Candidate { id, len, prefix, .. }) = candidate else { break };
            let before = candidates.iter().copied().take_while(|&other| other != id);
            let passed: Vec<SeqId> = before.filter(|&other| !pass.claims.waits(other)).collect();
            if is_chosen && self.begin_restore(id, &prefix, &passed) {
                pass.passed_over.insert(id, NotNow::WaitsForPrefix);
                continue;
            }
            // If the admission does not fit the frame, the sequence is considered first again in
            // the next step.
            let sampling = self.waiting.get(id).map_or(0, |sequence| sequence.sampling_bytes);
            if !bytes.take_admission(len, sampling) {
                break;
            }
            let cached = self.cache.positions(&prefix);
            let save_positions = self.save_positions(len, &prefix);
            let table = self.cache.allocate(&prefix, len);
            debug_assert!(table.is_some(), "choose has checked the number of blocks");
            let Some(table) = table else { break };
            if let Some(sequence) = self.waiting.get(id) {
                self.shares.settle(&sequence.tenant, &self.waiting);
            }
            // What a preempted sequence loses is not charged to its tenant again.
            if self.waiting.get(id).is_some_and(|sequence| !sequence.has_run) {
                self.charge(id, len - cached);
            }
            let sequence = self.waiting.admit(id, &passed);
            let (Some(sequence), Some(slot)) = (sequence, self.free_slots.pop()) else { break };
            self.use_place(&sequence, pass.claims.get(id));
            self.hit_tokens += cached as u64;
            self.miss_tokens += (len - cached) as u64;
            let running = RunningSequence::new(sequence, slot, table, cached, self.next_step)
                .with_checkpoints(prefix.checkpoint, save_positions);
            pass.producers.extend(self.producer(&running));
            let index = self.running.partition_point(|other| other.sequence.id < id);
            self.running.insert(index, running);
            admitted.push(Admitted { sequence: id, cached_tokens: cached });
        }
        admitted
    }

    /// Removes the candidates that have no part of the step beside the prompts of other tenants. If
    /// the step has admitted others, all are removed, because the part may be a single token.
    fn keep_prompt_shares(&self, candidates: &mut Vec<SeqId>, admitted: &[Admitted]) {
        candidates.retain(|&id| {
            let sequence = self.waiting.get(id).filter(|_| admitted.is_empty());
            sequence.is_some_and(|sequence| self.has_prompt_share(&sequence.tenant))
        });
    }

    fn admission_pass(&self) -> AdmissionPass {
        AdmissionPass {
            producers: self.producers(),
            claims: PlaceClaims::default(),
            passed_over: HashMap::new(),
        }
    }

    /// A waiting sequence with its cached prefix.
    fn candidate(&self, id: SeqId) -> Option<Candidate> {
        let sequence = self.waiting.get(id)?;
        let prefix = self.prefix_of(sequence);
        Some(Candidate { id, priority: sequence.priority, len: sequence.len(), prefix })
    }

    /// Chooses the next of the `candidates` to be admitted, for which there are blocks and that may
    /// overtake those before it.
    fn choose(&self, candidates: &[SeqId], pass: &mut AdmissionPass) -> Option<Candidate> {
        let prompts = self.remaining_prefills();
        // Not even a sequence of one token would fit.
        if self.cache.available() < 1 + self.growth_during_prefill(&prompts, 1, &[]) {
            return None;
        }
        let (mut considered, mut waiting_for_others) = (0, 0);
        let mut allowance = usize::MAX;
        let mut best: Option<Candidate> = None;
        for sequence in candidates.iter().filter_map(|&id| self.waiting.get(id)) {
            // A sequence with pending tokens was preempted a moment ago. It is admitted first when
            // its tokens have arrived, so nothing takes its blocks.
            if considered == MAX_CONSIDERED
                || waiting_for_others == MAX_WAITING_FOR_OTHERS
                || sequence.has_pending()
            {
                break;
            }
            let mut not_now = pass.not_now(sequence.id);
            if not_now.is_none() && sequence.max_positions() <= allowance {
                let Sequence { id, priority, .. } = *sequence;
                let is_better = |prefix: &Prefix| {
                    best.as_ref().is_none_or(|best: &Candidate| {
                        best.priority == priority && best.prefix.blocks < prefix.blocks
                    })
                };
                match self.examine(sequence, &prompts, &pass.producers) {
                    Ok(prefix) if is_better(&prefix) => {
                        best = Some(Candidate { id, priority, len: sequence.len(), prefix });
                    }
                    Ok(_) => {}
                    Err(reason) => not_now = Some(reason),
                }
                pass.passed_over.extend(not_now.map(|reason| (sequence.id, reason)));
            }
            if best.is_some() && self.options.schedule == Schedule::Fcfs {
                break;
            }
            match not_now {
                Some(NotNow::WaitsForPlace) => {
                    waiting_for_others += 1;
                    continue;
                }
                Some(NotNow::WaitsForPrefix) => waiting_for_others += 1,
                _ => considered += 1,
            }
            allowance = allowance.min(overtaking_allowance(sequence, &self.limits));
        }
        best
    }

    /// Returns the cached prefix of a sequence if the sequence can be admitted. `prompts` are the
    /// remaining lengths of the running prompts.
    fn examine(
        &self,
        sequence: &Sequence,
        prompts: &[usize],
        producers: &[Producer],
    ) -> Result<Prefix, NotNow> {
        if sequence.awaits_mask() {
            return Err(NotNow::DoesNotFit);
        }
        let prefix = self.prefix_of(sequence);
        if self.waits_for_disk(sequence, &prefix) || self.waits_for_prefix(sequence, &prefix, producers) {
            return Err(NotNow::WaitsForPrefix);
        }
        if self.fits(sequence, &prefix, prompts, &[]) { Ok(prefix) } else { Err(NotNow::DoesNotFit) }
    }

    /// Whether there are blocks for a sequence that starts with `prefix` when the running sequences
    /// with the indices `leaving` have left. `prompts` are the remaining lengths of the prompts
    /// that stay.
    pub(super) fn fits(
        &self,
        sequence: &Sequence,
        prefix: &Prefix,
        prompts: &[usize],
        leaving: &[usize],
    ) -> bool {
        let remaining = sequence.len() - self.cache.positions(prefix);
        let reserve = self.growth_during_prefill(prompts, remaining, leaving);
        let own = self.own_growth_before_others(sequence, prompts, remaining, leaving);
        let needed = self.cache.blocks_needed(prefix, sequence.len()) + reserve + own;
        let tables = leaving.iter().map(|&index| &self.running[index].table);
        needed <= self.cache.available() + self.cache.released_by(tables, prefix)
    }

    /// The computed blocks with which a sequence can start.
    pub(super) fn prefix_of(&self, sequence: &Sequence) -> Prefix {
        match sequence.ignores_prefix_cache() {
            true => Prefix::default(),
            false => self.cache.find(sequence.block_hashes.as_slice(), sequence.len()),
        }
    }

    /// Maximum number of blocks that the running sequences, except those with the indices
    /// `leaving`, take until a newcomer with `remaining` tokens to run has its first new token.
    /// With this reserve no sequence is preempted for want of blocks before its first token, so no
    /// prefill is wasted.
    fn growth_during_prefill(&self, prompts: &[usize], remaining: usize, leaving: &[usize]) -> usize {
        let limits = &self.limits;
        let new_tokens = self.new_tokens_during_prefill(prompts, remaining, leaving);
        let growth = |running: &RunningSequence| {
            let grown = running.sequence.len() + new_tokens + limits.block_size;
            let positions = grown.min(running.sequence.max_positions());
            limits.blocks_for(positions).saturating_sub(running.table.blocks.len())
        };
        self.staying(leaving).map(growth).sum()
    }

    /// Maximum number of blocks that a newcomer itself takes for new tokens while prompts that are
    /// behind it in order are computed. Such prompts were admitted while it waited, and its growth
    /// must not preempt them.
    fn own_growth_before_others(
        &self,
        newcomer: &Sequence,
        prompts: &[usize],
        remaining: usize,
        leaving: &[usize],
    ) -> usize {
        let mut staying = self.staying(leaving);
        if !staying.any(|running| running.is_prefill() && running.sequence.id > newcomer.id) {
            return 0;
        }
        let new_tokens = self.new_tokens_during_prefill(prompts, remaining, leaving);
        let grown = (newcomer.len() + new_tokens).min(newcomer.max_positions());
        self.limits.blocks_for(grown) - self.limits.blocks_for(newcomer.len())
    }

    /// Maximum number of new tokens of a running sequence until a newcomer with `remaining` tokens
    /// to run, and all prompts before it, have been run.
    fn new_tokens_during_prefill(&self, prompts: &[usize], remaining: usize, leaving: &[usize]) -> usize {
        let budget = self.min_prompt_budget(leaving);
        let steps = prompt_shares::steps_to_finish(prompts.iter().copied().chain([remaining]), budget);
        // A row that ends at a checkpoint leaves a rest for another step.
        let saves = if self.cache.has_checkpoints() { MAX_SAVES } else { 0 };
        steps + saves * (prompts.len() + 1)
    }
}

/// Total work, in positions, of the sequences that may still overtake this one. It starts with the
/// size of the KV cache.
pub(super) fn overtaking_allowance(sequence: &Sequence, limits: &SchedulerLimits) -> usize {
    (limits.num_blocks * limits.block_size).saturating_sub(sequence.overtaken)
}
