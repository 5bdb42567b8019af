//! The scheduler: which tokens of which sequences run in the next step, and where their keys and values live.
//!
//! A pure state machine without clock, socket or chance: [`add`](Scheduler::add) and [`cancel`](Scheduler::cancel)
//! change what is wanted, [`plan`](Scheduler::plan) makes the next step, [`apply`](Scheduler::apply) takes in what came
//! of one. Steps may be planned ahead of the answers to earlier ones; answers come in the order of the steps. After
//! the shards have died, [`recover`](Scheduler::recover) begins anew with other ones and the same sequences.
//!
//! A constrained sequence is held after each token until [`release`](Scheduler::release) says what may come next; so it has
//! at most one token in flight. It keeps its slot and its blocks meanwhile, and nobody waits for it. How its constraint is
//! worked out is nothing that is known here.
//!
//! A sequence that the shards refuse, or for which the model gives no finite numbers, fails alone. A sequence that was in two losses of the
//! shards runs alone, and fails alone if they are lost again ([`quarantine`]). A step and its answer never exceed a frame ([`frame`]).
//!
//! A step is a mixed batch under one budget of tokens. Sequences that decode go first, one token each, so a long
//! prompt never stalls a running stream; prompts share the rest in chunks ([`share`]). Sequences are in line by
//! arrival and priority; [`admission`] says who leaves the queue. A newcomer starts with the blocks of its prefix that
//! have been computed for others ([`cache`]). When blocks run out the last in line that runs goes back to the queue
//! with the tokens it has, to be computed again. The first is never preempted for another, so there is always
//! progress.

mod admission;
mod answer;
mod cache;
mod frame;
mod integrity;
mod limits;
mod quarantine;
mod queue;
mod request;
mod sequence;
mod share;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeSet, HashMap, VecDeque};

use millrace_proto::{PromptToken, RowError, Sampled, Step, StepOutput};

use self::answer::{End, InFlight, InFlightRow};
use self::cache::KvCache;
use self::frame::FrameBudget;
use self::queue::Queue;
use self::sequence::{Running, Sequence};

pub use self::answer::{Malformed, News, Output, RowFailure};
pub use self::limits::{Impossible, Limits, NoRoom};
pub use self::request::{Finish, Mask, Pooling, Priority, Request};
pub use self::sequence::{SeqId, Slot};

/// See the [module](self).
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    options: Options,
    /// Sequences that arrived, ever.
    arrived: u64,
    waiting: Queue,
    /// By id, so the first in line first.
    running: Vec<Running>,
    free_slots: Vec<Slot>,
    /// Free slots that the shards believe to be taken.
    released: Vec<Slot>,
    cache: KvCache,
    next_step: u64,
    /// Steps planned and not yet answered, oldest first.
    in_flight: VecDeque<InFlight>,
    /// Sequences that were in so many losses of the shards that they run alone. While there are any, nothing else runs.
    quarantine: BTreeSet<SeqId>,
    preemptions: u64,
    hit_tokens: u64,
    miss_tokens: u64,
}

/// How to schedule, apart from what the shards can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Whether computed blocks are kept and shared among sequences that begin with the same tokens.
    pub prefix_cache: bool,
    /// After so many steps a request is level with new ones of the next higher priority. With 0 there are no
    /// priorities.
    pub ageing_steps: u32,
}

impl Default for Options {
    fn default() -> Self {
        Options { prefix_cache: true, ageing_steps: 512 }
    }
}

/// A step to be sent to the shards.
#[derive(Debug)]
pub struct Plan {
    /// The step; it has at least one row.
    pub step: Step,
    /// Sequences that left the queue with it; a preempted one does so again.
    pub admitted: Vec<Admitted>,
}

/// A sequence that left the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admitted {
    /// Which.
    pub sequence: SeqId,
    /// The first tokens of it (of the prompt, if it never ran before) that need not be computed.
    pub cached_tokens: usize,
}

/// Figures for the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Sequences in the queue.
    pub waiting: usize,
    /// Tokens of the sequences in the queue.
    pub waiting_tokens: usize,
    /// Sequences that hold a slot.
    pub running: usize,
    /// Blocks that running sequences hold, shared or not.
    pub used_blocks: usize,
    /// Blocks that only the prefix cache holds. They are free for whoever needs them.
    pub cached_blocks: usize,
    /// Times that a sequence had to go back to the queue for want of blocks, ever.
    pub preemptions: u64,
    /// Tokens of admitted sequences that were found in the prefix cache, ever.
    pub prefix_hit_tokens: u64,
    /// Tokens of admitted sequences that had to be computed, ever.
    pub prefix_miss_tokens: u64,
    /// Blocks that were taken from the prefix cache because they were needed, ever.
    pub prefix_evicted_blocks: u64,
}

impl Scheduler {
    /// An empty scheduler.
    pub fn new(limits: Limits, options: Options) -> Self {
        Scheduler {
            limits,
            options,
            arrived: 0,
            waiting: Queue::default(),
            running: Vec::with_capacity(limits.max_sequences),
            free_slots: all_slots(&limits),
            released: Vec::new(),
            cache: KvCache::new(limits.num_blocks, limits.block_size, options.prefix_cache),
            next_step: 0,
            in_flight: VecDeque::new(),
            quarantine: BTreeSet::new(),
            preemptions: 0,
            hit_tokens: 0,
            miss_tokens: 0,
        }
    }

    /// Puts a request into the queue.
    ///
    /// # Errors
    /// If it could not run even alone.
    pub fn add(&mut self, request: Request) -> Result<SeqId, Impossible> {
        let wait = u64::from(self.options.ageing_steps) * request.priority as u64;
        let id = SeqId { due: self.next_step + wait, serial: self.arrived };
        let sequence = Sequence::new(id, request);
        sequence.check(&self.limits)?;
        self.arrived += 1;
        self.waiting.insert(sequence);
        Ok(id)
    }

    /// Forgets a sequence, waiting or running; what it held is free for the next plan. Tokens of it that are still in
    /// flight are dropped when they arrive. An id that is not known (any more) is no error.
    pub fn cancel(&mut self, id: SeqId) {
        self.quarantine.remove(&id);
        match self.position(id) {
            Some(index) => {
                self.vacate(index);
            }
            None => {
                self.waiting.remove(id);
            }
        }
    }

    /// Says which tokens may come next in a constrained sequence of which `generated` tokens have come back. Nothing
    /// comes of it if the sequence has ended meanwhile, or has another number of tokens.
    pub fn release(&mut self, id: SeqId, generated: usize, mask: Mask) {
        if let Some(sequence) = self.find(id) {
            sequence.release(generated, mask);
        }
    }

    /// The next step, or nothing if there is nothing to run (before more answers have come in).
    pub fn plan(&mut self) -> Option<Plan> {
        let mut bytes = FrameBudget::for_decodes(&self.limits);
        self.schedule_decodes(&mut bytes);
        bytes.add_prompts_half();
        let admitted = match self.quarantine.is_empty() {
            true => self.admit(&mut bytes),
            false => self.admit_from_quarantine(),
        };
        self.schedule_prefills(&mut bytes);

        let admit = admitted.iter().filter_map(|new| self.position(new.sequence));
        let admit = admit.map(|index| self.running[index].admission()).collect();
        let mut rows: Vec<_> = self
            .running
            .iter_mut()
            .filter_map(|running| {
                let (row, awaited) = running.run()?;
                Some((running.sequence.decodes(&row), row, awaited))
            })
            .collect();
        if rows.is_empty() {
            debug_assert!(admitted.is_empty(), "an admission always leaves something to run");
            return None;
        }
        // Decodes before chunks of prompts: see the protocol.
        rows.sort_by_key(|(decodes, ..)| !decodes);

        let id = self.next_step;
        self.next_step += 1;
        let (rows, awaited) = rows.into_iter().map(|(_, row, awaited)| (row, awaited)).unzip();
        self.in_flight.push_back(InFlight { step: id, rows: awaited });
        let release = self.released.drain(..).map(|slot| slot.0).collect();
        Some(Plan { step: Step { id, release, admit, rows }, admitted })
    }

    /// Takes in the answer to the oldest step in flight.
    ///
    /// # Errors
    /// If it is not one; nothing has changed then.
    pub fn apply(&mut self, output: StepOutput) -> Result<Vec<Output>, Malformed> {
        let due = self.in_flight.front().ok_or(Malformed::Unasked(output.step))?;
        due.check(&output, self.limits.vocab_size)?;
        let Some(answered) = self.in_flight.pop_front() else { return Ok(Vec::new()) };
        let StepOutput { sampled, scored, pooled, errors, .. } = output;
        let mut errors: HashMap<u32, RowError> =
            errors.into_iter().map(|error| (error.slot, error)).collect();
        for row in answered.rows.iter().filter(|row| !errors.contains_key(&row.slot.0)) {
            self.publish(answered.step, row);
        }
        let mut outputs = Vec::with_capacity(sampled.len());
        let (mut sampled, mut scored, mut pooled) =
            (sampled.into_iter(), scored.into_iter(), pooled.into_iter());
        for row in &answered.rows {
            if let Some(error) = errors.remove(&row.slot.0) {
                outputs.extend(self.fail(row.sequence, error));
                continue;
            }
            let scored = if row.scores.is_empty() { None } else { scored.next() };
            if scored.is_some() || row.end == Some(End::Prompt) {
                let tokens = scored.map_or_else(Vec::new, |scored| scored.tokens);
                outputs.extend(self.receive_prompt(row, tokens));
            }
            if row.end == Some(End::Vector) {
                outputs.extend(
                    pooled.next().and_then(|pooled| self.receive_vector(row.sequence, pooled.values)),
                );
            }
            if row.sample {
                outputs.extend(sampled.next().and_then(|sampled| self.receive(row.sequence, sampled)));
            }
            self.acquit(row);
        }
        Ok(outputs)
    }

    /// Begins anew with shards that know nothing: every sequence is in the queue, in its old place and with the tokens
    /// that have come back; steps in flight are forgotten, and so is everything computed. Ids stay what they are.
    /// Returns the sequences that these shards cannot run; the scheduler has forgotten them.
    #[must_use = "somebody waits for the sequences that cannot go on"]
    pub fn recover(&mut self, limits: Limits) -> Vec<(SeqId, Impossible)> {
        self.limits = limits;
        self.in_flight.clear();
        self.released.clear();
        self.free_slots = all_slots(&limits);
        self.cache.renew(limits.num_blocks, limits.block_size);
        let running = std::mem::take(&mut self.running).into_iter().map(|running| running.sequence);
        let mut refused = Vec::new();
        for mut sequence in self.waiting.drain().chain(running) {
            sequence.lose_pending();
            match sequence.check(&limits) {
                Ok(()) => self.waiting.insert(sequence),
                Err(impossible) => {
                    self.quarantine.remove(&sequence.id);
                    refused.push((sequence.id, impossible));
                }
            }
        }
        refused
    }

    /// Steps planned and not yet answered.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether no sequence is waiting or running.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Figures for the metrics.
    pub fn stats(&self) -> Stats {
        Stats {
            waiting: self.waiting.len(),
            waiting_tokens: self.waiting.tokens(),
            running: self.running.len(),
            used_blocks: self.cache.used(),
            cached_blocks: self.cache.cached(),
            preemptions: self.preemptions,
            prefix_hit_tokens: self.hit_tokens,
            prefix_miss_tokens: self.miss_tokens,
            prefix_evicted_blocks: self.cache.evictions(),
        }
    }

    /// One token for each sequence that decodes, the first in line first. A shortage of blocks is at the cost of the
    /// last, which may be the one in need itself. A sequence whose row does not fit the message any more has another chance beside the
    /// prompts, or waits for the next step.
    fn schedule_decodes(&mut self, bytes: &mut FrameBudget) {
        let mut index = 0;
        while let Some(running) = self.running.get_mut(index) {
            let decodes = running.remaining() == 1;
            let positions = running.positions_after(1);
            if !decodes || self.cache.cover(&mut running.table, positions) {
                running.plan(usize::from(decodes), &self.limits, bytes);
                index += 1;
            } else if !self.drop_spares() {
                self.preempt_last();
            }
        }
    }

    /// Frees blocks that are held twice over. Answers whether there were any.
    fn drop_spares(&mut self) -> bool {
        let Scheduler { running, cache, .. } = self;
        running.iter().fold(false, |any, running| cache.drop_spares(&running.table) | any)
    }

    fn preempt_last(&mut self) {
        if let Some(last) = self.running.len().checked_sub(1) {
            let sequence = self.vacate(last);
            self.waiting.insert(sequence);
            self.preemptions += 1;
        }
    }

    /// Shares what the decodes have left among the prompts.
    fn schedule_prefills(&mut self, bytes: &mut FrameBudget) {
        let shares = share::share(&self.prompts(), self.unplanned());
        let prompts = self.running.iter_mut().filter(|running| is_prompt(running));
        for (running, tokens) in prompts.zip(shares) {
            running.plan(tokens, &self.limits, bytes);
        }
    }

    /// Remaining tokens of the running sequences that have something to run and no decode row.
    fn prompts(&self) -> Vec<usize> {
        self.running.iter().filter(|running| is_prompt(running)).map(Running::remaining).collect()
    }

    /// What is left of the step's budget.
    fn unplanned(&self) -> usize {
        self.limits.max_step_tokens - self.running.iter().map(|running| running.planned).sum::<usize>()
    }

    /// What a row has computed can be reused from now on. Nothing comes of it if the sequence has left its blocks.
    fn publish(&mut self, step: u64, row: &InFlightRow) {
        let Some(index) = self.position(row.sequence) else { return };
        let Running { sequence, table, first_step, .. } = &mut self.running[index];
        // A row from before a preemption would have been computed in other blocks. There is none as long as nobody is
        // preempted during prefill, but a wrong block in the tree would be wrong for everybody.
        if *first_step <= step {
            self.cache.publish(table, &sequence.salt, &sequence.tokens, row.computed);
        }
    }

    /// What the model makes of a part of the prompt has come back, or the prompt has been computed and that is all. Nothing
    /// comes of what is known already, or of a sequence that has been cancelled meanwhile.
    fn receive_prompt(&mut self, row: &InFlightRow, mut tokens: Vec<PromptToken>) -> Option<Output> {
        let known = self.find(row.sequence)?.take_scores(&row.scores);
        tokens.drain(..known.min(tokens.len()));
        let finish = (row.end == Some(End::Prompt)).then_some(Finish::Length);
        if finish.is_some() {
            self.cancel(row.sequence);
        }
        let is_news = finish.is_some() || !tokens.is_empty();
        is_news.then_some(Output { sequence: row.sequence, news: News::Prompt(tokens), finish })
    }

    /// The shards have no result for a row: its sequence fails. Nothing comes of it if the sequence has ended meanwhile.
    fn fail(&mut self, id: SeqId, error: RowError) -> Option<Output> {
        let failure = RowFailure::new(error);
        let sequence = match self.position(id) {
            Some(index) => &self.running[index].sequence,
            None => self.waiting.get(id)?,
        };
        if let RowFailure::NotFinite(_) = failure {
            // The keys and values of its earlier positions may be broken as well, and some of them may have come from the cache.
            self.cache.forget(&sequence.salt, &sequence.tokens);
        }
        self.cancel(id);
        Some(Output { sequence: id, news: News::Failed(failure), finish: None })
    }

    /// The vector of a prompt has come back, which is all that was wanted.
    fn receive_vector(&mut self, id: SeqId, values: Vec<f32>) -> Option<Output> {
        self.find(id)?;
        self.cancel(id);
        Some(Output { sequence: id, news: News::Vector(values), finish: Some(Finish::Length) })
    }

    /// A token has come back. Nothing comes of it if the sequence has ended or was cancelled meanwhile.
    fn receive(&mut self, id: SeqId, sampled: Sampled) -> Option<Output> {
        // If it was preempted meanwhile, the token is as good as ever.
        let finish = self.find(id)?.push(sampled.token);
        if finish.is_some() {
            self.cancel(id);
        }
        Some(Output { sequence: id, news: News::Token(sampled), finish })
    }

    /// A sequence, running or waiting.
    fn find(&mut self, id: SeqId) -> Option<&mut Sequence> {
        match self.position(id) {
            Some(index) => Some(&mut self.running[index].sequence),
            None => self.waiting.get_mut(id),
        }
    }

    fn position(&self, id: SeqId) -> Option<usize> {
        self.running.binary_search_by_key(&id, |running| running.sequence.id).ok()
    }

    /// Takes slot and blocks back.
    fn vacate(&mut self, index: usize) -> Sequence {
        let Running { sequence, slot, table, .. } = self.running.remove(index);
        self.cache.release(table);
        self.free_slots.push(slot);
        self.released.push(slot);
        sequence
    }
}

/// Whether it has something to run and no decode row.
fn is_prompt(running: &Running) -> bool {
    running.planned == 0 && running.remaining() > 0
}

fn all_slots(limits: &Limits) -> Vec<Slot> {
    // Reversed, so that they are handed out from the beginning.
    (0..limits.max_sequences as u32).rev().map(Slot).collect()
}
