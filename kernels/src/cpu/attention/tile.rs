//! The computation of one tile of queries.

use std::ops::Range;

use super::super::kv::{Cache, Kv, View, padded};
use super::super::memory::Shared;
use super::super::queue::Row;
use super::super::simd::{Kernel, Simd};
use super::super::step::{Pair, Single, Step};
use super::softmax::{Partial, Softmax, Unscaled, merge, weigh};
use super::values::{Segment, values};
use super::{QUERIES, RANGE, SEGMENT, merge, queries, scores};
use crate::backend::AttentionSpec;

/// Queries of one sequence that share a KV head. Query `u` is head `u % group` of the group, at
/// token `u / group` of the row.
#[derive(Clone, Copy)]
pub(super) struct Queries<'a> {
    pub(super) spec: &'a AttentionSpec,
    pub(super) row: &'a Row,
    pub(super) kv_head: usize,
}

impl Queries<'_> {
    #[inline(always)]
    fn group(&self) -> usize {
        self.spec.layout.heads / self.spec.layout.kv_heads
    }

    /// Returns the positions that query `u` attends to.
    #[inline(always)]
    pub(super) fn sees(&self, u: usize) -> Range<usize> {
        let position = self.row.start + u / self.group();
        self.spec.window.map_or(0, |window| (position + 1).saturating_sub(window))..position + 1
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

    /// Writes the attention of query `u` to `out`, `[n, heads * head_dim]`.
    ///
    /// # Safety
    /// The query's part of `out` belongs to the caller alone.
    #[inline(always)]
    pub(super) unsafe fn finish(&self, u: usize, values: &[f32], sum: f32, out: Shared<f32>) {
        let (token, head) = self.token_and_head(u);
        let dim = self.spec.layout.head_dim;
        // SAFETY: the caller guarantees it.
        let out = unsafe { out.slice((token * self.spec.layout.heads + head) * dim, dim) };
        let factor = 1.0 / sum;
        out.iter_mut().zip(values).for_each(|(out, value)| *out = *value * factor);
    }
}

/// A tile of queries, and the ranges of keys to compute.
pub(super) struct Tile<'a> {
    pub(super) of: Queries<'a>,
    pub(super) spec: &'a AttentionSpec,
    pub(super) kv: &'a Kv,
    /// The sequence's block table.
    pub(super) blocks: &'a [u32],
    pub(super) kv_head: usize,
    /// At most [`QUERIES`].
    pub(super) queries: Range<usize>,
    pub(super) ranges: Range<usize>,
    /// `[n, layout.cols()]`
    pub(super) qkv: &'a [f32],
    pub(super) to: Output,
    /// [`scratch`](super::scratch) numbers.
    pub(super) scratch: Shared<f32>,
}

/// The place of a tile's results.
#[derive(Clone, Copy)]
pub(super) enum Output {
    /// The attention of all ranges, `[n, heads * head_dim]`.
    Attention(Shared<f32>),
    /// Partial results of a single range, `[queries, stride]`.
    Partials(Shared<f32>),
}

impl Tile<'_> {
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

impl Kernel for Tile<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller guarantees the instruction set and valid pointers.
        unsafe {
            match &self.kv.cache {
                Cache::F32(pages) => run::<S, Single<f32>>(&self, &pages.view()),
                Cache::F16(pages) => run::<S, Single<half::f16>>(&self, &pages.view()),
                Cache::BF16(pages) => run::<S, Single<half::bf16>>(&self, &pages.view()),
                Cache::Bf16Pairs(pages) if S::HAS_BF16 => {
                    run::<S, Pair>(&self, &pages.view());
                }
                Cache::Int8(pages) => run::<S, Single<i8>>(&self, &pages.view()),
                Cache::Bf16Pairs(_) => unreachable!("pairs without an instruction; this is a bug"),
            }
        }
    }
}

/// The parts of a tile in the working memory.
#[derive(Clone, Copy)]
pub(super) struct Work {
    /// Packed queries, tiles of `[words][height]`.
    pub(super) q: *mut u32,
    /// Weighted values of the current range, `[QUERIES, padded head_dim]`.
    pub(super) acc: *mut f32,
    /// Weighted values of the ranges before it, `[QUERIES, padded head_dim]`.
    merged: *mut f32,
    /// Scores, then weights of one segment, `[QUERIES, SEGMENT]`.
    pub(super) p: *mut f32,
    /// Factors on the scores of one segment, by key.
    pub(super) scales: *mut f32,
    /// Factors on the values of one segment, by key.
    value_scales: *mut f32,
    /// A copy of one word of values.
    pub(super) word: *mut u32,
}

impl Work {
    /// Divides working memory of [`scratch`](super::scratch) numbers.
    #[inline(always)]
    fn new(scratch: Shared<f32>, dim: usize) -> Work {
        let width = padded(dim);
        let q = scratch.as_ptr();
        let acc = q.wrapping_add(QUERIES * dim.next_multiple_of(2));
        let merged = acc.wrapping_add(QUERIES * width);
        let p = merged.wrapping_add(QUERIES * width);
        let scales = p.wrapping_add(QUERIES * SEGMENT);
        let value_scales = scales.wrapping_add(SEGMENT);
        let word = value_scales.wrapping_add(SEGMENT).cast();
        Work { q: q.cast(), acc, merged, p, scales, value_scales, word }
    }
}

#[inline(always)]
unsafe fn run<S: Simd, F: Step>(tile: &Tile<'_>, view: &View<F>) {
    let dim = tile.spec.layout.head_dim;
    let width = padded(dim);
    let work = Work::new(tile.scratch, dim);
    let mut merged = [None; QUERIES];
    // SAFETY: the caller guarantees the instruction set and valid pointers. The loops stay inside
    // the operands, and the working memory belongs to this task.
    unsafe {
        queries::pack::<S, F>(tile, work);
        for j in (0..SEGMENT).step_by(S::LANES) {
            S::store(work.scales.add(j), S::splat(tile.spec.scale));
        }
        for range in tile.ranges.clone() {
            let softmax = attend::<S, F>(tile, view, work, range);
            for (i, u) in tile.queries.clone().enumerate() {
                if tile.of.sees_in(u, range).is_empty() {
                    continue;
                }
                let found = Partial { max: softmax[i].max, sum: S::sum(softmax[i].sum) };
                let values = std::slice::from_raw_parts(work.acc.add(i * width), width);
                match tile.to {
                    Output::Partials(to) => {
                        let stride = merge::stride(dim);
                        merge::write(to.slice(i * stride, stride), values, found);
                    }
                    Output::Attention(out) if tile.ranges.len() == 1 => {
                        tile.of.finish(u, values, found.sum, out);
                    }
                    Output::Attention(out) => {
                        let sums = std::slice::from_raw_parts_mut(work.merged.add(i * width), width);
                        let of_range = Unscaled { softmax: found, values };
                        let all = merge::<S>(merged[i], sums, of_range);
                        merged[i] = Some(all);
                        if range + 1 == tile.ranges.end || tile.of.sees_in(u, range + 1).is_empty() {
                            tile.of.finish(u, sums, all.sum, out);
                        }
                    }
                }
            }
        }
    }
}

/// Computes the weighted values of one range, in [`Work::acc`], and returns the softmax of each
/// query.
#[inline(always)]
unsafe fn attend<S: Simd, F: Step>(
    tile: &Tile<'_>,
    view: &View<F>,
    work: Work,
    range: usize,
) -> [Softmax<S::V>; QUERIES] {
    let count = tile.queries.len();
    let width = padded(tile.spec.layout.head_dim);
    let first = tile.of.sees_in(tile.queries.start, range).start;
    let end = tile.of.sees_in(tile.queries.end - 1, range).end;
    // SAFETY: as in `run`.
    unsafe {
        let mut softmax = [Softmax { max: f32::NEG_INFINITY, sum: S::splat(0.0) }; QUERIES];
        std::slice::from_raw_parts_mut(work.acc, count * width).fill(0.0);
        for start in (first / SEGMENT * SEGMENT..end).step_by(SEGMENT) {
            let segment = start..start + SEGMENT;
            let keys = first.max(start)..end.min(segment.end);
            let value_scales = gather_scales::<S, F>(tile, view, work, keys.clone(), start);
            scores::scores::<S, F>(tile, view, work, keys, start);
            let mut seen = [(0, 0); QUERIES]; // each query's keys in the segment
            for (i, u) in tile.queries.clone().enumerate() {
                let keys = tile.of.sees(u);
                let keys = keys.start.max(start)..keys.end.min(segment.end);
                seen[i] = (keys.start, keys.end.max(keys.start));
                if !keys.is_empty() {
                    let p = work.p.add(i * SEGMENT);
                    let keys = keys.start - start..keys.end - start;
                    weigh::<S, F>(&mut softmax[i], p, value_scales, keys, work.acc.add(i * width), width);
                }
            }
            let segment = Segment { tile, view, work, start, end };
            values::<S, F>(&segment, &seen[..count]);
        }
        softmax
    }
}

/// Copies the factors on the scores and on the values of the keys at `keys`, in whole vectors, if
/// the format has any. Returns those on the values, by key of the segment.
#[inline(always)]
unsafe fn gather_scales<S: Simd, F: Step>(
    tile: &Tile<'_>,
    view: &View<F>,
    work: Work,
    keys: Range<usize>,
    start: usize,
) -> Option<*const f32> {
    for at in (keys.start / S::LANES * S::LANES..keys.end).step_by(S::LANES) {
        let [of_keys, of_values] = view.scales(tile.place(at), tile.kv_head)?;
        // SAFETY: the scales of a block follow each other, and no vector spans two blocks.
        unsafe {
            let scale = S::mul(S::load(of_keys), S::splat(tile.spec.scale));
            S::store(work.scales.add(at - start), scale);
            S::store(work.value_scales.add(at - start), S::load(of_values));
        }
    }
    view.has_scales().then_some(work.value_scales.cast_const())
}
