//! The prompt budget: how many prompt tokens a step may run beside the rows that decode.
//!
//! A stream gets one token per step, so the time of a step is the gap between two tokens of every
//! stream. While sequences decode, prompts therefore get as many tokens as fit a time. The time is
//! what the decode rows leave of the target for the gap, and never less than the decode rows take
//! themselves, so prompts progress however low the target is. The times are predictions of the
//! [cost model](super::cost_model); until the shards have reported the time of a step, only the
//! limits of the shards apply.
//!
//! When few sequences decode and many prompts wait for their first token, prompts get more time:
//! the *weight* of the prompts grows with the ratio of these numbers, from [`MIN_WEIGHT`] to
//! [`MAX_WEIGHT`]. The division of a prompt into steps does not change how many tokens the streams
//! lose to it, but each step delays the first token of the prompt by the time of the decode rows.
//! So many requests that arrive at once start soon, and streams are smooth while single prompts
//! arrive.
//!
//! If several tenants share the steps, their limit ([`tenant_time`](super::tenant_time)) holds,
//! too.
//!
//! While nothing decodes, a step has as many prompt tokens as are efficient: larger steps would
//! only delay the next request.
//!
//! Sarathi-Serve (Agrawal et al., OSDI 2024) bounds the gap in the same way with a fixed number of
//! tokens per step, which does not suit devices that differ in speed by a factor of a thousand.

use super::cost_model::StepLoad;
use super::prompt_shares::{self, PromptNeed};
use super::running::RunningSequence;
use super::state::Scheduler;

/// Ratio of the time that prompts may always have in a step to the time of its decode rows, for one
/// prompt beside one stream. It grows with the number of prompts for each stream.
const WEIGHT: f64 = 3.0;
/// Smallest ratio.
const MIN_WEIGHT: f64 = 1.0;
/// Largest ratio. A step then takes five times the time of its decode rows.
const MAX_WEIGHT: f64 = 4.0;

/// Number of prompt tokens that a step without decode rows may always have. Products of matrices
/// with fewer rows are less efficient in ways that the cost model does not know.
pub(super) const MIN_EFFICIENT_TOKENS: usize = 128;

/// A prompt of which a part has been computed.
struct PartialPrompt {
    /// Number of computed positions.
    start: usize,
    need: PromptNeed,
}

impl Scheduler {
    /// Maximum number of prompt tokens in the step being planned, if the running sequences with the
    /// indices `leaving` leave. The rows that decode have been planned.
    pub(super) fn prompt_budget(&self, leaving: &[usize]) -> usize {
        let returned: usize = leaving.iter().map(|&index| self.running[index].planned_tokens()).sum();
        let limit = self.unplanned_tokens() + returned;
        match self.prompt_micros(leaving) {
            Some(micros) => self.prompt_tokens_within(&self.partial_prompts(leaving), micros, limit),
            None if self.costs.is_known() => {
                limit.min(self.costs.efficient_tokens().max(MIN_EFFICIENT_TOKENS))
            }
            None => limit,
        }
    }

    /// Number of prompt tokens that each of the next steps has at least, if the running sequences
    /// except those with the indices `leaving` go on and the prediction is right.
    pub(super) fn min_prompt_budget(&self, leaving: &[usize]) -> usize {
        let limits = &self.limits;
        // However many sequences decode, prompts get at least this part of the limit.
        let limit = limits.max_step_tokens - (limits.max_sequences - 1);
        if !self.costs.is_known() {
            return limit;
        }
        let mut load = StepLoad::default();
        self.staying(leaving).for_each(|running| running.add_decode(&mut load));
        let micros = self.costs.predict(&load).max(self.options.target_micros / (1.0 + MIN_WEIGHT));
        // Prompts have at least half of a step that tenants share.
        let micros = self.step_limit.map_or(micros, |limit| micros.min(limit / 2.0));
        self.prompt_tokens_within(&[self.endless_prompt()], micros, limit)
    }

    /// The time in microseconds by which prompts may extend the step being planned; `None` if
    /// nothing decodes or no time is known.
    fn prompt_micros(&self, leaving: &[usize]) -> Option<f64> {
        let (mut load, mut decoding) = (StepLoad::default(), 0);
        for running in self.staying(leaving).filter(|running| running.is_decoding() && !running.held) {
            running.add_decode(&mut load);
            decoding += 1;
        }
        let decode_micros = self.costs.predict(&load);
        let shared = self.step_limit.map(|limit| (limit - decode_micros).max(decode_micros));
        if decoding == 0 || !self.costs.is_known() {
            return shared;
        }
        let prefills = self.staying(leaving).filter(|running| running.is_prefill()).count();
        let prompts = prefills + self.waiting.len().min(self.free_slots.len() + leaving.len());
        let weight = (WEIGHT * prompts as f64 / f64::from(decoding)).clamp(MIN_WEIGHT, MAX_WEIGHT);
        let own = (self.options.target_micros - decode_micros).max(weight * decode_micros);
        Some(shared.map_or(own, |shared| own.min(shared)))
    }

    /// The needs of a running prompt, with the tokens of all prompts of its tenant.
    pub(super) fn prompt_need(&self, running: &RunningSequence) -> PromptNeed {
        let need = running.prompt_need(&self.limits);
        if self.step_limit.is_none() || running.first_step == self.next_step {
            return need;
        }
        let own =
            |other: &&RunningSequence| other.is_prefill() && other.sequence.tenant == running.sequence.tenant;
        let tenant_tokens = self.running.iter().filter(own).map(RunningSequence::remaining).sum();
        PromptNeed { tenant_tokens, ..need }
    }

    fn partial_prompts(&self, leaving: &[usize]) -> Vec<PartialPrompt> {
        let prefills = self.staying(leaving).filter(|running| running.is_prefill());
        let partial = |running: &RunningSequence| PartialPrompt {
            start: running.positions_after(0),
            need: self.prompt_need(running),
        };
        let prompts: Vec<_> = prefills.map(partial).collect();
        // Without running prompts, the budget is that of a prompt to be admitted.
        if prompts.is_empty() { vec![self.endless_prompt()] } else { prompts }
    }

    /// The longest prompt, as if it could be divided.
    fn endless_prompt(&self) -> PartialPrompt {
        PartialPrompt {
            start: 0,
            need: PromptNeed { remaining: self.limits.max_sequence_tokens, least: 1, tenant_tokens: 0 },
        }
    }

    /// Whether prompts with these remaining lengths leave room to another one that joins them when
    /// the running sequences with the indices `leaving` have left.
    pub(super) fn has_prompt_room(&self, remaining: &[usize], leaving: &[usize]) -> bool {
        let budget = self.prompt_budget(leaving);
        match self.limits.needs_whole_prompts() {
            true => prompt_shares::has_room_for_whole(remaining, budget),
            false => prompt_shares::has_room(remaining, budget),
        }
    }

    /// The largest number of tokens, from 1 or 2 to `limit`, that these prompts can share in
    /// `micros` microseconds.
    fn prompt_tokens_within(&self, prompts: &[PartialPrompt], micros: f64, limit: usize) -> usize {
        let needs: Vec<_> = prompts.iter().map(|prompt| prompt.need).collect();
        let fits = |tokens: usize| {
            let mut load = StepLoad::default();
            for (prompt, share) in prompts.iter().zip(prompt_shares::share(&needs, tokens)) {
                load.add(prompt.start, share, share == prompt.need.remaining);
            }
            self.costs.predict_additional(&load) <= micros
        };
        if fits(limit) {
            return limit;
        }
        // A step of `fitting` tokens is short enough, and a step of `too_many` is not. One token is
        // that of the first prompt, and a prompt of another tenant may have another one.
        let least = if self.step_limit.is_some() { 2 } else { 1 };
        let (mut fitting, mut too_many) = (limit.min(least), limit);
        while too_many - fitting > 1 {
            let middle = fitting.midpoint(too_many);
            if fits(middle) { fitting = middle } else { too_many = middle }
        }
        fitting
    }
}
