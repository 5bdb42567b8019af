//! Scores and weighted values on the tile unit of Intel AMX.
//!
//! Keys and values are computed in groups of 16 positions that start at multiples of 16, and a
//! query's weight for a position that it does not attend to is zero. So a result depends neither on
//! the other queries of a tile nor on how a prompt was cut into chunks, as without the unit.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::ops::Range;

use super::super::amx::{Amx, ROWS, Scores, Weighted};
use super::super::kv::{View, padded};
use super::super::simd::Simd;
use super::super::step::{Pair, ProductStep};
use super::super::tile::Tiles;
use super::SEGMENT;
use super::job::{HeadDims, Tile, Work};
use super::products::Products;
use super::values::Segment;

/// Positions of a group.
const GROUP: usize = 16;
/// Groups of a segment.
const GROUPS: usize = SEGMENT / GROUP;
/// Features of a step.
const FEATURES: usize = 32;
/// Bytes of the weights of a group.
const WEIGHT_BYTES: usize = GROUP * size_of::<u16>();

/// The products on the tile unit.
pub(super) struct OnTiles(Amx);

impl OnTiles {
    pub(super) fn new() -> OnTiles {
        OnTiles(Amx::new())
    }

    /// Returns whether the unit can compute these heads: their features are whole steps.
    pub(super) fn fits(tile: &Tile<'_>) -> bool {
        let dim = tile.dims().key;
        dim > 0 && dim.is_multiple_of(FEATURES) && !tile.dims().shared
    }
}

impl Products<Pair> for OnTiles {
    #[inline(always)]
    unsafe fn pack<S: Simd>(&mut self, tile: &Tile<'_>, work: Work) {
        // SAFETY: the caller guarantees the same.
        unsafe { pack::<S>(tile, work) }
    }

    #[inline(always)]
    unsafe fn scores<S: Simd>(
        &mut self,
        tile: &Tile<'_>,
        view: &View<Pair>,
        work: Work,
        keys: Range<usize>,
        start: usize,
    ) {
        // SAFETY: the caller guarantees the same.
        unsafe { scores::<S>(&mut self.0, tile, view, work, keys, start) }
    }

    #[inline(always)]
    unsafe fn values<S: Simd>(&mut self, segment: &Segment<'_, Pair>, seen: &[(usize, usize)]) {
        let start = segment.start;
        for (i, seen) in seen.iter().enumerate() {
            // SAFETY: the working memory has the weights of each query.
            unsafe { clear_others(segment.work.p.add(i * SEGMENT), *seen, start) };
        }
        // SAFETY: the caller guarantees the same.
        unsafe { values(&mut self.0, segment, seen) }
    }
}

/// Returns the tiles of `queries` queries.
fn tiles(queries: usize) -> impl Iterator<Item = Range<usize>> {
    let tiles = Tiles::new(queries, ROWS);
    (0..tiles.count()).map(move |tile| tiles.rows(tile))
}

/// Packs the queries in tiles of `[head_dim / 32][height][32]` bf16 numbers.
///
/// # Safety
/// As for [`Products::pack`].
#[inline(always)]
unsafe fn pack<S: Simd>(tile: &Tile<'_>, work: Work) {
    let HeadDims { key: dim, query_stride, .. } = tile.dims();
    for rows in tiles(tile.queries.len()) {
        for i in rows.clone() {
            let (token, head) = tile.token_and_head(tile.queries.start + i);
            let query = &tile.qkv[token * query_stride + head * dim..][..dim];
            for (step, x) in query.chunks_exact(FEATURES).enumerate() {
                let at = rows.start * dim + (step * rows.len() + i - rows.start) * FEATURES;
                for first in (0..FEATURES).step_by(S::LANES) {
                    // SAFETY: the working memory holds the queries, and the number of lanes divides
                    // the features of a step.
                    unsafe {
                        let to = work.q.cast::<u16>().add(at + first);
                        S::store_bf16(to, S::load(x.as_ptr().add(first)));
                    }
                }
            }
        }
    }
}

/// Computes scores of queries that [`pack`] has packed.
///
/// # Safety
/// As for [`Products::scores`].
#[inline(always)]
unsafe fn scores<S: Simd>(
    unit: &mut Amx,
    tile: &Tile<'_>,
    view: &View<Pair>,
    work: Work,
    keys: Range<usize>,
    start: usize,
) {
    let dim = tile.spec.layout.head_dim;
    let scale = tile.spec.scale;
    let mut at = keys.start / GROUP * GROUP;
    // SAFETY: blocks of the table are inside the cache, and whole groups inside their block.
    unsafe {
        while at < keys.end {
            // Groups behind the last key are computed from the first, and not used.
            let groups: [usize; 4] = std::array::from_fn(|g| {
                let group = at + g * GROUP;
                if group < keys.end && group < start + SEGMENT { group } else { at }
            });
            for group in groups {
                // The values of the same keys are needed next.
                let values = view.value(tile.place(group), tile.kv_head).cast::<u8>();
                prefetch(values, view.value_stride() * GROUP / Pair::INPUTS * size_of::<u32>());
            }
            let of = Scores {
                height: 0,
                queries: work.q.cast(),
                steps: dim / FEATURES,
                keys: groups.map(|group| view.key(tile.place(group), tile.kv_head).cast()),
                key_stride: view.key_stride() * size_of::<u32>(),
                to: work.p,
                to_stride: SEGMENT * size_of::<f32>(),
            };
            let count = (start + SEGMENT - at).min(4 * GROUP);
            for rows in tiles(tile.queries.len()) {
                // The products of groups behind the segment must not be written to its neighbor.
                let mut products = [[0f32; 4 * GROUP]; ROWS];
                let to = work.p.add(rows.start * SEGMENT + at - start);
                let is_whole = count == 4 * GROUP;
                unit.scores(&Scores {
                    height: rows.len(),
                    queries: of.queries.add(rows.start * dim * size_of::<u16>()),
                    to: if is_whole { to } else { products.as_mut_ptr().cast() },
                    to_stride: if is_whole { of.to_stride } else { size_of_val(&products[0]) },
                    ..of
                });
                for i in 0..rows.len() {
                    let to = to.add(i * SEGMENT);
                    let from = if is_whole { to.cast_const() } else { products[i].as_ptr() };
                    for j in (0..count).step_by(S::LANES) {
                        S::store(to.add(j), S::mul(S::load(from.add(j)), S::splat(scale)));
                    }
                }
            }
            at += 4 * GROUP;
        }
    }
}

/// Sets the weights of the groups of the segment that a query does not attend to at all to zero.
/// In the other groups its weights for positions outside `seen` are zeros already.
#[inline(always)]
unsafe fn clear_others(p: *mut f32, seen: (usize, usize), start: usize) {
    let p = p.cast::<u16>();
    let (from, to) = if seen.0 < seen.1 {
        ((seen.0 - start) / GROUP * GROUP, (seen.1 - start).next_multiple_of(GROUP))
    } else {
        (SEGMENT, SEGMENT)
    };
    // SAFETY: both ranges are inside the segment.
    unsafe {
        std::slice::from_raw_parts_mut(p, from).fill(0);
        std::slice::from_raw_parts_mut(p.add(to), SEGMENT - to).fill(0);
    }
}

/// Adds the weighted values. `seen` are the positions in the segment that each query attends to.
///
/// A position that no query of a group attends to may hold anything, NaN included, and so its
/// values are left out. One that only some attend to is computed for all of them, with weights of
/// zero for the others, unless it holds a number that is not finite.
///
/// # Safety
/// As for [`scores`].
#[inline(always)]
unsafe fn values(unit: &mut Amx, segment: &Segment<'_, Pair>, seen: &[(usize, usize)]) {
    let Segment { tile, view, start, end, .. } = *segment;
    let attending = || seen.iter().filter(|s| s.0 < s.1);
    let all = attending().map(|s| s.0).min().unwrap_or(0)..attending().map(|s| s.1).max().unwrap_or(0);
    if all.is_empty() {
        return;
    }
    let first = all.start / GROUP * GROUP;
    let mut list = [std::ptr::null(); GROUPS];
    let mut len = 0;
    let groups = (first..all.end).step_by(GROUP);
    for group in groups.clone() {
        let next = group + SEGMENT;
        if next < end {
            // The keys of the next segment are needed next.
            let keys = view.key(tile.place(next), tile.kv_head);
            for pair in 0..tile.spec.layout.head_dim / Pair::INPUTS {
                prefetch(keys.wrapping_add(pair * view.key_stride()).cast(), 64);
            }
        }
    }
    // SAFETY: the positions are inside the table, and the lists have a place for each group.
    unsafe {
        let mut begin = first;
        for group in groups {
            let is_whole = seen.iter().all(|s| s.0 <= group && group + GROUP <= s.1);
            if is_whole {
                list[len] = view.value(tile.place(group), tile.kv_head).cast();
                len += 1;
                continue;
            }
            segment.add(unit, 0..seen.len(), begin - start, &list[..len]);
            (begin, len) = (group + GROUP, 0);
            let kept = all.start.max(group) - group..all.end.min(group + GROUP) - group;
            if segment.copy(group, &kept) {
                segment.add(unit, 0..seen.len(), group - start, &[segment.work.word.cast_const().cast()]);
                continue;
            }
            let mut query = 0;
            for run in seen.chunk_by(|a, b| a == b) {
                let (from, to) = (run[0].0.max(group), run[0].1.min(group + GROUP));
                if from < to {
                    segment.copy(group, &(from - group..to - group));
                    let copied = [segment.work.word.cast_const().cast()];
                    segment.add(unit, query..query + run.len(), group - start, &copied);
                }
                query += run.len();
            }
        }
        segment.add(unit, 0..seen.len(), begin - start, &list[..len]);
    }
}

impl Segment<'_, Pair> {
    /// Adds the values of successive groups, the first of which starts at `at`, for some queries.
    #[inline(always)]
    unsafe fn add(&self, unit: &mut Amx, queries: Range<usize>, at: usize, groups: &[*const u8]) {
        if groups.is_empty() {
            return;
        }
        let width = padded(self.tile.spec.layout.head_dim);
        let mut of_features = [std::ptr::null(); GROUPS];
        for rows in tiles(queries.len()) {
            let row = queries.start + rows.start;
            let mut feature = 0;
            while feature < width {
                let values = &mut of_features[..groups.len()];
                for (to, group) in values.iter_mut().zip(groups) {
                    *to = group.wrapping_add(feature * size_of::<u32>());
                }
                // SAFETY: the rows are inside the tile, and the groups inside the segment.
                unsafe {
                    let weights = self.work.p.add(row * SEGMENT).cast::<u8>();
                    let job = Weighted {
                        height: rows.len(),
                        weights: weights.add(at / GROUP * WEIGHT_BYTES),
                        weight_stride: SEGMENT * size_of::<f32>(),
                        values,
                        value_stride: width * size_of::<u32>(),
                        sums: self.work.acc.add(row * width + feature),
                        sum_stride: width * size_of::<f32>(),
                    };
                    if width - feature >= 64 {
                        unit.weigh::<64>(&job);
                        feature += 64;
                    } else {
                        unit.weigh::<32>(&job);
                        feature += 32;
                    }
                }
            }
        }
    }

    /// Copies the values of a group to [`Work::word`], with zeros for positions outside `kept`, and
    /// returns whether all are finite.
    #[inline(always)]
    unsafe fn copy(&self, group: usize, kept: &Range<usize>) -> bool {
        const EXPONENT: u32 = 0x7f80;
        let width = padded(self.tile.spec.layout.head_dim);
        let from = self.view.value(self.tile.place(group), self.tile.kv_head).cast::<u32>();
        let mut infinite = false;
        for pair in 0..GROUP / 2 {
            let keep = |slot: usize| if kept.contains(&slot) { 0xffff } else { 0 };
            let mask = keep(2 * pair) | keep(2 * pair + 1) << 16;
            // SAFETY: the group is inside the cache, and the working memory holds it.
            unsafe {
                for d in pair * width..(pair + 1) * width {
                    let words = *from.add(d) & mask;
                    *self.work.word.add(d) = words;
                    infinite |= words & EXPONENT == EXPONENT || words >> 16 & EXPONENT == EXPONENT;
                }
            }
        }
        !infinite
    }
}

/// Prefetches `bytes` bytes at an address, which need not be valid.
#[inline(always)]
fn prefetch(from: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(64) {
        // SAFETY: a prefetch has no effect but on caches.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(line).cast()) };
    }
}
