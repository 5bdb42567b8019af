//! Attention over the paged cache.
//!
//! Queries that read the same keys are computed together: those of a group of heads, and in a
//! prefill chunk also those of successive tokens. Keys are processed in segments at fixed
//! positions, with an online softmax across segments (Milakov and Gimelshein, "Online normalizer
//! calculation for softmax"; Dao et al., "FlashAttention"). Within a segment every score and every
//! output feature is one chain of fused products, so that a result depends neither on the other
//! queries of a tile nor on how a prompt was cut into chunks.

use std::ops::Range;

use super::exp::exp;
use super::kv::{Cache, Kv, Pages, key_at, padded, value_at};
use super::memory::Shared;
use super::queue::Row;
use super::simd::{Element, Kernel, Simd};
use super::tile::{Stream, Tiles, accumulate, with_height};
use crate::backend::AttentionSpec;

/// Keys in a segment. It is a multiple of twice the longest vector.
const SEGMENT: usize = 128;
/// The largest number of queries in a tile. It is a multiple of the largest height of all
/// instruction sets.
pub(super) const QUERIES: usize = 48;

/// Returns the numbers of working memory that a tile needs.
pub(super) const fn scratch(head_dim: usize) -> usize {
    QUERIES * (head_dim + padded(head_dim) + SEGMENT)
}

/// Queries of one sequence that share a KV head. Query `u` is head `u % group` of the group, at
/// token `u / group` of the row.
pub(super) struct Tile<'a> {
    pub(super) spec: &'a AttentionSpec,
    pub(super) kv: &'a Kv,
    pub(super) row: &'a Row,
    /// The sequence's block table.
    pub(super) blocks: &'a [u32],
    pub(super) kv_head: usize,
    /// At most [`QUERIES`].
    pub(super) queries: Range<usize>,
    /// `[n, layout.cols()]`
    pub(super) qkv: &'a [f32],
    /// `[n, heads * head_dim]`
    pub(super) out: Shared<f32>,
    /// [`scratch`] numbers.
    pub(super) scratch: Shared<f32>,
}

impl Tile<'_> {
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

    /// Returns the token of the step and the head of query `u`.
    #[inline(always)]
    fn token_and_head(&self, u: usize) -> (usize, usize) {
        (self.row.token + u / self.group(), self.kv_head * self.group() + u % self.group())
    }
}

impl Kernel for Tile<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller guarantees the instruction set and valid pointers.
        unsafe {
            match &self.kv.cache {
                Cache::F32(pages) => run::<S, f32>(&self, pages),
                Cache::F16(pages) => run::<S, half::f16>(&self, pages),
                Cache::BF16(pages) => run::<S, half::bf16>(&self, pages),
            }
        }
    }
}

/// The parts of a tile in the working memory.
#[derive(Clone, Copy)]
struct Work {
    /// Packed queries, tiles of `[head_dim][height]`.
    q: *mut f32,
    /// Weighted values, `[QUERIES, padded head_dim]`.
    acc: *mut f32,
    /// Scores, then weights of one segment, `[QUERIES, SEGMENT]`.
    p: *mut f32,
}

/// The running softmax of one query.
#[derive(Clone, Copy)]
struct Softmax<V> {
    max: f32,
    /// The sums of the weights, one per lane.
    sum: V,
}

#[inline(always)]
unsafe fn run<S: Simd, T: Element>(tile: &Tile<'_>, pages: &Pages<T>) {
    let dim = tile.spec.layout.head_dim;
    let width = padded(dim);
    let count = tile.queries.len();
    let q = tile.scratch.as_ptr();
    // SAFETY: the working memory is large enough for all three.
    let work = unsafe { Work { q, acc: q.add(QUERIES * dim), p: q.add(QUERIES * (dim + width)) } };
    // SAFETY: the caller guarantees the instruction set and valid pointers.
    let mut softmax = unsafe { [Softmax { max: f32::NEG_INFINITY, sum: S::splat(0.0) }; QUERIES] };
    // SAFETY: as above. The loops stay inside the operands.
    unsafe {
        pack_queries::<S>(tile, work.q);
        std::slice::from_raw_parts_mut(work.acc, count * width).fill(0.0);

        let first = tile.sees(tile.queries.start).start;
        let end = tile.sees(tile.queries.end - 1).end;
        for start in (first / SEGMENT * SEGMENT..end).step_by(SEGMENT) {
            let segment = start..start + SEGMENT;
            scores::<S, T>(tile, pages, work, first.max(start)..end.min(segment.end), start);
            let mut seen = [(0, 0); QUERIES]; // each query's keys in the segment
            for (i, u) in tile.queries.clone().enumerate() {
                let keys = tile.sees(u);
                let keys = keys.start.max(start)..keys.end.min(segment.end);
                seen[i] = (keys.start, keys.end.max(keys.start));
                if !keys.is_empty() {
                    let p = work.p.add(i * SEGMENT);
                    let keys = keys.start - start..keys.end - start;
                    weigh::<S>(&mut softmax[i], p, keys, work.acc.add(i * width), width);
                }
            }
            values::<S, T>(tile, pages, work, &seen[..count], start);
        }

        for (i, u) in tile.queries.clone().enumerate() {
            let (token, head) = tile.token_and_head(u);
            let out = tile.out.slice((token * tile.spec.layout.heads + head) * dim, dim);
            let factor = 1.0 / S::sum(softmax[i].sum);
            for (d, out) in out.iter_mut().enumerate() {
                *out = *work.acc.add(i * width + d) * factor;
            }
        }
    }
}

/// Packs the queries in tiles of `[head_dim][height]`.
#[inline(always)]
unsafe fn pack_queries<S: Simd>(tile: &Tile<'_>, to: *mut f32) {
    let layout = tile.spec.layout;
    let count = tile.queries.len();
    let tiles = Tiles::new(count, S::ROWS);
    for rows in (0..tiles.count()).map(|tile| tiles.rows(tile)) {
        let h = rows.len();
        for i in 0..h {
            let (token, head) = tile.token_and_head(tile.queries.start + rows.start + i);
            let query = &tile.qkv[token * layout.cols() + head * layout.head_dim..][..layout.head_dim];
            for (d, q) in query.iter().enumerate() {
                // SAFETY: a tile of height h takes h * head_dim numbers, and all tiles together
                // take at most QUERIES * head_dim.
                unsafe { *to.add(rows.start * layout.head_dim + d * h + i) = *q };
            }
        }
    }
}

/// Computes the scaled products of all queries with the keys at `keys`, in whole vectors. `start`
/// is the first position of the segment.
#[inline(always)]
unsafe fn scores<S: Simd, T: Element>(
    tile: &Tile<'_>,
    pages: &Pages<T>,
    work: Work,
    keys: Range<usize>,
    start: usize,
) {
    let spec = &tile.kv.spec;
    let pair = 2 * S::LANES;
    let vector = |position: usize| {
        // A pair may reach past the last block. Its second half is then computed from the first,
        // and not used.
        let position = if position < keys.end { position } else { position - S::LANES };
        let block = tile.blocks[position / spec.block_size];
        pages.k[key_at(spec, block, tile.kv_head, position % spec.block_size)..].as_ptr()
    };
    let mut at = keys.start / pair * pair;
    while at < keys.end {
        let w = [vector(at), vector(at + S::LANES)];
        let next = at + pair;
        let ahead = if next < keys.end { [vector(next), vector(next + S::LANES)] } else { w };
        let stream = Stream { w, stride: spec.block_size, ahead };
        let tiles = Tiles::new(tile.queries.len(), S::ROWS);
        for rows in (0..tiles.count()).map(|tile| tiles.rows(tile)) {
            // SAFETY: blocks of the table are inside the cache, and whole vectors inside their
            // block.
            unsafe {
                with_height!(S, rows.len(), score_tile::<S, T>(tile, work, stream, rows.start, at - start));
            }
        }
        at = next;
    }
}

/// Computes the scores of M queries from `row` with one pair of key vectors, and stores them at key
/// `at` of the segment.
#[inline(always)]
unsafe fn score_tile<S: Simd, T: Element, const M: usize>(
    tile: &Tile<'_>,
    work: Work,
    stream: Stream<T, 2>,
    row: usize,
    at: usize,
) {
    // SAFETY: the caller guarantees the instruction set and valid pointers.
    unsafe { S::call(ScoreTile::<T, M> { tile, work, stream, row, at }) }
}

struct ScoreTile<'a, T: Element, const M: usize> {
    tile: &'a Tile<'a>,
    work: Work,
    stream: Stream<T, 2>,
    row: usize,
    at: usize,
}

impl<T: Element, const M: usize> Kernel for ScoreTile<'_, T, M> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let ScoreTile { tile, work, stream, row, at } = self;
        let dim = tile.spec.layout.head_dim;
        // SAFETY: the creator guarantees valid pointers.
        unsafe {
            let mut acc = [[S::splat(0.0); 2]; M];
            accumulate::<S, T, M, 2>(&mut acc, work.q.add(row * dim), 1, M, stream, dim);
            let scale = S::splat(tile.spec.scale);
            for (i, [a, b]) in acc.into_iter().enumerate() {
                let p = work.p.add((row + i) * SEGMENT + at);
                S::store(p, S::mul(a, scale));
                S::store(p.add(S::LANES), S::mul(b, scale));
            }
        }
    }
}

/// Turns the scores at `p` of the keys at `keys`, counted from the segment's start, into weights.
/// Rescales the sums that were computed with an earlier maximum.
#[inline(always)]
unsafe fn weigh<S: Simd>(
    softmax: &mut Softmax<S::V>,
    p: *mut f32,
    keys: Range<usize>,
    acc: *mut f32,
    width: usize,
) {
    let whole = keys.start / S::LANES * S::LANES..keys.end.next_multiple_of(S::LANES);
    // SAFETY: `whole` is inside the segment, and LANES divides `width`.
    unsafe {
        // The outermost vectors also contain scores of keys that the query does not attend to.
        for j in (whole.start..keys.start).chain(keys.end..whole.end) {
            *p.add(j) = f32::NEG_INFINITY;
        }
        let mut max = S::splat(softmax.max);
        for j in whole.clone().step_by(S::LANES) {
            max = S::max(max, S::load(p.add(j)));
        }
        let max = S::greatest(max);
        if max != softmax.max {
            let factor = exp::<S>(S::splat(softmax.max - max));
            softmax.max = max;
            softmax.sum = S::mul(softmax.sum, factor);
            for d in (0..width).step_by(S::LANES) {
                S::store(acc.add(d), S::mul(S::load(acc.add(d)), factor));
            }
        }
        for j in whole.step_by(S::LANES) {
            let weight = exp::<S>(S::sub(S::load(p.add(j)), S::splat(max)));
            S::store(p.add(j), weight);
            softmax.sum = S::add(softmax.sum, weight);
        }
    }
}

/// Adds the weighted values. A query never reads a value that it does not attend to, because that
/// place of the cache may hold anything, NaN included.
#[inline(always)]
unsafe fn values<S: Simd, T: Element>(
    tile: &Tile<'_>,
    pages: &Pages<T>,
    work: Work,
    seen: &[(usize, usize)],
    start: usize,
) {
    // Values that all queries attend to are read once for all of them.
    let from = seen.iter().map(|s| s.0).fold(0, usize::max);
    let to = seen.iter().map(|s| s.1).fold(usize::MAX, usize::min);
    // SAFETY: the caller guarantees the instruction set and valid pointers.
    unsafe {
        if from >= to {
            for (i, &(from, to)) in seen.iter().enumerate() {
                value_tile::<S, T, 1>(tile, pages, work, i, from..to, start);
            }
            return;
        }
        for (i, s) in seen.iter().enumerate() {
            value_tile::<S, T, 1>(tile, pages, work, i, s.0..from, start);
        }
        let tiles = Tiles::new(seen.len(), S::ROWS);
        for rows in (0..tiles.count()).map(|tile| tiles.rows(tile)) {
            with_height!(S, rows.len(), value_tile::<S, T>(tile, pages, work, rows.start, from..to, start));
        }
        for (i, s) in seen.iter().enumerate() {
            value_tile::<S, T, 1>(tile, pages, work, i, to..s.1, start);
        }
    }
}

/// Adds the weighted values of `keys` for M queries from `row`, over all features.
#[inline(always)]
unsafe fn value_tile<S: Simd, T: Element, const M: usize>(
    tile: &Tile<'_>,
    pages: &Pages<T>,
    work: Work,
    row: usize,
    keys: Range<usize>,
    start: usize,
) {
    if keys.is_empty() {
        return;
    }
    // SAFETY: the caller guarantees the instruction set and valid pointers.
    unsafe { S::call(ValueTile::<T, M> { tile, pages, work, row, keys, start }) }
}

struct ValueTile<'a, T: Element, const M: usize> {
    tile: &'a Tile<'a>,
    pages: &'a Pages<T>,
    work: Work,
    row: usize,
    keys: Range<usize>,
    start: usize,
}

impl<T: Element, const M: usize> Kernel for ValueTile<'_, T, M> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let ValueTile { tile, pages, work, row, keys, start } = self;
        let width = padded(tile.spec.layout.head_dim);
        let mut d = 0;
        while d < width {
            // SAFETY: the creator guarantees valid pointers.
            unsafe {
                if d + 2 * S::LANES <= width {
                    value_columns::<S, T, M, 2>(tile, pages, work, row, keys.clone(), start, d);
                    d += 2 * S::LANES;
                } else {
                    value_columns::<S, T, M, 1>(tile, pages, work, row, keys.clone(), start, d);
                    d += S::LANES;
                }
            }
        }
    }
}

/// Adds NV vectors of features from `d` for M queries from `row`.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "the innermost loops, separate so that M and NV are constants")]
unsafe fn value_columns<S: Simd, T: Element, const M: usize, const NV: usize>(
    tile: &Tile<'_>,
    pages: &Pages<T>,
    work: Work,
    row: usize,
    keys: Range<usize>,
    start: usize,
    d: usize,
) {
    let spec = &tile.kv.spec;
    let width = padded(tile.spec.layout.head_dim);
    let value = |position: usize| {
        let block = tile.blocks[position / spec.block_size];
        pages.v[value_at(spec, block, tile.kv_head, position % spec.block_size) + d..].as_ptr()
    };
    // SAFETY: the rows are inside the tile, and the keys inside the table.
    unsafe {
        let mut acc = [[S::splat(0.0); NV]; M];
        for i in 0..M {
            for v in 0..NV {
                acc[i][v] = S::load(work.acc.add((row + i) * width + d + v * S::LANES));
            }
        }
        let mut at = keys.start;
        while at < keys.end {
            let next = ((at / spec.block_size + 1) * spec.block_size).min(keys.end);
            let from = value(at);
            let after = if next < keys.end { value(next) } else { from };
            let mut stream = Stream { w: [from; NV], stride: width, ahead: [after; NV] };
            for v in 0..NV {
                stream.w[v] = from.add(v * S::LANES);
                stream.ahead[v] = after.wrapping_add(v * S::LANES);
            }
            let p = work.p.add(row * SEGMENT + at - start);
            accumulate::<S, T, M, NV>(&mut acc, p, SEGMENT, 1, stream, next - at);
            at = next;
        }
        for i in 0..M {
            for v in 0..NV {
                S::store(work.acc.add((row + i) * width + d + v * S::LANES), acc[i][v]);
            }
        }
    }
}
