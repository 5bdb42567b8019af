//! Upper bounds on the encoded sizes of the parts of a step and of its answer, in bytes.

use millrace_proto::Sampling;
use millrace_proto::frame::encoded_len;
use millrace_proto::rules::{MAX_ROW_ERROR, MAX_TOP_N};

/// The fields of a step and of an answer outside of their lists.
pub(super) const MESSAGE: usize = 128;
/// A row without its mask: eight numbers, one new block, and the field headers.
const ROW: usize = 64;
/// A released slot.
const RELEASE: usize = 8;
/// An admission without its tokens, its blocks and its sampling parameters, and the placement of
/// its adapter.
pub(super) const ADMISSION: usize = 80;
/// The answer to a row without alternatives, scores and vector: an error, or the sampled token and
/// the headers of the other results.
const ANSWER: usize = MAX_ROW_ERROR + 64;
/// A token with its log-probability.
pub(super) const ALTERNATIVE: usize = 16;
/// A sampled token without alternatives.
const SAMPLED: usize = 24;
/// The header of a list of drafts.
const DRAFTS: usize = 8;
/// A scored token of a prompt without alternatives.
const PROMPT_TOKEN: usize = 24;

/// The fixed part of each row: the larger of its parts in the step and in the answer.
pub(super) const FIXED_ROW: usize = if ROW + RELEASE > ANSWER { ROW + RELEASE } else { ANSWER };

/// The largest number of rows whose fixed parts take at most a quarter of a frame in either
/// message.
pub(super) fn max_rows(frame_bytes: usize) -> usize {
    (frame_bytes / 4).saturating_sub(MESSAGE) / FIXED_ROW
}

/// Size of the largest number below `end` as a protobuf varint.
pub(super) fn varint(end: usize) -> usize {
    let bits = usize::BITS - end.saturating_sub(1).leading_zeros();
    bits.max(1).div_ceil(7) as usize
}

/// Size of sampling parameters.
pub(super) fn sampling(sampling: &Sampling) -> usize {
    encoded_len(sampling)
}

/// Size of `count` drafts.
pub(super) fn drafts(count: usize) -> usize {
    DRAFTS + count * varint(usize::MAX)
}

/// Size of a sampled token with `top_n` alternatives.
pub(super) fn sampled_token(top_n: usize) -> usize {
    SAMPLED + top_n * ALTERNATIVE
}

/// Size of a scored token of a prompt with `top_n` alternatives.
pub(super) fn scored_token(top_n: usize) -> usize {
    PROMPT_TOKEN + top_n.min(MAX_TOP_N) * ALTERNATIVE
}
