//! The scheduler: which tokens of which sequences run in the next step, and where their keys and values live.
//!
//! A pure state machine without clock, socket or chance: [`add`](Scheduler::add) and [`cancel`](Scheduler::cancel)
//! change what is wanted, [`plan`](Scheduler::plan) makes the next step, [`apply`](Scheduler::apply) takes in what came
//! of one. Steps may be planned ahead of the answers to earlier ones; answers come in the order of the steps.
//!
//! A step is a mixed batch under one budget of tokens. Sequences that decode go first, one token each, so a long
//! prompt never stalls a running stream; prompts share the rest in chunks ([`share`]). Waiting sequences are admitted
//! strictly in order, once there is room for their tokens and for what those before them need meanwhile. When blocks
//! run out the youngest running sequence goes back to the queue with the tokens it has, to be computed again. The
//! oldest is never preempted for another, so there is always progress.

mod blocks;
mod integrity;
mod limits;
mod request;
mod sequence;
mod share;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, VecDeque};

use millrace_proto::{Admission, Sampled, Step, StepOutput};

use self::blocks::BlockPool;
use self::sequence::{Running, Sequence};

pub use self::limits::{Impossible, Limits, NoRoom};
pub use self::request::{Finish, Request};
pub use self::sequence::{SeqId, Slot};

/// See the [module](self).
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    next_id: u64,
    /// The queue. Its order is that of arrival, so a preempted sequence is back at its head.
    waiting: BTreeMap<SeqId, Sequence>,
    /// Oldest first; all of them are older than any that waits.
    running: Vec<Running>,
    free_slots: Vec<Slot>,
    /// Free slots that the shards believe to be taken.
    released: Vec<Slot>,
    pool: BlockPool,
    next_step: u64,
    /// Steps planned and not yet answered, oldest first.
    in_flight: VecDeque<InFlight>,
    preemptions: u64,
}

/// What a planned step will answer.
#[derive(Debug)]
struct InFlight {
    step: u64,
    /// Whose token is sampled, in the order of the rows. The slot may have changed hands by the time of the answer.
    samples: Vec<(SeqId, Slot)>,
}

/// A step to be sent to the shards.
#[derive(Debug)]
pub struct Plan {
    /// The step; it has at least one row.
    pub step: Step,
    /// Sequences that left the queue with it; a preempted one does so again.
    pub admitted: Vec<SeqId>,
}

/// A token that came back.
#[derive(Debug)]
pub struct Output {
    /// Whose.
    pub sequence: SeqId,
    /// The token.
    pub sampled: Sampled,
    /// Set on the last one; the scheduler has forgotten the sequence then.
    pub finish: Option<Finish>,
}

/// An answer that no step has asked for. The shard that gave it cannot be trusted any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the texts say what the fields are")]
pub enum Malformed {
    /// There is no step to answer.
    #[error("an answer to step {0}, but no step is in flight")]
    Unasked(u64),
    /// A step was left out, or answered twice.
    #[error("an answer to step {got} where step {expected} is due")]
    OutOfOrder { expected: u64, got: u64 },
    /// Not one token for each row that samples.
    #[error("{got} tokens for step {step}, which samples {expected}")]
    Count { step: u64, expected: usize, got: usize },
    /// The tokens are not in the order of the rows.
    #[error("step {step} has a token for slot {got} where slot {expected} is due")]
    WrongSlot { step: u64, expected: u32, got: u32 },
    /// A token that the model does not have.
    #[error("step {step} sampled token {token}, which is outside the vocabulary of {vocab_size}")]
    UnknownToken { step: u64, token: u32, vocab_size: usize },
}

/// Figures for the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Sequences in the queue.
    pub waiting: usize,
    /// Sequences that hold a slot.
    pub running: usize,
    /// Blocks that running sequences hold.
    pub used_blocks: usize,
    /// Times that a sequence had to go back to the queue, ever.
    pub preemptions: u64,
}

impl Scheduler {
    /// An empty scheduler.
    pub fn new(limits: Limits) -> Self {
        Scheduler {
            limits,
            next_id: 0,
            waiting: BTreeMap::new(),
            running: Vec::with_capacity(limits.max_sequences),
            free_slots: (0..limits.max_sequences as u32).rev().map(Slot).collect(),
            released: Vec::new(),
            pool: BlockPool::new(limits.num_blocks, limits.block_size),
            next_step: 0,
            in_flight: VecDeque::new(),
            preemptions: 0,
        }
    }

    /// Puts a request at the end of the queue.
    ///
    /// # Errors
    /// If it could not run even alone.
    pub fn add(&mut self, request: Request) -> Result<SeqId, Impossible> {
        self.limits.check(request.prompt.len(), request.max_new_tokens as usize)?;
        let vocab_size = self.limits.vocab_size;
        if let Some(&token) = request.prompt.iter().find(|&&token| token as usize >= vocab_size) {
            return Err(Impossible::UnknownToken { token, vocab_size });
        }
        let id = SeqId(self.next_id);
        self.next_id += 1;
        self.waiting.insert(id, Sequence::new(id, request));
        Ok(id)
    }

    /// Forgets a sequence, waiting or running; what it held is free for the next plan. Tokens of it that are still in
    /// flight are dropped when they arrive. An id that is not known (any more) is no error.
    pub fn cancel(&mut self, id: SeqId) {
        match self.position(id) {
            Some(index) => {
                let cancelled = self.running.remove(index);
                self.vacate(cancelled);
            }
            None => {
                self.waiting.remove(&id);
            }
        }
    }

    /// The next step, or nothing if there is nothing to run (before more answers have come in).
    pub fn plan(&mut self) -> Option<Plan> {
        // How many tokens each of `running` gets.
        let mut counts = self.schedule_decodes();
        let admissions = self.admit(&mut counts);
        self.schedule_prefills(&mut counts);

        let (mut rows, mut admit, mut admitted) = (Vec::new(), Vec::new(), Vec::new());
        for (running, &count) in self.running.iter_mut().zip(&counts) {
            if count > 0 {
                rows.push((running.sequence.id, running.run(count)));
            }
        }
        if rows.is_empty() {
            debug_assert!(admissions.is_empty(), "an admission always leaves something to run");
            return None;
        }
        for (id, admission) in admissions {
            admitted.push(id);
            admit.push(admission);
        }
        // Decodes before chunks, so that the rows of one kind lie together.
        rows.sort_by_key(|(_, row)| row.count > 1);

        let id = self.next_step;
        self.next_step += 1;
        let samples =
            rows.iter().filter(|(_, row)| row.sample).map(|(id, row)| (*id, Slot(row.slot))).collect();
        self.in_flight.push_back(InFlight { step: id, samples });
        let release = self.released.drain(..).map(|slot| slot.0).collect();
        let rows = rows.into_iter().map(|(_, row)| row).collect();
        Some(Plan { step: Step { id, release, admit, rows }, admitted })
    }

    /// Takes in the answer to the oldest step in flight.
    ///
    /// # Errors
    /// If it is not one; nothing has changed then.
    pub fn apply(&mut self, output: StepOutput) -> Result<Vec<Output>, Malformed> {
        let due = self.in_flight.front().ok_or(Malformed::Unasked(output.step))?;
        due.check(&output, self.limits.vocab_size)?;
        let samples = self.in_flight.pop_front().map(|step| step.samples).unwrap_or_default();
        let tokens = samples.into_iter().zip(output.sampled);
        Ok(tokens.filter_map(|((id, _), sampled)| self.receive(id, sampled)).collect())
    }

    /// All shards are new.
    pub fn recover(&mut self, limits: Limits) {
        for running in std::mem::take(&mut self.running) {
            self.waiting.insert(running.sequence.id, running.sequence);
        }
        for sequence in self.waiting.values_mut() {
            sequence.forget_pending();
        }
        let old = std::mem::replace(self, Scheduler::new(limits));
        self.next_id = old.next_id;
        self.waiting = old.waiting;
        self.preemptions = old.preemptions;
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
            running: self.running.len(),
            used_blocks: self.limits.num_blocks - self.pool.free().len(),
            preemptions: self.preemptions,
        }
    }

    /// One token for each sequence that decodes, the oldest first. A shortage of blocks is at the youngest's cost,
    /// which may be the one in need itself.
    fn schedule_decodes(&mut self) -> Vec<usize> {
        let mut counts = Vec::with_capacity(self.limits.max_sequences);
        while let Some(running) = self.running.get_mut(counts.len()) {
            let decodes = running.remaining() == 1;
            let positions = running.positions_after(1);
            if decodes && !self.pool.cover(&mut running.blocks, positions) {
                self.preempt_youngest();
            } else {
                counts.push(usize::from(decodes));
            }
        }
        counts
    }

    fn preempt_youngest(&mut self) {
        if let Some(youngest) = self.running.pop() {
            let sequence = self.vacate(youngest);
            self.waiting.insert(sequence.id, sequence);
            self.preemptions += 1;
        }
    }

    /// Admits from the head of the queue while there is room, and something left of the budget. `counts` grows with
    /// `running`.
    fn admit(&mut self, counts: &mut Vec<usize>) -> Vec<(SeqId, Admission)> {
        let budget = self.limits.max_step_tokens - counts.iter().sum::<usize>();
        let mut prompts: Vec<usize> = self.prompts(counts).map(|(_, remaining)| remaining).collect();
        let mut admissions = Vec::new();
        while share::has_room(&prompts, budget) {
            let Some(head) = self.waiting.first_entry() else { break };
            if !head.get().is_known() {
                break;
            }
            let reserve = growth_during_prefill(&self.limits, &self.running, &prompts, head.get().len());
            let needed = self.limits.blocks_for(head.get().len());
            if self.pool.free().len() < needed + reserve {
                break;
            }
            let Some(slot) = self.free_slots.pop() else { break };
            let sequence = head.remove();
            let mut blocks = Vec::with_capacity(self.limits.blocks_for(sequence.max_positions()));
            let covered = self.pool.cover(&mut blocks, sequence.len());
            debug_assert!(covered, "the pool has been asked above");
            let admitted = Running::new(sequence, slot, blocks);
            prompts.push(admitted.remaining());
            counts.push(0);
            admissions.push((admitted.sequence.id, admitted.admission()));
            self.running.push(admitted);
        }
        admissions
    }

    /// Shares what the decodes have left among the prompts.
    fn schedule_prefills(&self, counts: &mut [usize]) {
        let budget = self.limits.max_step_tokens - counts.iter().sum::<usize>();
        let (indices, prompts): (Vec<usize>, Vec<usize>) = self.prompts(counts).unzip();
        for (index, tokens) in indices.into_iter().zip(share::share(&prompts, budget)) {
            counts[index] = tokens;
        }
    }

    /// Index and remaining tokens of the running sequences that have something to run and no decode row.
    fn prompts<'a>(&'a self, counts: &'a [usize]) -> impl Iterator<Item = (usize, usize)> + 'a {
        let running = self.running.iter().zip(counts).enumerate();
        running
            .filter(|(_, (_, count))| **count == 0)
            .map(|(index, (running, _))| (index, running.remaining()))
            .filter(|(_, remaining)| *remaining > 0)
    }

    /// A token has come back. Nothing comes of it if the sequence has ended or was cancelled meanwhile.
    fn receive(&mut self, id: SeqId, sampled: Sampled) -> Option<Output> {
        let sequence = match self.position(id) {
            Some(index) => &mut self.running[index].sequence,
            // Preempted meanwhile; the token is as good as ever.
            None => self.waiting.get_mut(&id)?,
        };
        let finish = sequence.push(sampled.token);
        if finish.is_some() {
            self.cancel(id);
        }
        Some(Output { sequence: id, sampled, finish })
    }

    fn position(&self, id: SeqId) -> Option<usize> {
        self.running.binary_search_by_key(&id, |running| running.sequence.id).ok()
    }

    /// Takes slot and blocks back.
    fn vacate(&mut self, running: Running) -> Sequence {
        self.pool.release(running.blocks);
        self.free_slots.push(running.slot);
        self.released.push(running.slot);
        running.sequence
    }
}

/// Blocks that `running` may take until a newcomer of `len` tokens has its first new token. With so many in reserve it
/// is not preempted before that, so no work is ever done for nothing twice.
fn growth_during_prefill(limits: &Limits, running: &[Running], prompts: &[usize], len: usize) -> usize {
    // However many decode meanwhile, this much of each step is left to prompts.
    let budget = limits.max_step_tokens - (limits.max_sequences - 1);
    let steps = share::steps_to_finish(prompts.iter().copied().chain([len]), budget);
    let growth = |running: &Running| {
        let positions =
            (running.sequence.len() + steps + limits.block_size).min(running.sequence.max_positions());
        limits.blocks_for(positions).saturating_sub(running.blocks.len())
    };
    running.iter().map(growth).sum()
}

impl InFlight {
    fn check(&self, output: &StepOutput, vocab_size: usize) -> Result<(), Malformed> {
        let step = self.step;
        if output.step != step {
            return Err(Malformed::OutOfOrder { expected: step, got: output.step });
        }
        let (expected, got) = (self.samples.len(), output.sampled.len());
        if expected != got {
            return Err(Malformed::Count { step, expected, got });
        }
        for ((_, slot), sampled) in self.samples.iter().zip(&output.sampled) {
            if sampled.slot != slot.0 {
                return Err(Malformed::WrongSlot { step, expected: slot.0, got: sampled.slot });
            }
            let tokens = sampled.top.iter().map(|top| top.token).chain([sampled.token]);
            if let Some(token) = tokens.into_iter().find(|&token| token as usize >= vocab_size) {
                return Err(Malformed::UnknownToken { step, token, vocab_size });
            }
        }
        Ok(())
    }
}
