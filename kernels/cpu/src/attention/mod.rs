//! Attention over the paged cache.
//!
//! Queries that read the same keys are computed together as a tile: those of a group of heads, and
//! in a prefill chunk also those of successive tokens.
//!
//! Keys are processed in segments of [`SEGMENT`] positions, with an online softmax across segments
//! (Milakov and Gimelshein, "Online normalizer calculation for softmax"; Dao et al.,
//! "FlashAttention"). Segments belong to ranges of [`RANGE`] positions. Each range has a softmax of
//! its own, and the results of the ranges are merged in ascending order ("Flash-Decoding", Dao et
//! al.). So the ranges of a long sequence can be computed by different threads.
//!
//! Segments and ranges start at fixed positions, and every sum runs in the order of the positions.
//! So a result depends neither on the other queries of a tile, nor on how a prompt was cut into
//! chunks, nor on which thread computed which range.

mod attend;
mod job;
mod merge;
#[cfg(target_arch = "x86_64")]
mod on_tiles;
mod products;
mod queries;
mod scores;
mod softmax;
mod stream;
mod tasks;
mod tile;
mod values;

pub(super) use job::{HeadDims, Scoring};
pub(super) use tasks::{AttentionTasks, partial_floats};

use super::kv::padded;

/// Keys in a range, a multiple of [`SEGMENT`].
const RANGE: usize = 4096;
/// Keys in a segment. It is a multiple of twice the longest vector.
const SEGMENT: usize = 128;
/// The largest number of queries in a tile. It is a multiple of the largest height of all
/// instruction sets.
const QUERIES: usize = 48;

/// Positions of a group of values that are copied at once.
const GROUP: usize = 16;

/// Returns the numbers of working memory that a tile needs.
pub(super) const fn scratch(key_dim: usize, value_dim: usize) -> usize {
    let of_query = key_dim.next_multiple_of(2) + 2 * padded(value_dim) + SEGMENT;
    QUERIES * of_query + 2 * SEGMENT + GROUP * padded(value_dim)
}
