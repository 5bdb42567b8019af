//! A sequence: what it is, and what it holds while it runs.

use std::ops::Range;
use std::sync::Arc;

use millrace_proto::rules::{MAX_TOP_N, check_sampling, is_mask};
use millrace_proto::{self as proto, Admission, Row, Sampling};

use super::answer::{End, InFlightRow};
use super::cache::{BlockTable, Salt};
use super::frame::{self, FrameBudget, RowContent};
use super::limits::{self, Impossible, Limits};
use super::quarantine::Suspicion;
use super::request::{Finish, Mask, Pooling, Request};

/// A sequence for as long as the scheduler knows it. A lower id goes first: ids rise in the order of arrival, put
/// off by priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqId {
    /// The step before which it arrived, later by what its priority costs.
    pub(super) due: u64,
    /// Sequences that arrived before it.
    pub(super) serial: u64,
}

/// A row of the shards' table of running sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub(super) u32);

/// A sequence of tokens to be continued. It is all that is needed to run it, again or for the first time.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: SeqId,
    pub(super) salt: Salt,
    /// The prompt and the generated tokens that have come back.
    pub(super) tokens: Vec<u32>,
    prompt_len: usize,
    /// Tokens that steps in flight will have sampled; only the shards know them yet.
    pending: usize,
    max_new_tokens: usize,
    stop_tokens: Arc<[u32]>,
    sampling: Sampling,
    /// Bytes of `sampling` in an admission.
    pub(super) sampling_bytes: usize,
    choice: Choice,
    /// Alternatives to report at each token of the prompt, if anything is.
    prompt_logprobs: Option<u32>,
    /// Tokens of the prompt of which it is known what the model makes of them. The first one follows nothing.
    scored: usize,
    pooling: Option<Pooling>,
    /// Positions of those that went past it since it is in the queue.
    pub(super) overtaken: usize,
    /// Its part in losses of the shards.
    pub(super) suspicion: Suspicion,
}

/// What may come after the tokens that are known here.
#[derive(Debug)]
enum Choice {
    /// Anything, always.
    Free,
    /// It is not known yet: the sequence waits.
    Held,
    /// One of these.
    Among(Mask),
}

impl Sequence {
    pub(super) fn new(id: SeqId, request: Request) -> Self {
        Sequence {
            id,
            salt: request.cache_salt,
            prompt_len: request.prompt.len(),
            tokens: request.prompt,
            pending: 0,
            max_new_tokens: if request.pooling.is_some() { 0 } else { request.max_new_tokens as usize },
            stop_tokens: request.stop_tokens,
            sampling_bytes: frame::sampling(&request.sampling),
            sampling: request.sampling,
            choice: request.mask.map_or(Choice::Free, Choice::Among),
            prompt_logprobs: request.prompt_logprobs,
            scored: 1,
            pooling: request.pooling,
            overtaken: 0,
            suspicion: Suspicion::default(),
        }
    }

    /// Whether shards with these limits can run it.
    pub(super) fn check(&self, limits: &Limits) -> Result<(), Impossible> {
        limits.check(self.prompt_len, self.max_new_tokens)?;
        let vocab_size = limits.vocab_size;
        if let Some(&token) = self.tokens.iter().find(|&&token| token as usize >= vocab_size) {
            return Err(Impossible::UnknownToken { token, vocab_size });
        }
        check_sampling(&self.sampling, vocab_size)?;
        let tokens = self.prompt_len + self.max_new_tokens;
        frame::check_admission(limits, tokens, self.sampling_bytes)
            .map_err(|(needed, room)| Impossible::OverFrame { tokens, needed, room })?;
        let limit = vocab_size.min(MAX_TOP_N);
        if let Some(given) = self.prompt_logprobs.filter(|&given| given as usize > limit) {
            return Err(Impossible::Scores { given, limit });
        }
        match &self.choice {
            Choice::Among(mask) if !is_mask(mask, vocab_size) => Err(Impossible::Mask),
            _ => Ok(()),
        }
    }

    /// Tokens, known or pending.
    pub(super) fn len(&self) -> usize {
        self.tokens.len() + self.pending
    }

    /// Whether all tokens are known here, as they must be for an admission.
    pub(super) fn is_known(&self) -> bool {
        self.pending == 0
    }

    /// Whether it must not run before it is [released](Self::release).
    pub(super) fn is_held(&self) -> bool {
        matches!(self.choice, Choice::Held)
    }

    /// Whether its next token can be sampled: a constrained one must know the token before it, and what may follow.
    fn can_go_on(&self) -> bool {
        match self.choice {
            Choice::Free => true,
            Choice::Held => false,
            Choice::Among(_) => self.is_known(),
        }
    }

    /// What may come next, if so many tokens have been generated. What is said of another state is stale or early.
    pub(super) fn release(&mut self, generated: usize, mask: Mask) {
        if self.is_held() && self.tokens.len() - self.prompt_len == generated {
            self.choice = Choice::Among(mask);
        }
    }

    /// Whether no more is in flight than may be.
    pub(super) fn is_sound(&self) -> bool {
        match self.choice {
            Choice::Free => true,
            Choice::Held => self.is_known(),
            Choice::Among(_) => self.pending <= 1,
        }
    }

    /// Whether the row runs one generated token and samples the next.
    pub(super) fn decodes(&self, row: &Row) -> bool {
        row.sample && row.count == 1 && row.start as usize >= self.prompt_len
    }

    /// Whether the model must see all of its tokens, whatever is cached.
    pub(super) fn is_computed_whole(&self) -> bool {
        let is_scored = self.prompt_logprobs.is_none() || self.scored >= self.prompt_len;
        !is_scored || self.pooling == Some(Pooling::Mean)
    }

    /// The tokens of the prompt that are to be scored by the states of these positions.
    fn scores(&self, positions: &Range<usize>) -> Range<usize> {
        let end = (positions.end + 1).min(self.prompt_len);
        let wanted = self.prompt_logprobs.is_some() && end > self.scored;
        if wanted { positions.start + 1..end } else { 0..0 }
    }

    /// These tokens of the prompt have been scored; answers how many of them had been before.
    pub(super) fn take_scores(&mut self, scores: &Range<usize>) -> usize {
        let known = self.scored.saturating_sub(scores.start);
        self.scored = self.scored.max(scores.end);
        known
    }

    /// Positions that it will hold in the cache at most.
    pub(super) fn max_positions(&self) -> usize {
        limits::positions(self.prompt_len, self.max_new_tokens)
    }

    /// Takes the oldest pending token's value.
    pub(super) fn push(&mut self, token: u32) -> Option<Finish> {
        self.pending -= 1;
        self.tokens.push(token);
        if !matches!(self.choice, Choice::Free) {
            self.choice = Choice::Held;
        }
        if self.tokens.len() >= self.prompt_len + self.max_new_tokens {
            Some(Finish::Length)
        } else if self.stop_tokens.contains(&token) {
            Some(Finish::StopToken)
        } else {
            None
        }
    }

    /// What is pending will never come.
    pub(super) fn lose_pending(&mut self) {
        self.pending = 0;
    }
}

/// A sequence that has a slot and blocks.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) sequence: Sequence,
    pub(super) slot: Slot,
    pub(super) table: BlockTable,
    /// The step that admitted it.
    pub(super) first_step: u64,
    /// How many of its blocks the shards have been told.
    told_blocks: usize,
    /// Positions that are in the cache, or will be when the planned steps have run.
    computed: usize,
    /// Tokens that it runs in the step being planned.
    pub(super) planned: usize,
}

impl Running {
    /// A sequence whose first `cached` positions are in its blocks already.
    pub(super) fn new(
        sequence: Sequence,
        slot: Slot,
        table: BlockTable,
        cached: usize,
        first_step: u64,
    ) -> Self {
        Running { sequence, slot, table, first_step, told_blocks: 0, computed: cached, planned: 0 }
    }

    pub(super) fn admission(&self) -> Admission {
        Admission {
            slot: self.slot.0,
            tokens: self.sequence.tokens.clone(),
            prompt_len: self.sequence.prompt_len as u32,
            sampling: Some(self.sequence.sampling.clone()),
            pooling: match self.sequence.pooling {
                None => proto::Pooling::None,
                Some(Pooling::Last) => proto::Pooling::Last,
                Some(Pooling::Mean) => proto::Pooling::Mean,
            }
            .into(),
        }
    }

    /// Tokens that could be run next: 1 for a sequence that decodes, more during prefill, 0 if it only waits for its
    /// last tokens to come back, or to hear what may come next.
    pub(super) fn remaining(&self) -> usize {
        let wanted = self.sequence.len().min(self.sequence.max_positions());
        if self.sequence.can_go_on() { wanted - self.computed } else { 0 }
    }

    /// Positions that the block table must cover before `count` more tokens can be run.
    pub(super) fn positions_after(&self, count: usize) -> usize {
        self.computed + count
    }

    /// The parts that decide the size of a row of so many tokens.
    fn content(&self, count: usize, hidden_size: usize) -> RowContent {
        let sequence = &self.sequence;
        let complete = self.computed + count == sequence.len();
        let samples = complete && sequence.max_new_tokens > 0;
        let mask_words = match &sequence.choice {
            Choice::Among(mask) if samples => mask.len(),
            _ => 0,
        };
        RowContent {
            mask_words,
            top_n: if samples { sequence.sampling.top_n as usize } else { 0 },
            scores: sequence.scores(&(self.computed..self.computed + count)).len(),
            score_top_n: sequence.prompt_logprobs.unwrap_or(0) as usize,
            features: if complete && sequence.pooling.is_some() { hidden_size } else { 0 },
        }
    }

    /// Plans up to `count` tokens, as many as the messages of the step have room for, and takes their bytes from the budget. Where the whole row
    /// does not fit, a row without the last token may, because only that one can have a mask, alternatives or a vector.
    pub(super) fn plan(&mut self, count: usize, limits: &Limits, budget: &mut FrameBudget) {
        self.planned = 0;
        let content = self.content(count, limits.hidden_size);
        let scorable = budget.answer_left() / frame::scored_token(content.score_top_n);
        let shorter = count.saturating_sub(1).min(if content.scores > 0 { scorable } else { count });
        for count in [count, shorter] {
            if count > 0 && budget.take(self.content(count, limits.hidden_size).cost()) {
                self.planned = count;
                return;
            }
        }
    }

    /// The row that runs what is planned, if anything is, and what is to come of it; it samples if these are the last tokens.
    pub(super) fn run(&mut self) -> Option<(Row, InFlightRow)> {
        let (start, count) = (self.computed, std::mem::take(&mut self.planned));
        if count == 0 {
            return None;
        }
        self.computed += count;
        let scores = self.sequence.scores(&(start..self.computed));
        let complete = self.computed == self.sequence.len();
        let ends = complete && self.sequence.max_new_tokens == 0;
        let end = ends.then(|| self.sequence.pooling.map_or(End::Prompt, |_| End::Vector));
        let sample = complete && !ends;
        self.sequence.pending += usize::from(sample);
        let new_blocks = self.table.blocks[self.told_blocks..].iter().map(|block| block.0).collect();
        self.told_blocks = self.table.blocks.len();
        let allowed = match &self.sequence.choice {
            Choice::Among(mask) if sample => mask.to_vec(),
            _ => Vec::new(),
        };
        let score = self.sequence.prompt_logprobs.filter(|_| !scores.is_empty());
        let (sequence, slot, computed) = (self.sequence.id, self.slot, self.computed);
        let row = Row {
            slot: slot.0,
            start: start as u32,
            count: count as u32,
            new_blocks,
            sample,
            allowed,
            score,
        };
        Some((row, InFlightRow { sequence, slot, computed, sample, scores, end }))
    }
}
