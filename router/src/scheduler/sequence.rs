//! A sequence: what it is, and what it holds while it runs.

use std::sync::Arc;

use millrace_proto::{Admission, Row, Sampling};

use super::blocks::BlockId;
use super::limits;
use super::request::{Finish, Request};

/// A sequence for as long as the scheduler knows it. Ids rise in the order of arrival, so a lower id is older.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqId(pub(super) u64);

/// A row of the shards' table of running sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub(super) u32);

/// A sequence of tokens to be continued. It is all that is needed to run it, again or for the first time.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: SeqId,
    /// The prompt and the generated tokens that have come back.
    tokens: Vec<u32>,
    prompt_len: usize,
    /// Tokens that steps in flight will have sampled; only the shards know them yet.
    pending: usize,
    max_new_tokens: usize,
    stop_tokens: Arc<[u32]>,
    sampling: Sampling,
}

impl Sequence {
    pub(super) fn new(id: SeqId, request: Request) -> Self {
        Sequence {
            id,
            prompt_len: request.prompt.len(),
            tokens: request.prompt,
            pending: 0,
            max_new_tokens: request.max_new_tokens as usize,
            stop_tokens: request.stop_tokens,
            sampling: request.sampling,
        }
    }

    /// Tokens, known or pending.
    pub(super) fn len(&self) -> usize {
        self.tokens.len() + self.pending
    }

    /// Tokens that have not come back never will.
    pub(super) fn forget_pending(&mut self) {
        self.pending = 0;
    }

    /// Whether all tokens are known here, as they must be for an admission.
    pub(super) fn is_known(&self) -> bool {
        self.pending == 0
    }

    /// Whether the last token it may have is known or pending.
    fn is_exhausted(&self) -> bool {
        self.len() >= self.prompt_len + self.max_new_tokens
    }

    /// Positions that it will hold in the cache at most.
    pub(super) fn max_positions(&self) -> usize {
        limits::positions(self.prompt_len, self.max_new_tokens)
    }

    /// Takes the oldest pending token's value.
    pub(super) fn push(&mut self, token: u32) -> Option<Finish> {
        self.pending -= 1;
        self.tokens.push(token);
        if self.tokens.len() >= self.prompt_len + self.max_new_tokens {
            Some(Finish::Length)
        } else if self.stop_tokens.contains(&token) {
            Some(Finish::StopToken)
        } else {
            None
        }
    }
}

/// A sequence that has a slot and blocks.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) sequence: Sequence,
    pub(super) slot: Slot,
    /// The block table: block `i` holds positions from `i * block_size`.
    pub(super) blocks: Vec<BlockId>,
    /// How many of `blocks` the shards have been told.
    told_blocks: usize,
    /// Positions that planned steps have run, or will have.
    computed: usize,
}

impl Running {
    pub(super) fn new(sequence: Sequence, slot: Slot, blocks: Vec<BlockId>) -> Self {
        Running { sequence, slot, blocks, told_blocks: 0, computed: 0 }
    }

    pub(super) fn admission(&self) -> Admission {
        Admission {
            slot: self.slot.0,
            tokens: self.sequence.tokens.clone(),
            prompt_len: self.sequence.prompt_len as u32,
            sampling: Some(self.sequence.sampling.clone()),
        }
    }

    /// Tokens that could be run next: 1 for a sequence that decodes, more during prefill, 0 if it only waits for its
    /// last tokens to come back.
    pub(super) fn remaining(&self) -> usize {
        if self.sequence.is_exhausted() { 0 } else { self.sequence.len() - self.computed }
    }

    /// Positions that the block table must cover before `count` more tokens can be run.
    pub(super) fn positions_after(&self, count: usize) -> usize {
        self.computed + count
    }

    /// The row that runs the next `count` tokens; it samples if they are the last ones.
    pub(super) fn run(&mut self, count: usize) -> Row {
        let start = self.computed;
        self.computed += count;
        let sample = self.computed == self.sequence.len();
        self.sequence.pending += usize::from(sample);
        let new_blocks = self.blocks[self.told_blocks..].iter().map(|block| block.0).collect();
        self.told_blocks = self.blocks.len();
        Row { slot: self.slot.0, start: start as u32, count: count as u32, new_blocks, sample }
    }
}
