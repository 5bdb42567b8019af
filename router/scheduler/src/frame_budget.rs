//! The byte budget of a step.
//!
//! A step and its answer must each fit a frame. The scheduler takes the largest possible size of
//! every admission and row from a budget of bytes, and leaves whatever does not fit for a later
//! step.
//!
//! Decode rows may use half of the budget. The first admission and the first chunk of a prompt can
//! therefore always use the other half, and the first sequence in order always makes progress.

use millrace_proto::rules::mask_words;

use super::limits::SchedulerLimits;
use super::message_size::{self, ADMISSION, ALTERNATIVE, FIXED_ROW, MESSAGE, varint};

/// Checks that an admission of `tokens` tokens, beside the largest mask, fits the half of a step
/// that decode rows leave.
///
/// # Errors
/// The number of bytes that the admission needs and the number of bytes that a step has for it.
pub(super) fn check_admission(
    limits: &SchedulerLimits,
    tokens: usize,
    sampling: usize,
) -> Result<(), (usize, usize)> {
    let (needed, available) = (admission(limits, tokens, sampling) + mask(limits), half(limits));
    if needed <= available { Ok(()) } else { Err((needed, available)) }
}

/// Bytes of an admission of `tokens` tokens, including the blocks that its first row names.
fn admission(limits: &SchedulerLimits, tokens: usize, sampling: usize) -> usize {
    let blocks = limits.blocks_for(tokens) * varint(limits.num_blocks);
    ADMISSION + tokens * varint(limits.vocab_size) + blocks + sampling
}

/// Half of the bytes that the fixed parts leave of a frame.
fn half(limits: &SchedulerLimits) -> usize {
    let fixed = MESSAGE + limits.max_sequences * FIXED_ROW;
    limits.max_frame_bytes.saturating_sub(fixed) / 2
}

/// Bytes of the largest mask.
fn mask(limits: &SchedulerLimits) -> usize {
    4 * mask_words(limits.vocab_size)
}

/// Maximum number of bytes that a row adds to the messages of a step, beyond the fixed part of
/// every row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RowBytes {
    /// Bytes in the step.
    pub(super) step: usize,
    /// Bytes in the answer.
    pub(super) answer: usize,
}

/// The properties of a row that determine its size.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RowContent {
    /// Words of the mask.
    pub(super) mask_words: usize,
    /// Alternatives of each sampled token.
    pub(super) top_n: usize,
    /// Number of scored tokens of the prompt.
    pub(super) scores: usize,
    /// Alternatives of each scored token.
    pub(super) score_top_n: usize,
    /// Length of the vector that the row completes.
    pub(super) features: usize,
}

impl RowContent {
    pub(super) fn bytes(&self) -> RowBytes {
        let alternatives = self.top_n * ALTERNATIVE;
        let scores = self.scores * message_size::scored_token(self.score_top_n);
        let answer = alternatives + scores + self.features * size_of::<f32>();
        RowBytes { step: self.mask_words * size_of::<u32>(), answer }
    }
}

/// The bytes that are left in the two messages of the step that is being planned.
#[derive(Debug)]
pub(super) struct FrameBudget {
    limits: SchedulerLimits,
    left: RowBytes,
}

impl FrameBudget {
    /// The half of an empty step that decode rows may use.
    pub(super) fn for_decodes(limits: &SchedulerLimits) -> Self {
        FrameBudget { limits: *limits, left: RowBytes { step: half(limits), answer: half(limits) } }
    }

    /// Adds the other half, which decode rows must leave to prompts.
    pub(super) fn add_prompts_half(&mut self) {
        self.left.step += half(&self.limits);
        self.left.answer += half(&self.limits);
    }

    /// Bytes that are left in the answer.
    pub(super) fn answer_left(&self) -> usize {
        self.left.answer
    }

    /// Takes the bytes of a row if they fit, and returns whether they do.
    #[must_use]
    pub(super) fn take(&mut self, row: RowBytes) -> bool {
        let fits = row.step <= self.left.step && row.answer <= self.left.answer;
        if fits {
            self.left.step -= row.step;
            self.left.answer -= row.answer;
        }
        fits
    }

    /// Whether an admission of `tokens` tokens fits beside a row with a mask.
    pub(super) fn fits_admission(&self, tokens: usize, sampling: usize) -> bool {
        admission(&self.limits, tokens, sampling) + mask(&self.limits) <= self.left.step
    }

    /// Takes the bytes of an admission of `tokens` tokens if they fit beside a row with a mask, and
    /// returns whether they do.
    #[must_use]
    pub(super) fn take_admission(&mut self, tokens: usize, sampling: usize) -> bool {
        let step = admission(&self.limits, tokens, sampling);
        self.fits_admission(tokens, sampling) && self.take(RowBytes { step, answer: 0 })
    }
}
