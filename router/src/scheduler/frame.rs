//! How large the messages of a step can become.
//!
//! A step and its answer must each fit a frame. The scheduler therefore takes the largest possible size of every admission and row from a
//! budget of bytes, and leaves everything that does not fit for a later step. This module is the only place that knows these sizes.
//!
//! Decode rows may use half of the budget. So the first admission and the first chunk of a prompt always have the other half, and the first
//! sequence in line always moves on.

use super::Limits;
use millrace_proto::Sampling;
use millrace_proto::frame::encoded_len;
use millrace_proto::rules::{MAX_ROW_ERROR, MAX_TOP_N, mask_words};

/// The fields of a step and of an answer outside of their lists.
const MESSAGE: usize = 128;
/// A row without its mask: six numbers, one new block, and the headers.
const ROW: usize = 64;
/// A slot that is released.
const RELEASE: usize = 8;
/// An admission without its tokens, its blocks and its sampling parameters.
const ADMISSION: usize = 64;
/// The answer to a row without alternatives, scores and vector: an error, or the headers of the other results.
const ANSWER: usize = MAX_ROW_ERROR + 64;
/// A token with its log-probability.
const ALTERNATIVE: usize = 16;
/// A token of a prompt that is scored, without alternatives.
const PROMPT_TOKEN: usize = 24;

/// The largest number of rows for which the fixed parts of both messages take at most a quarter of a frame.
pub(super) fn most_rows(frame_bytes: usize) -> usize {
    (frame_bytes / 4).saturating_sub(MESSAGE) / (ROW + RELEASE).max(ANSWER)
}

/// Checks that the admission of so many tokens fits into the half of a step that decode rows leave, with the largest mask beside it.
///
/// # Errors
/// The bytes that it needs, and the bytes that there are.
pub(super) fn check_admission(limits: &Limits, tokens: usize, sampling: usize) -> Result<(), (usize, usize)> {
    let (needed, room) = (admission(limits, tokens, sampling) + mask(limits), half(limits));
    if needed <= room { Ok(()) } else { Err((needed, room)) }
}

/// Bytes of an admission of so many tokens, with the blocks that its first row names.
fn admission(limits: &Limits, tokens: usize, sampling: usize) -> usize {
    let blocks = limits.blocks_for(tokens) * varint(limits.num_blocks);
    ADMISSION + tokens * varint(limits.vocab_size) + blocks + sampling
}

/// Half of the bytes that the fixed parts leave of a frame.
fn half(limits: &Limits) -> usize {
    let fixed = MESSAGE + limits.max_sequences * (ROW + RELEASE).max(ANSWER);
    limits.max_frame_bytes.saturating_sub(fixed) / 2
}

/// Bytes of the largest mask.
fn mask(limits: &Limits) -> usize {
    4 * mask_words(limits.vocab_size)
}

/// Bytes of the largest number below `end` as protobuf writes it.
fn varint(end: usize) -> usize {
    let bits = usize::BITS - end.saturating_sub(1).leading_zeros();
    bits.max(1).div_ceil(7) as usize
}

/// Bytes of sampling parameters.
pub(super) fn sampling(sampling: &Sampling) -> usize {
    encoded_len(sampling)
}

/// The bytes that a row adds to the messages of a step at most, beyond the fixed part that every row has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Cost {
    /// In the step.
    pub(super) step: usize,
    /// In its answer.
    pub(super) answer: usize,
}

/// The parts of a row that decide its size.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RowContent {
    /// Words of its mask.
    pub(super) mask_words: usize,
    /// Alternatives of the token that it samples.
    pub(super) top_n: usize,
    /// Tokens of the prompt that it scores.
    pub(super) scores: usize,
    /// Alternatives at each of them.
    pub(super) score_top_n: usize,
    /// Features of the vector that it completes.
    pub(super) features: usize,
}

impl RowContent {
    pub(super) fn cost(&self) -> Cost {
        let scores = self.scores * scored_token(self.score_top_n);
        let answer = self.top_n * ALTERNATIVE + scores + self.features * size_of::<f32>();
        Cost { step: self.mask_words * size_of::<u32>(), answer }
    }
}

/// Bytes of a prompt's token that is scored with so many alternatives.
pub(super) fn scored_token(top_n: usize) -> usize {
    PROMPT_TOKEN + top_n.min(MAX_TOP_N) * ALTERNATIVE
}

/// The bytes that are left in the two messages of a step that is being planned.
#[derive(Debug)]
pub(super) struct FrameBudget {
    limits: Limits,
    left: Cost,
}

impl FrameBudget {
    /// The half of an empty step that decode rows may use.
    pub(super) fn for_decodes(limits: &Limits) -> Self {
        FrameBudget { limits: *limits, left: Cost { step: half(limits), answer: half(limits) } }
    }

    /// Adds the other half, which decode rows must leave to prompts.
    pub(super) fn add_prompts_half(&mut self) {
        self.left.step += half(&self.limits);
        self.left.answer += half(&self.limits);
    }

    /// Bytes of the answer that are left.
    pub(super) fn answer_left(&self) -> usize {
        self.left.answer
    }

    /// Takes a row's part. Answers whether it fits; nothing is taken otherwise.
    #[must_use]
    pub(super) fn take(&mut self, cost: Cost) -> bool {
        let fits = cost.step <= self.left.step && cost.answer <= self.left.answer;
        if fits {
            self.left.step -= cost.step;
            self.left.answer -= cost.answer;
        }
        fits
    }

    /// Takes an admission of so many tokens. Answers whether it fits and a row with a mask does beside it; nothing is taken otherwise.
    #[must_use]
    pub(super) fn take_admission(&mut self, tokens: usize, sampling: usize) -> bool {
        let step = admission(&self.limits, tokens, sampling);
        let fits = step + mask(&self.limits) <= self.left.step;
        fits && self.take(Cost { step, answer: 0 })
    }
}
