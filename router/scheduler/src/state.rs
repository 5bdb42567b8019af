//! The state of the scheduler, and the operations on its set of sequences.

use std::collections::{BTreeSet, VecDeque};

use super::adapter_places::AdapterPlaces;
use super::cache::{CacheEvent, KvCache};
use super::cost_model::{StepCostModel, StepLoad};
use super::disk_copies::DiskCopies;
use super::earlier_answers::EarlierAnswers;
use super::id::{SeqId, SlotId};
use super::in_flight::StepInFlight;
use super::limits::{InfeasibleRequest, SchedulerLimits};
use super::model_drafts::ModelDrafts;
use super::options::SchedulerOptions;
use super::present_tenants::PresentTenants;
use super::queue::WaitingQueue;
use super::request::{Mask, Request};
use super::running::RunningSequence;
use super::sequence::Sequence;
use super::shares::Shares;
use super::stats::SchedulerStats;

/// The scheduler. See the [module](super).
#[derive(Debug)]
pub struct Scheduler {
    pub(super) limits: SchedulerLimits,
    pub(super) options: SchedulerOptions,
    /// Total number of sequences that arrived.
    arrived: u64,
    pub(super) waiting: WaitingQueue,
    /// Ordered by id, so the first sequence in order is the first.
    pub(super) running: Vec<RunningSequence>,
    pub(super) free_slots: Vec<SlotId>,
    /// Free slots whose release has not been sent to the shards.
    pub(super) released: Vec<SlotId>,
    pub(super) cache: KvCache,
    /// The adapters that are in places.
    pub(super) adapter_places: AdapterPlaces,
    /// The copies between the KV cache and the disk cache.
    pub(super) copies: DiskCopies,
    pub(super) costs: StepCostModel,
    pub(super) next_step: u64,
    /// Steps planned and not answered, oldest first.
    pub(super) in_flight: VecDeque<StepInFlight>,
    /// Sequences that must run alone. While there are any, no other sequence runs.
    pub(super) quarantine: BTreeSet<SeqId>,
    /// The tokens that each tenant and its adapters have received.
    pub(super) shares: Shares,
    /// The tenants that share the steps.
    pub(super) present: PresentTenants,
    /// The limit on the time of the step being planned in microseconds, if several tenants share
    /// it.
    pub(super) step_limit: Option<f64>,
    pub(super) preemptions: u64,
    pub(super) priority_preemptions: u64,
    pub(super) slot_preemptions: u64,
    pub(super) deferred_rows: u64,
    pub(super) drafted_tokens: u64,
    pub(super) accepted_drafts: u64,
    /// The draft model of the shards, if they have one.
    pub(super) model_drafts: ModelDrafts,
    /// Answers in which the drafters of others look.
    pub(super) earlier: EarlierAnswers,
    pub(super) hit_tokens: u64,
    pub(super) miss_tokens: u64,
}

impl Scheduler {
    /// A scheduler without sequences.
    pub fn new(limits: SchedulerLimits, options: SchedulerOptions) -> Self {
        let reuse = options.prefix_cache && limits.shares_blocks();
        let mut cache = KvCache::new(limits.num_blocks, limits.block_size, reuse);
        cache.set_checkpoints(checkpoints(&limits));
        if options.cache_events {
            cache.log_events();
        }
        Scheduler {
            limits,
            options,
            arrived: 0,
            waiting: WaitingQueue::default(),
            running: Vec::with_capacity(limits.max_sequences),
            free_slots: all_slots(&limits),
            released: Vec::new(),
            cache,
            adapter_places: AdapterPlaces::new(&limits),
            copies: DiskCopies::new(),
            costs: StepCostModel::default(),
            next_step: 0,
            in_flight: VecDeque::new(),
            quarantine: BTreeSet::new(),
            shares: Shares::default(),
            present: PresentTenants::default(),
            step_limit: None,
            preemptions: 0,
            priority_preemptions: 0,
            slot_preemptions: 0,
            deferred_rows: 0,
            drafted_tokens: 0,
            accepted_drafts: 0,
            model_drafts: ModelDrafts::default(),
            earlier: EarlierAnswers::new(if options.drafts > 0 { options.earlier_tokens } else { 0 }),
            hit_tokens: 0,
            miss_tokens: 0,
        }
    }

    /// Notes that a step of one prompt with so many tokens took so many microseconds when the
    /// shards started. Without any known time, steps are bounded in tokens alone.
    pub fn note_warm_up(&mut self, tokens: u32, micros: u64) {
        let mut load = StepLoad::default();
        load.add(0, tokens as usize, false);
        self.costs.observe(&load, micros);
    }

    /// Notes that the draft model guessed a token in so many microseconds when the shards started,
    /// and read each further one in so many nanoseconds.
    pub fn note_draft_warm_up(&mut self, guess_micros: u64, read_nanos: u64) {
        self.model_drafts = ModelDrafts::new(guess_micros, read_nanos);
    }

    /// Adds a request to the queue.
    ///
    /// # Errors
    /// [`InfeasibleRequest`] if the request could not run even alone.
    pub fn add(&mut self, request: Request) -> Result<SeqId, InfeasibleRequest> {
        let delay = u64::from(self.options.ageing_steps) * request.priority as u64;
        let id = SeqId { due: self.next_step + delay, serial: 0 };
        let mut sequence = Sequence::new(id, request, self.cache.hashed_block_size());
        if !self.limits.reruns_positions() {
            sequence.await_every_mask();
        }
        sequence.check(&self.limits)?;
        sequence.hash_prompt();
        if self.options.drafts > 0 {
            sequence.accept_drafts(self.limits.has_draft_model);
        }
        Ok(self.enqueue(sequence))
    }

    /// Adds a sequence that has its place in the order to the queue, with a number of its own.
    pub(super) fn enqueue(&mut self, mut sequence: Sequence) -> SeqId {
        let id = SeqId { serial: self.arrived, ..sequence.id };
        sequence.id = id;
        self.arrived += 1;
        self.shares.enter(&sequence, &self.waiting);
        self.waiting.insert(sequence);
        id
    }

    /// Removes a sequence, waiting or running. Its slot and its blocks are free for the next plan,
    /// and its tokens that are still in flight are dropped when they arrive. An unknown id is
    /// ignored, because the sequence may have ended.
    pub fn cancel(&mut self, id: SeqId) {
        self.quarantine.remove(&id);
        let ended = match self.position(id) {
            Some(index) => Some(self.vacate(index)),
            None => self.waiting.remove(id),
        };
        if let Some(sequence) = ended {
            self.earlier.add(sequence.block_hashes.root(), &sequence.tokens, sequence.prompt_len);
        }
        if self.is_idle() {
            self.shares.reset();
        }
    }

    /// Sets the mask for the next token of a constrained sequence of which `generated` tokens have
    /// come back. The mask is ignored if the sequence has ended, or has another number of tokens.
    pub fn release(&mut self, id: SeqId, generated: usize, mask: Mask) {
        self.update(id, |sequence| sequence.release(generated, mask));
    }

    /// Starts again with new shards that have no state but that of their disk cache
    /// ([`open_disk_cache`](Self::open_disk_cache)). Every sequence is in the queue, at its
    /// place in the order and with the tokens that have come back; steps in flight and computed
    /// blocks are gone. Ids do not change.
    ///
    /// Returns the sequences that the new shards cannot run. The scheduler has removed them.
    #[must_use = "the requests of the returned sequences must be failed"]
    pub fn recover(&mut self, limits: SchedulerLimits) -> Vec<(SeqId, InfeasibleRequest)> {
        self.limits = limits;
        self.in_flight.clear();
        self.copies.clear();
        self.released.clear();
        self.free_slots = all_slots(&limits);
        self.adapter_places = AdapterPlaces::new(&limits);
        self.cache.renew(limits.num_blocks, limits.block_size);
        self.cache.set_checkpoints(checkpoints(&limits));
        let running = std::mem::take(&mut self.running).into_iter().map(|running| running.sequence);
        let mut refused = Vec::new();
        for mut sequence in self.waiting.drain().chain(running) {
            sequence.lose_pending();
            sequence.restored = false;
            match sequence.check(&limits) {
                Ok(()) => {
                    sequence.block_hashes.resize(self.cache.hashed_block_size(), &sequence.tokens);
                    self.waiting.insert(sequence);
                }
                Err(infeasible) => {
                    self.quarantine.remove(&sequence.id);
                    refused.push((sequence.id, infeasible));
                }
            }
        }
        refused
    }

    /// The changes of the prefix cache since the last call, oldest first. There are none unless
    /// [`SchedulerOptions::cache_events`] is set; then the caller must take them after each change
    /// of the scheduler, or they pile up.
    pub fn take_cache_events(&mut self) -> Vec<CacheEvent> {
        self.cache.take_events()
    }

    /// Number of steps planned and not answered.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether no sequence is waiting or running.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Statistics for `/metrics`.
    pub fn stats(&self) -> SchedulerStats {
        SchedulerStats {
            waiting: self.waiting.len(),
            waiting_tokens: self.waiting.tokens(),
            running: self.running.len(),
            quarantined: self.quarantine.len(),
            used_blocks: self.cache.used(),
            cached_blocks: self.cache.cached(),
            preemptions: self.preemptions,
            priority_preemptions: self.priority_preemptions,
            slot_preemptions: self.slot_preemptions,
            deferred_rows: self.deferred_rows,
            drafted_tokens: self.drafted_tokens,
            accepted_drafts: self.accepted_drafts,
            prefix_hit_tokens: self.hit_tokens,
            prefix_miss_tokens: self.miss_tokens,
            prefix_evicted_blocks: self.cache.evictions(),
            state_checkpoints: self.cache.saved_states(),
            disk_blocks: self.cache.disk_blocks(),
            disk_read_blocks: self.copies.read_blocks,
            disk_written_blocks: self.copies.written_blocks,
            disk_failed_reads: self.copies.failed_reads,
            disk_failed_writes: self.copies.failed_writes,
        }
    }

    /// A sequence, running or waiting. Returns `None` if it has ended.
    pub(super) fn get(&self, id: SeqId) -> Option<&Sequence> {
        match self.position(id) {
            Some(index) => Some(&self.running[index].sequence),
            None => self.waiting.get(id),
        }
    }

    /// Changes a sequence, running or waiting. Returns `None` if it has ended.
    pub(super) fn update<T>(&mut self, id: SeqId, change: impl FnOnce(&mut Sequence) -> T) -> Option<T> {
        match self.position(id) {
            Some(index) => Some(change(&mut self.running[index].sequence)),
            None => self.waiting.update(id, change),
        }
    }

    /// Iterates over the running sequences except those with the indices `leaving`.
    pub(super) fn staying(&self, leaving: &[usize]) -> impl Iterator<Item = &RunningSequence> {
        let running = self.running.iter().enumerate();
        running.filter(|(index, _)| !leaving.contains(index)).map(|(_, running)| running)
    }

    /// The index of a running sequence.
    pub(super) fn position(&self, id: SeqId) -> Option<usize> {
        self.running.binary_search_by_key(&id, |running| running.sequence.id).ok()
    }

    /// Takes the slot and the blocks of a running sequence back.
    pub(super) fn vacate(&mut self, index: usize) -> Sequence {
        let running = self.running.remove(index);
        running.kept().into_iter().for_each(|checkpoint| self.cache.give_back(checkpoint));
        let RunningSequence { sequence, slot, table, .. } = running;
        self.cache.release(table);
        self.adapter_places.note_use(sequence.adapter, self.next_step);
        self.free_slots.push(slot);
        self.released.push(slot);
        sequence
    }
}

/// The checkpoints of states that the prefix cache needs; `None` if all state is in blocks.
fn checkpoints(limits: &SchedulerLimits) -> Option<usize> {
    limits.shares_at_checkpoints().then_some(limits.state_checkpoints)
}

fn all_slots(limits: &SchedulerLimits) -> Vec<SlotId> {
    // Reversed, so that slots are handed out in ascending order.
    (0..limits.max_sequences as u32).rev().map(SlotId).collect()
}
