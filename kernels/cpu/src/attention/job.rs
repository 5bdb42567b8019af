//! A tile of queries, and the memory in which it is computed.

use std::ops::Range;

use millrace_backend::{AttentionSpec, QkvLayout, ScoreTerms};

use super::super::kv::{Kv, padded};
use super::super::memory::Shared;
use super::super::queue::Row;
use super::softmax::Partial;
use super::{QUERIES, RANGE, SEGMENT};

/// The sizes of heads, and where a token's queries lie.
#[derive(Clone, Copy)]
pub(crate) struct HeadDims {
    /// Features of a key.
    pub(crate) key: usize,
    /// Features of a value.
    pub(crate) value: usize,
    /// Numbers from one token's queries to the next one's.
    pub(crate) query_stride: usize,
    /// Whether values are the last features of the keys.
    pub(crate) shared: bool,
}

impl HeadDims {
    /// Returns the sizes of heads of a fused projection.
    pub(crate) fn of(layout: QkvLayout) -> HeadDims {
        let dim = layout.head_dim;
        HeadDims { key: dim, value: dim, query_stride: layout.cols(), shared: false }
    }
}

/// How scores are computed, and which keys a query attends to.
#[derive(Clone, Copy)]
pub(crate) struct Scoring<'a> {
    pub(crate) dims: HeadDims,
    pub(crate) spec: &'a AttentionSpec,
    pub(crate) terms: ScoreTerms<'a, Vec<f32>>,
}

/// Queries of one sequence that share a KV head. Query `u` is head `u % group` of the group, at
/// token `u / group` of the row.
#[derive(Clone, Copy)]
pub(super) struct Queries<'a> {
    pub(super) dims: HeadDims,
    pub(super) spec: &'a AttentionSpec,
    pub(super) row: &'a Row,
    pub(super) kv_head: usize,
}

impl Queries<'_> {
    #[inline(always)]
    fn group(&self) -> usize {
        self.spec.layout.heads / self.spec.layout.kv_heads
    }

    /// Returns the position of query `u`.
    #[inline(always)]
    pub(super) fn position(&self, u: usize) -> usize {
        self.row.start + u / self.group()
    }

    /// Returns the positions that query `u` attends to.
    #[inline(always)]
    pub(super) fn sees(&self, u: usize) -> Range<usize> {
        let position = self.position(u);
        // A row that covers only a part of the prefix is a bug. It must not read beyond its blocks.
        let prefix = self.row.prefix.len.min(self.row.start + self.row.count);
        let end = if self.spec.bidirectional { prefix.max(position + 1) } else { position + 1 };
        self.spec.window.map_or(0..end, |window| window.first(position)..window.end(position, end))
    }

    /// Returns the positions in a range that query `u` attends to.
    #[inline(always)]
    pub(super) fn sees_in(&self, u: usize, range: usize) -> Range<usize> {
        let keys = self.sees(u);
        let start = keys.start.max(range * RANGE);
        start..keys.end.min((range + 1) * RANGE).max(start)
    }

    /// Returns the ranges that these queries attend to.
    #[inline(always)]
    pub(super) fn ranges(&self, queries: &Range<usize>) -> Range<usize> {
        let (first, last) = (self.sees(queries.start), self.sees(queries.end - 1));
        first.start / RANGE..last.end.div_ceil(RANGE)
    }

    /// Returns the token of the step and the head of query `u`.
    #[inline(always)]
    pub(super) fn token_and_head(&self, u: usize) -> (usize, usize) {
        (self.row.token + u / self.group(), self.kv_head * self.group() + u % self.group())
    }

    /// Writes the attention of query `u` to `out`, `[n, heads * value_dim]`. `softmax` is that of
    /// all keys without the attention sinks, `[heads]`, which are added here.
    ///
    /// # Safety
    /// The query's part of `out` belongs to the caller alone.
    #[inline(always)]
    pub(super) unsafe fn finish(
        &self,
        u: usize,
        values: &[f32],
        softmax: Partial,
        sinks: Option<&Vec<f32>>,
        out: Shared<f32>,
    ) {
        let (token, head) = self.token_and_head(u);
        let Partial { max, sum } = softmax;
        let dim = self.dims.value;
        // SAFETY: the caller guarantees it.
        let out = unsafe { out.slice((token * self.spec.layout.heads + head) * dim, dim) };
        let factor = match sinks {
            None => 1.0 / sum,
            // The difference is bounded, because a large sink may exceed the largest score by more
            // than the exponential function can take.
            Some(sinks) if sinks[head] > max => {
                let kept = (max - sinks[head]).exp();
                kept / (kept * sum + 1.0)
            }
            Some(sinks) => 1.0 / (sum + (sinks[head] - max).exp()),
        };
        out.iter_mut().zip(values).for_each(|(out, value)| *out = *value * factor);
    }
}

/// A tile of queries, and the ranges of keys to compute.
pub(super) struct Tile<'a> {
    pub(super) of: Queries<'a>,
    pub(super) spec: &'a AttentionSpec,
    pub(super) terms: ScoreTerms<'a, Vec<f32>>,
    pub(super) kv: &'a Kv,
    /// The sequence's block table.
    pub(super) blocks: &'a [u32],
    pub(super) kv_head: usize,
    /// At most [`QUERIES`].
    pub(super) queries: Range<usize>,
    pub(super) ranges: Range<usize>,
    /// `[n, query_stride]`
    pub(super) qkv: &'a [f32],
    pub(super) to: Output,
    /// Whether the machine has a tile unit.
    #[cfg(target_arch = "x86_64")]
    pub(super) has_tiles: bool,
    /// [`scratch`](super::scratch) numbers.
    pub(super) scratch: Shared<f32>,
}

/// The place of a tile's results.
#[derive(Clone, Copy)]
pub(super) enum Output {
    /// The attention of all ranges, `[n, heads * value_dim]`.
    Attention(Shared<f32>),
    /// Partial results of a single range, `[queries, stride]`.
    Partials(Shared<f32>),
}

impl Tile<'_> {
    /// Returns the sizes of the heads.
    #[inline(always)]
    pub(super) fn dims(&self) -> HeadDims {
        self.of.dims
    }

    /// Returns the token and the head of a query.
    #[inline(always)]
    pub(super) fn token_and_head(&self, u: usize) -> (usize, usize) {
        self.of.token_and_head(u)
    }

    /// Returns the block and the slot of a position that the table covers.
    #[inline(always)]
    pub(super) fn place(&self, position: usize) -> (u32, usize) {
        let size = self.kv.spec.block_size;
        (self.blocks[position / size], position % size)
    }
}

/// The parts of a tile in the working memory.
#[derive(Clone, Copy)]
pub(super) struct Work {
    /// Packed queries.
    pub(super) q: *mut u32,
    /// Weighted values of the current range, `[QUERIES, padded value_dim]`.
    pub(super) acc: *mut f32,
    /// Weighted values of the ranges before it, `[QUERIES, padded value_dim]`.
    pub(super) merged: *mut f32,
    /// Scores, then weights of one segment, `[QUERIES, SEGMENT]`.
    pub(super) p: *mut f32,
    /// Factors on the scores of one segment, by key.
    pub(super) scales: *mut f32,
    /// Factors on the values of one segment, by key.
    pub(super) value_scales: *mut f32,
    /// Copies of the values of up to [`GROUP`](super::GROUP) positions.
    pub(super) word: *mut u32,
}

impl Work {
    /// Divides working memory of [`scratch`](super::scratch) numbers.
    #[inline(always)]
    pub(super) fn new(scratch: Shared<f32>, dims: HeadDims) -> Work {
        let width = padded(dims.value);
        let q = scratch.as_ptr();
        let acc = q.wrapping_add(QUERIES * dims.key.next_multiple_of(2));
        let merged = acc.wrapping_add(QUERIES * width);
        let p = merged.wrapping_add(QUERIES * width);
        let scales = p.wrapping_add(QUERIES * SEGMENT);
        let value_scales = scales.wrapping_add(SEGMENT);
        let word = value_scales.wrapping_add(SEGMENT).cast();
        Work { q: q.cast(), acc, merged, p, scales, value_scales, word }
    }
}
