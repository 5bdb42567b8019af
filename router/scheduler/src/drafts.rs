//! The rows of a step that get drafts, and how many.
//!
//! A draft is worth its time if it raises the number of tokens per second. With the linear
//! [cost model](super::cost_model), one more token in a step adds the same time whatever else is in
//! it. So drafts of all sequences are taken in the order of their chance to be accepted, as long as
//! the next one is likely enough, as DSpark does. The chance of the n-th draft of a sequence is the
//! n-th power of its [confidence](super::draft_source::DraftSource::confidence).
//!
//! A draft model guesses the n-th drafts of all sequences in one pass, whose time they share. So a
//! pass is taken if all sequences that can have an n-th draft together make it worth its time.
//!
//! Recurrent states cannot go back to the last right draft. Before a row with drafts they are kept
//! in a checkpoint, and if a draft is wrong, the next row begins with them and runs the right ones
//! again. The time of that is a part of the cost of a draft.
//!
//! Drafts need the last token of their sequence, so they cannot be planned while a row of it is in
//! flight. If drafts are expected to pay, the scheduler plans no step ahead; otherwise it does as
//! if there were no drafts. A step with drafts is answered before the next one is planned, because
//! only the answer says where its sequences go on.

use std::collections::BinaryHeap;

use super::cost_model::StepLoad;
use super::frame_budget::FrameBudget;
use super::limits::SchedulerLimits;
use super::running::RunningSequence;
use super::state::Scheduler;

/// Number of tokens that the drafters read in one step, for all sequences and earlier answers
/// together. Reading takes time in which nothing else is planned.
const READ_PER_STEP: usize = 4096;

/// Number by which a draft must be worth more than its time, because predictions are not exact.
const MARGIN: f64 = 1.1;

/// The same where recurrent states are copied before drafts, and after a wrong one. The cost model
/// does not tell the time of a copy from that of the tokens.
const MARGIN_WITH_COPIES: f64 = 1.3;

/// The same for drafts of a draft model, before which a sequence is read: where they hardly pay,
/// they stop and begin again, and what was read is lost.
const MARGIN_WITH_MODEL: f64 = 1.25;

/// A sequence that could have one more draft.
#[derive(Debug, PartialEq)]
struct Candidate {
    /// The chance that the draft is accepted.
    chance: f64,
    /// The chance that all drafts before it are accepted, and it is not.
    wrong: f64,
    /// Index among the running sequences.
    index: usize,
    /// Number of drafts that the sequence has.
    drafts: usize,
}

impl Eq for Candidate {}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // Of equal chances, the first sequence comes first.
        self.chance.total_cmp(&other.chance).then(other.index.cmp(&self.index))
    }
}

/// The expected time and tokens of a step.
struct StepValue {
    /// Its time in microseconds.
    time: f64,
    /// Number of tokens that it gives to sequences.
    tokens: f64,
    /// Number by which more tokens must be worth more than their time.
    margin: f64,
    /// Whether all drafts are taken, worth their time or not.
    takes_all: bool,
}

impl StepValue {
    /// Whether so many more tokens are worth so much more time.
    fn gains(&self, tokens: f64, time: f64) -> bool {
        self.takes_all || tokens * self.time > self.margin * self.tokens * time
    }

    /// Whether a pass of the draft model is worth its time. The draft `first` and each of the
    /// candidates with as many drafts before it share the pass, and each costs `cost` beside it.
    fn gains_by_pass(&self, first: &Candidate, others: &BinaryHeap<Candidate>, cost: f64, pass: f64) -> bool {
        let sharing = || others.iter().filter(|other| other.drafts == first.drafts);
        let chances: f64 = sharing().map(|other| other.chance).sum();
        self.gains(first.chance + chances, pass + (1 + sharing().count()) as f64 * cost)
    }

    fn add(&mut self, tokens: f64, time: f64) {
        self.time += time;
        self.tokens += tokens;
    }
}

impl Scheduler {
    /// Whether rows may have drafts.
    pub(super) fn has_drafts(&self) -> bool {
        let SchedulerLimits { max_drafts, .. } = self.limits;
        // The position of a wrong draft is run again.
        let keeps_states = self.limits.keeps_states() && self.cache.draft_checkpoints() > 0;
        let can_verify = max_drafts > 0 && (self.limits.reruns_positions() || keeps_states);
        self.options.drafts > 0 && can_verify && self.quarantine.is_empty()
    }

    /// Lets the drafters read tokens that have come.
    pub(super) fn read_for_drafts(&mut self) {
        let mut left = if self.has_drafts() { READ_PER_STEP } else { 0 };
        left -= self.earlier.read(left);
        for running in &mut self.running {
            left -= running.sequence.read_for_drafts(left, &self.earlier);
        }
    }

    /// Whether the next step waits for the answers to the steps in flight: one has drafts, or the
    /// next one is expected to.
    pub(super) fn waits_for_drafts(&self) -> bool {
        let Some(last) = self.in_flight.back().filter(|_| self.has_drafts()) else { return false };
        let is_drafted = last.rows.iter().any(|row| !row.drafts.is_empty());
        is_drafted || self.choose_drafts(self.limits.max_step_tokens, false).iter().any(|&drafts| drafts > 0)
    }

    /// Gives rows of the step drafts, as many as the step has room for and as are worth their time.
    pub(super) fn schedule_drafts(&mut self, bytes: &mut FrameBudget) {
        if !self.has_drafts() {
            return;
        }
        let chosen = self.choose_drafts(self.unplanned_tokens(), true);
        let keeps_states = self.limits.keeps_states();
        let mut free = self.free_draft_checkpoints();
        for (running, count) in self.running.iter_mut().zip(chosen) {
            let lacks_checkpoint = keeps_states && running.kept().is_none();
            // Blocks come last: a sequence keeps them, even if its drafts do not fit the messages.
            if count == 0 || lacks_checkpoint && free == 0 || !running.take_draft_bytes(count, bytes) {
                continue;
            }
            if lacks_checkpoint {
                let Some(checkpoint) = self.cache.reserve_checkpoint() else { continue };
                running.keep_in(checkpoint);
                free -= 1;
            }
            // No sequence is preempted for a guess that does not fit into the blocks.
            let positions = running.positions_after(1 + count);
            if self.cache.cover(&mut running.table, positions) {
                running.plan_drafts(count);
            }
        }
    }

    /// Number of checkpoints that sequences may still take for their drafts.
    fn free_draft_checkpoints(&self) -> usize {
        let kept = self.running.iter().filter(|running| running.kept().is_some()).count();
        self.cache.draft_checkpoints().saturating_sub(kept)
    }

    /// The number of drafts for each running sequence, for up to `room` drafts. If the step
    /// `is_planned`, only its rows that decode get some; otherwise all sequences that will decode.
    fn choose_drafts(&self, room: usize, is_planned: bool) -> Vec<usize> {
        let mut chosen = vec![0; self.running.len()];
        let mut candidates = BinaryHeap::new();
        let mut load = StepLoad::default();
        let has_checkpoint = !self.limits.keeps_states() || self.free_draft_checkpoints() > 0;
        let margin = match self.limits {
            limits if limits.keeps_states() => MARGIN_WITH_COPIES,
            limits if limits.has_draft_model => MARGIN_WITH_MODEL,
            _ => MARGIN,
        };
        let usual = self.model_drafts.usual();
        for (index, running) in self.running.iter().enumerate() {
            if !running.is_decoding() || is_planned && running.planned_tokens() == 0 {
                continue;
            }
            running.add_decode(&mut load);
            let can_verify = has_checkpoint || running.kept().is_some();
            if let Some(confidence) = running.confidence(is_planned, usual).filter(|_| can_verify) {
                candidates.push(Candidate { chance: confidence, wrong: 1.0 - confidence, index, drafts: 0 });
            }
        }
        let mut step = StepValue {
            time: self.costs.predict(&load),
            tokens: load.sampled(),
            margin,
            takes_all: self.options.always_draft,
        };
        let (pass, mut passes) = (self.pass_micros(), 0);
        for _ in 0..room.min(self.limits.max_drafts) {
            let Some(next) = candidates.pop() else { break };
            let Candidate { chance, wrong, index, drafts } = next;
            let running = &self.running[index];
            let cost = self.draft_cost(running, drafts, wrong) + self.read_cost(running, drafts, chance);
            let opens_pass = pass > 0.0 && drafts >= passes;
            if !step.gains(chance, cost) || opens_pass && !step.gains_by_pass(&next, &candidates, cost, pass)
            {
                break;
            }
            if opens_pass {
                passes = drafts + 1;
                step.add(0.0, pass);
            }
            step.add(chance, cost);
            chosen[index] = drafts + 1;
            let most = running.most_drafts().min(self.options.drafts);
            let confidence = running.confidence(is_planned, usual);
            if let Some(confidence) = confidence.filter(|_| drafts + 1 < most) {
                let (right, wrong) = (chance * confidence, chance * (1.0 - confidence));
                candidates.push(Candidate { chance: right, wrong, index, drafts: drafts + 1 });
            }
        }
        chosen
    }

    /// The time that the draft of a sequence after so many others adds to a step. With the chance
    /// `wrong` it is the first wrong one.
    fn draft_cost(&self, running: &RunningSequence, others: usize, wrong: f64) -> f64 {
        let mut draft = StepLoad::default();
        running.add_draft(others, &mut draft);
        let cost = self.costs.predict_additional(&draft);
        if !self.limits.keeps_states() {
            return cost;
        }
        let mut rerun = StepLoad::default();
        running.add_rerun(others, &mut rerun);
        cost + wrong * self.costs.predict_additional(&rerun)
    }

    /// The time that the first draft of a sequence adds to its steps because the draft model reads
    /// the sequence for it. Its chance is `chance`.
    fn read_cost(&self, running: &RunningSequence, others: usize, chance: f64) -> f64 {
        if !self.limits.has_draft_model || others > 0 {
            return 0.0;
        }
        let (unread, remaining) = running.unread();
        self.model_drafts.read_micros(unread, remaining, chance)
    }

    /// The time of a pass of the draft model, if the shards have one.
    fn pass_micros(&self) -> f64 {
        if self.limits.has_draft_model { self.model_drafts.pass_micros() } else { 0.0 }
    }
}
