//! A sequence: its tokens, its parameters, and what may come next.

use std::ops::Range;
use std::sync::Arc;

use millrace_proto::rules::{MAX_TOP_N, check_sampling, is_mask_or_free};
use millrace_proto::{Row, Sampling};

use super::acceptance::Acceptance;
use super::cache::BlockHashes;
use super::draft_source::DraftSource;
use super::drafter::Earlier;
use super::earlier_answers::EarlierAnswers;
use super::frame_budget;
use super::id::{AdapterId, SeqId};
use super::limits::{self, InfeasibleRequest, SchedulerLimits};
use super::loss_history::LossHistory;
use super::message_size;
use super::request::{Finish, Mask, Pooling, Priority, Request, Tenant};

/// A sequence of tokens to be continued. It has everything that is needed to run it, for the first
/// time or again.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: SeqId,
    pub(super) priority: Priority,
    pub(super) tenant: Tenant,
    /// The adapter that the sequence is computed with.
    pub(super) adapter: Option<AdapterId>,
    /// Whether the sequence has left the queue before.
    pub(super) has_run: bool,
    /// Whether the sequence has left its slot to another tenant.
    pub(super) gave_slot: bool,
    /// Whether blocks of the sequence have been read from disk, or are being read, since it is in
    /// the queue.
    pub(super) restored: bool,
    /// The prompt, and the generated tokens that have been accepted.
    pub(super) tokens: Vec<u32>,
    /// The hashes of the full blocks of `tokens`.
    pub(super) block_hashes: BlockHashes,
    pub(super) prompt_len: usize,
    /// Number of tokens that the rows in flight will add. Only the shards know these tokens yet.
    pending: usize,
    pub(super) max_new_tokens: usize,
    stop_tokens: Arc<[u32]>,
    pub(super) sampling: Sampling,
    /// Bytes of `sampling` in an admission.
    pub(super) sampling_bytes: usize,
    mask: MaskState,
    /// Number of rows in a row that were deferred, up to [`MAX_DEFERRALS`].
    deferrals: u32,
    /// Number of accepted tokens from which on the sequence may run ahead of its mask. It is
    /// [`usize::MAX`] if a deferred row could not be run again.
    runs_ahead_from: usize,
    /// Number of alternatives to report at each token of the prompt, if the prompt is scored.
    pub(super) prompt_logprobs: Option<u32>,
    /// Number of tokens of the prompt that need no score any more. It begins with 1, because the
    /// first token has none.
    scored: usize,
    pub(super) pooling: Option<Pooling>,
    /// Number of states at the beginning of the prompt that are not pooled.
    pub(super) pooling_start: u32,
    /// Position from which on tokens have the model's second token type.
    pub(super) second_type_start: Option<u32>,
    /// Total work of the sequences that overtook this one since it is in the queue, in positions.
    pub(super) overtaken: usize,
    pub(super) loss_history: LossHistory,
    /// The source of drafts, if the sequence may have some.
    pub(super) draft_source: Option<DraftSource>,
}

/// Tokens of a row that became part of its sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Accepted {
    /// Number of the tokens.
    pub(super) count: usize,
    /// Why the sequence ends with the last of them, if it does.
    pub(super) finish: Option<Finish>,
}

/// Number of deferrals after which the pause of a sequence whose masks come late grows no more.
const MAX_DEFERRALS: u32 = 6;

/// The constraint on the token after the accepted ones.
#[derive(Debug)]
enum MaskState {
    /// Any token, always.
    Unconstrained,
    /// The mask is not known yet.
    Awaited,
    /// One of the tokens of this mask.
    Known(Mask),
}

impl Sequence {
    /// A sequence with the block hashes of the request. `block_size` is the size of the blocks to
    /// be hashed.
    pub(super) fn new(id: SeqId, request: Request, block_size: Option<usize>) -> Self {
        let (adapter, salt) = (request.adapter, request.cache_salt.as_ref());
        let hashed = request.block_hashes.filter(|hashes| hashes.block_size() == block_size);
        // Hashes of another prompt, adapter or salt would give one client the blocks of another.
        debug_assert!(hashed.as_ref().zip(block_size).is_none_or(|(hashes, block_size)| {
            *hashes == BlockHashes::of_prompt(&request.prompt, adapter, salt, block_size)
        }));
        Sequence {
            id,
            priority: request.priority,
            tenant: request.tenant,
            adapter,
            has_run: false,
            gave_slot: false,
            restored: false,
            block_hashes: hashed.unwrap_or_else(|| BlockHashes::new(adapter, salt, block_size)),
            prompt_len: request.prompt.len(),
            tokens: request.prompt,
            pending: 0,
            max_new_tokens: if request.pooling.is_some() { 0 } else { request.max_new_tokens as usize },
            stop_tokens: request.stop_tokens,
            sampling_bytes: message_size::sampling(&request.sampling),
            sampling: request.sampling,
            mask: request.mask.map_or(MaskState::Unconstrained, MaskState::Known),
            deferrals: 0,
            runs_ahead_from: 0,
            prompt_logprobs: request.prompt_logprobs,
            scored: 1,
            pooling: request.pooling,
            pooling_start: request.pooling_start,
            second_type_start: request.second_type_start,
            overtaken: 0,
            loss_history: LossHistory::default(),
            draft_source: None,
        }
    }

    /// Has drafts from now on: of the draft model, or else of what is repeated. The mask of a
    /// constrained sequence depends on each of its tokens, so it has none.
    pub(super) fn accept_drafts(&mut self, has_draft_model: bool) {
        if self.max_new_tokens > 1 && matches!(self.mask, MaskState::Unconstrained) {
            self.draft_source = Some(match has_draft_model {
                true => DraftSource::Model(Acceptance::default()),
                false => DraftSource::Repetitions(Box::default()),
            });
        }
    }

    /// Looks for repetitions in up to `most` further tokens, and returns their number.
    pub(super) fn read_for_drafts(&mut self, most: usize, answers: &EarlierAnswers) -> usize {
        let Sequence { draft_source, tokens, prompt_len, block_hashes, .. } = self;
        let earlier = Earlier { answers, root: block_hashes.root() };
        draft_source.as_mut().map_or(0, |source| source.read(tokens, *prompt_len, most, earlier))
    }

    /// Makes a constrained sequence run only while its mask is known. A sequence that runs ahead of
    /// a mask which then comes late would run a position twice.
    pub(super) fn await_every_mask(&mut self) {
        self.runs_ahead_from = usize::MAX;
    }

    /// Checks that shards with these limits can run the sequence.
    pub(super) fn check(&self, limits: &SchedulerLimits) -> Result<(), InfeasibleRequest> {
        limits.check(self.prompt_len, self.max_new_tokens)?;
        if limits.needs_whole_prompts() && self.prompt_logprobs.is_some() {
            return Err(InfeasibleRequest::NoPromptScores);
        }
        if self.adapter.is_some() && limits.adapters == 0 {
            return Err(InfeasibleRequest::NoAdapters);
        }
        let vocab_size = limits.vocab_size;
        if let Some(&token) = self.tokens.iter().find(|&&token| token as usize >= vocab_size) {
            return Err(InfeasibleRequest::UnknownToken { token, vocab_size });
        }
        check_sampling(&self.sampling, vocab_size)?;
        let tokens = self.prompt_len + self.max_new_tokens;
        frame_budget::check_admission(limits, tokens, self.sampling_bytes)
            .map_err(|(needed, room)| InfeasibleRequest::ExceedsFrame { tokens, needed, room })?;
        let limit = vocab_size.min(MAX_TOP_N);
        if let Some(given) = self.prompt_logprobs.filter(|&given| given as usize > limit) {
            return Err(InfeasibleRequest::TooManyAlternatives { given, limit });
        }
        match &self.mask {
            MaskState::Known(mask) if !is_mask_or_free(mask, vocab_size) => Err(InfeasibleRequest::EmptyMask),
            _ => Ok(()),
        }
    }

    /// Computes the hashes of the prompt's blocks, unless the request had them. It is called once,
    /// after the request has been checked.
    pub(super) fn hash_prompt(&mut self) {
        self.block_hashes.extend(&self.tokens);
    }

    /// Number of tokens, accepted and pending.
    pub(super) fn len(&self) -> usize {
        self.tokens.len() + self.pending
    }

    /// Whether rows in flight will add tokens. Such a sequence cannot be admitted.
    pub(super) fn has_pending(&self) -> bool {
        self.pending > 0
    }

    /// Whether the mask of the next token is not known.
    pub(super) fn awaits_mask(&self) -> bool {
        matches!(self.mask, MaskState::Awaited)
    }

    /// Whether another row can be planned. A constrained sequence without tokens in flight needs
    /// its mask.
    pub(super) fn can_continue(&self) -> bool {
        match self.mask {
            MaskState::Unconstrained => true,
            _ if self.has_pending() => self.tokens.len() >= self.runs_ahead_from,
            MaskState::Awaited => false,
            MaskState::Known(_) => true,
        }
    }

    /// Whether the mask of the next row follows its step, because the token before it is in flight.
    pub(super) fn mask_follows(&self) -> bool {
        self.has_pending() && !matches!(self.mask, MaskState::Unconstrained)
    }

    /// Notes that the oldest row in flight is deferred. For some tokens, twice as many after each
    /// deferral, the sequence runs only when its mask is known.
    pub(super) fn defer(&mut self) {
        self.pending -= 1;
        self.deferrals = (self.deferrals + 1).min(MAX_DEFERRALS);
        self.runs_ahead_from = self.tokens.len() + (1 << self.deferrals);
    }

    /// Notes that a mask that followed its step came in time.
    pub(super) fn note_mask_in_time(&mut self) {
        self.deferrals = 0;
    }

    /// Sets the mask for the next token, if it is not known and the sequence has `generated`
    /// tokens. A mask for another number of tokens is ignored.
    pub(super) fn release(&mut self, generated: usize, mask: Mask) {
        if self.awaits_mask() && self.tokens.len() - self.prompt_len == generated {
            self.mask = MaskState::Known(mask);
        }
    }

    /// The mask of the token after the accepted ones, if the sequence is constrained and the mask
    /// is known.
    pub(super) fn known_mask(&self) -> Option<&Mask> {
        match &self.mask {
            MaskState::Known(mask) => Some(mask),
            MaskState::Unconstrained | MaskState::Awaited => None,
        }
    }

    /// The mask of the next row; empty if every token is allowed, or if the mask follows.
    pub(super) fn allowed(&self) -> &[u32] {
        match self.known_mask() {
            Some(mask) if !self.has_pending() => mask,
            _ => &[],
        }
    }

    /// Whether the row runs one generated token and samples after it.
    pub(super) fn is_decode(&self, row: &Row) -> bool {
        row.sample && row.count == 1 && row.draft_count() == 0 && row.start as usize >= self.prompt_len
    }

    /// Whether all tokens must be run through the model, whatever is cached.
    pub(super) fn ignores_prefix_cache(&self) -> bool {
        let is_scored = self.prompt_logprobs.is_none() || self.scored >= self.prompt_len;
        !is_scored || self.pooling.is_some_and(|pooling| pooling != Pooling::Last)
    }

    /// The tokens of the prompt whose scores come from the states at `positions`, as far as they
    /// are still needed.
    pub(super) fn scores(&self, positions: &Range<usize>) -> Range<usize> {
        let end = (positions.end + 1).min(self.prompt_len);
        let wanted = self.prompt_logprobs.is_some() && end > self.scored;
        if wanted { positions.start + 1..end } else { 0..0 }
    }

    /// Notes that these tokens of the prompt have been scored, and returns how many of them had
    /// been scored before.
    pub(super) fn take_scores(&mut self, scores: &Range<usize>) -> usize {
        let known = self.scored.saturating_sub(scores.start);
        self.scored = self.scored.max(scores.end);
        known
    }

    /// Maximum number of positions that the sequence will hold in the KV cache.
    pub(super) fn max_positions(&self) -> usize {
        limits::positions(self.prompt_len, self.max_new_tokens)
    }

    /// Notes that a row is in flight that samples a token.
    pub(super) fn expect_token(&mut self) {
        self.pending += 1;
    }

    /// Accepts the tokens of the oldest row in flight that samples, up to the one with which the
    /// sequence ends.
    pub(super) fn accept(&mut self, tokens: impl IntoIterator<Item = u32>) -> Accepted {
        self.pending -= 1;
        let mut accepted = Accepted { count: 0, finish: None };
        for token in tokens {
            self.tokens.push(token);
            accepted = Accepted { count: accepted.count + 1, finish: self.finish_after(token) };
            if accepted.finish.is_some() {
                break;
            }
        }
        self.block_hashes.extend(&self.tokens);
        if !matches!(self.mask, MaskState::Unconstrained) {
            self.mask = MaskState::Awaited;
        }
        accepted
    }

    /// Why the sequence ends with `token`, its last accepted token.
    fn finish_after(&self, token: u32) -> Option<Finish> {
        if self.tokens.len() >= self.prompt_len + self.max_new_tokens {
            Some(Finish::Length)
        } else if self.stop_tokens.contains(&token) {
            Some(Finish::StopToken)
        } else {
            None
        }
    }

    /// Notes that the rows in flight are lost.
    pub(super) fn lose_pending(&mut self) {
        self.pending = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequence(max_new_tokens: u32, stop_tokens: &[u32]) -> Sequence {
        let request = Request {
            prompt: vec![1, 2, 3],
            max_new_tokens,
            stop_tokens: stop_tokens.into(),
            sampling: Sampling::default(),
            priority: Default::default(),
            tenant: Default::default(),
            adapter: None,
            cache_salt: None,
            block_hashes: None,
            mask: None,
            prompt_logprobs: None,
            pooling: None,
            pooling_start: 0,
            second_type_start: None,
        };
        let mut sequence = Sequence::new(SeqId { due: 0, serial: 0 }, request, Some(2));
        sequence.hash_prompt();
        sequence
    }

    #[test]
    fn accepted_tokens_extend_the_sequence_and_its_hashes() {
        let mut sequence = sequence(10, &[]);
        sequence.expect_token();
        sequence.expect_token();
        assert_eq!((sequence.len(), sequence.can_continue()), (5, true));
        assert_eq!(sequence.accept([4]), Accepted { count: 1, finish: None });
        assert_eq!((sequence.len(), sequence.has_pending()), (5, true));
        assert_eq!(sequence.accept([5, 6, 7]), Accepted { count: 3, finish: None });
        assert_eq!((sequence.len(), sequence.has_pending()), (7, false));
        assert_eq!(sequence.tokens, [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(sequence.block_hashes.as_slice().len(), 3);
    }

    #[test]
    fn a_stop_token_or_the_last_token_ends_a_sequence() {
        let mut stopped = sequence(10, &[7]);
        let mut full = sequence(2, &[7]);
        stopped.expect_token();
        full.expect_token();
        let accepted = |finish| Accepted { count: 2, finish: Some(finish) };
        assert_eq!(stopped.accept([5, 7, 8]), accepted(Finish::StopToken));
        assert_eq!(full.accept([5, 7, 8]), accepted(Finish::Length));
        assert_eq!(full.tokens, [1, 2, 3, 5, 7]);
    }
}
