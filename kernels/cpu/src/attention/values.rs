//! The sums of the values of a segment, weighted by the softmax.
//!
//! A query never reads a value that it does not attend to, because that place of the cache may hold
//! anything, NaN included.

use std::ops::Range;

use super::super::kv::{View, padded};
use super::super::simd::{Extension, Kernel, Simd};
use super::super::step::ProductStep;
use super::super::tile::{Tiles, with_height};
use super::job::{Tile, Work};
use super::stream::{Ahead, Factors, Stream, accumulate};
use super::{GROUP, SEGMENT};

/// The values of one segment, and what is prefetched meanwhile.
pub(super) struct Segment<'a, F: ProductStep> {
    pub(super) tile: &'a Tile<'a>,
    pub(super) view: &'a View<F>,
    pub(super) work: Work,
    /// The first position.
    pub(super) start: usize,
    /// One past the last position of all segments.
    pub(super) end: usize,
}

/// Adds the weighted values. `seen` are the positions in the segment that each query attends to.
///
/// # Safety
/// The machine has the instruction set, and the block table covers the positions.
#[inline(always)]
pub(super) unsafe fn values<S: Simd, F: ProductStep>(segment: &Segment<'_, F>, seen: &[(usize, usize)]) {
    // Words that all queries attend to are read once for all of them.
    let from = seen.iter().map(|s| s.0).fold(0, usize::max).next_multiple_of(F::INPUTS);
    let to = seen.iter().map(|s| s.1).fold(usize::MAX, usize::min) / F::INPUTS * F::INPUTS;
    // SAFETY: the caller guarantees the instruction set and valid positions.
    unsafe {
        if from >= to {
            each_run::<S, F>(segment, seen, |s| s.0..s.1);
            return;
        }
        each_run::<S, F>(segment, seen, |s| s.0..from);
        whole_words::<S, F>(segment, 0..seen.len(), from..to);
        each_run::<S, F>(segment, seen, |s| to..s.1);
    }
}

/// Adds the values of `keys(seen)` for each run of queries that attend to the same positions.
#[inline(always)]
unsafe fn each_run<S: Simd, F: ProductStep>(
    segment: &Segment<'_, F>,
    seen: &[(usize, usize)],
    keys: impl Fn((usize, usize)) -> Range<usize>,
) {
    let mut first = 0;
    for run in seen.chunk_by(|a, b| a == b) {
        let queries = first..first + run.len();
        let mut keys = keys(run[0]);
        first = queries.end;
        // SAFETY: the caller guarantees the instruction set and valid positions.
        unsafe {
            if F::INPUTS == 2 && !keys.is_empty() && keys.start % 2 == 1 {
                half_word::<S, F>(segment, queries.clone(), keys.start);
                keys.start += 1;
            }
            let end = keys.end / F::INPUTS * F::INPUTS;
            whole_words::<S, F>(segment, queries.clone(), keys.start..end);
            if end < keys.end && keys.start <= end {
                half_word::<S, F>(segment, queries, end);
            }
        }
    }
}

/// Adds the value at `position`, whose neighbor in the same words is not attended to. The words
/// are copied with zeros for the neighbor, which keeps the sums as they are.
#[inline(always)]
unsafe fn half_word<S: Simd, F: ProductStep>(
    segment: &Segment<'_, F>,
    queries: Range<usize>,
    position: usize,
) {
    let Segment { tile, view, work, .. } = *segment;
    let kept: u32 = if position.is_multiple_of(2) { 0xffff } else { 0xffff_0000 };
    // SAFETY: the position is inside the table, and its words inside the cache.
    unsafe {
        let first = position / 2 * 2;
        if tile.dims().shared {
            copy_values(segment, first..first + 2, position..position + 1);
        } else {
            let words = view.value(tile.place(position), tile.kv_head).cast::<u32>();
            for d in 0..padded(tile.dims().value) {
                *work.word.add(d) = *words.add(d) & kept;
            }
        }
        let values = Values { from: Source::Copy, queries, keys: first..first + 2 };
        all_queries::<S, F>(segment, &values);
    }
}

/// Adds the values of `keys`, which are whole words.
#[inline(always)]
unsafe fn whole_words<S: Simd, F: ProductStep>(
    segment: &Segment<'_, F>,
    queries: Range<usize>,
    keys: Range<usize>,
) {
    if !segment.tile.dims().shared {
        if !keys.is_empty() {
            // SAFETY: the caller guarantees the instruction set and valid positions.
            unsafe { all_queries::<S, F>(segment, &Values { from: Source::Cache, queries, keys }) }
        }
        return;
    }
    let mut at = keys.start;
    while at < keys.end {
        let group = at..((at / GROUP + 1) * GROUP).min(keys.end);
        at = group.end;
        // SAFETY: as above. The words of a group are in one block, whose size is a multiple of the
        // group's.
        unsafe {
            copy_values(segment, group.clone(), group.clone());
            let queries = queries.clone();
            all_queries::<S, F>(segment, &Values { from: Source::Copy, queries, keys: group });
        }
    }
}

/// Copies the values at `kept`, which are the last features of the keys, to [`Work::word`] in the
/// order of a cache of values. `words` are at most [`GROUP`] positions, whole words in one block;
/// the values at those that are not in `kept` are zeros, and so is the padding.
///
/// # Safety
/// The block table covers the positions.
#[inline(always)]
unsafe fn copy_values<F: ProductStep>(segment: &Segment<'_, F>, words: Range<usize>, kept: Range<usize>) {
    let Segment { tile, view, work, .. } = *segment;
    let dims = tile.dims();
    let (width, first) = (padded(dims.value), dims.key - dims.value);
    let (pack, size) = (F::INPUTS, view.block_size());
    // SAFETY: the words are in one block of the cache, and the working memory holds a group.
    unsafe {
        let keys = view.key(tile.place(words.start), tile.kv_head);
        if pack == 2 {
            let (keys, to) = (keys.cast::<u16>(), work.word.cast::<u16>());
            std::slice::from_raw_parts_mut(to, words.len() * width).fill(0);
            for d in 0..dims.value {
                let feature = first + d;
                // Features are in pairs, and each pair has the positions of the block in order.
                let from = keys.add(feature / 2 * size * 2 + feature % 2);
                for at in kept.clone() {
                    let i = at - words.start;
                    *to.add((i / 2 * width + d) * 2 + i % 2) = *from.add(i * 2);
                }
            }
        } else {
            let to = work.word.cast::<F::Weight>();
            to.write_bytes(0, words.len() * width);
            for d in 0..dims.value {
                let from = keys.add((first + d) * size);
                for i in 0..words.len() {
                    *to.add(i * width + d) = *from.add(i);
                }
            }
        }
    }
}

/// Values that are added for some queries.
struct Values {
    from: Source,
    queries: Range<usize>,
    keys: Range<usize>,
}

/// The place of values.
#[derive(Clone, Copy)]
enum Source {
    Cache,
    /// [`Work::word`], with the values of these keys alone.
    Copy,
}

#[inline(always)]
unsafe fn all_queries<S: Simd, F: ProductStep>(segment: &Segment<'_, F>, values: &Values) {
    let tiles = Tiles::new(values.queries.len(), S::ROWS);
    for rows in (0..tiles.count()).map(|tile| tiles.rows(tile)) {
        let row = values.queries.start + rows.start;
        // SAFETY: the caller guarantees the instruction set and valid positions.
        unsafe { with_height!(1..=S::ROWS, rows.len(), value_tile::<S, F>(segment, values, row)) }
    }
}

/// Adds the values for M queries from `row`, over all features.
#[inline(always)]
unsafe fn value_tile<S: Simd, F: ProductStep, const M: usize>(
    segment: &Segment<'_, F>,
    values: &Values,
    row: usize,
) {
    // SAFETY: the caller guarantees the instruction set and valid pointers.
    unsafe { S::call(ValueTile::<F, M> { segment, values, row }) }
}

struct ValueTile<'a, F: ProductStep, const M: usize> {
    segment: &'a Segment<'a, F>,
    values: &'a Values,
    row: usize,
}

impl<F: ProductStep, const M: usize> Kernel for ValueTile<'_, F, M> {
    const USES: Extension = F::USES;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let width = padded(self.segment.tile.dims().value);
        let mut d = 0;
        while d < width {
            // SAFETY: the creator guarantees valid pointers.
            unsafe {
                if d + 2 * S::LANES <= width {
                    self.columns::<S, 2>(d);
                    d += 2 * S::LANES;
                } else {
                    self.columns::<S, 1>(d);
                    d += S::LANES;
                }
            }
        }
    }
}

impl<F: ProductStep, const M: usize> ValueTile<'_, F, M> {
    /// Adds NV vectors of features from `d`.
    #[inline(always)]
    unsafe fn columns<S: Simd, const NV: usize>(&self, d: usize) {
        let ValueTile { segment, values, row } = *self;
        let Segment { tile, view, work, start, end } = *segment;
        let width = padded(tile.dims().value);
        let block_size = view.block_size();
        let keys = values.keys.clone();
        // SAFETY: the rows are inside the tile, and the keys inside the table.
        unsafe {
            let sums = work.acc.add(row * width + d);
            let mut acc: [[S::V; NV]; M] =
                std::array::from_fn(|i| std::array::from_fn(|v| S::load(sums.add(i * width + v * S::LANES))));
            let mut at = keys.start;
            while at < keys.end {
                let next = ((at / block_size + 1) * block_size).min(keys.end);
                let steps = (next - at) / F::INPUTS;
                let from = match values.from {
                    Source::Cache => view.value(tile.place(at), tile.kv_head),
                    Source::Copy => work.word.cast_const().cast(),
                };
                // The keys of the next segment are needed next. Each pass over the features
                // prefetches its share of the block.
                let later = at / block_size * block_size + SEGMENT;
                let later = if later < end { later } else { at / block_size * block_size };
                let block = view.key(tile.place(later), tile.kv_head).cast::<u8>();
                let share = view.key_block_bytes() * NV * S::LANES / width;
                let step = share / (block_size / F::INPUTS);
                let ahead = block.wrapping_add(view.key_block_bytes() * d / width);
                let ahead = Ahead { first: [ahead, ahead.wrapping_add(step / 2)], step };
                let w = std::array::from_fn(|v| from.add(d + v * S::LANES));
                let stream = Stream { w, stride: width, ahead };
                let p = work.p.cast::<u32>().add(row * SEGMENT + (at - start) / F::INPUTS).cast_const();
                let weights = Factors { start: p, row: SEGMENT, step: 1 };
                accumulate::<S, F, M, NV>(&mut acc, weights, &stream, steps);
                at = next;
            }
            for i in 0..M {
                for v in 0..NV {
                    S::store(sums.add(i * width + v * S::LANES), acc[i][v]);
                }
            }
        }
    }
}
