//! The scores of a segment: scaled products of queries and keys.

use std::ops::Range;

use super::super::kv::View;
use super::super::simd::{Extension, Kernel, Simd};
use super::super::step::ProductStep;
use super::super::tile::{Tiles, with_height};
use super::SEGMENT;
use super::job::{Tile, Work};
use super::stream::{Ahead, Factors, Stream, accumulate};

/// Computes the scores of all queries and the keys at `keys`, in whole vectors. `start` is the
/// first position of the segment.
///
/// # Safety
/// The machine has the instruction set, and the block table covers the keys.
#[inline(always)]
pub(super) unsafe fn scores<S: Simd, F: ProductStep>(
    tile: &Tile<'_>,
    view: &View<F>,
    work: Work,
    keys: Range<usize>,
    start: usize,
) {
    let pair = 2 * S::LANES;
    let words = tile.dims().key.div_ceil(F::INPUTS);
    let tiles = Tiles::new(tile.queries.len(), S::ROWS);
    let mut at = keys.start / pair * pair;
    while at < keys.end {
        // A pair may reach past the last block. Its second half is then computed from the first,
        // and not used.
        let halves = [at, if at + S::LANES < keys.end { at + S::LANES } else { at }];
        // SAFETY: blocks of the table are inside the cache, and whole vectors inside their block.
        unsafe {
            let vectors = halves.map(|at| view.key(tile.place(at), tile.kv_head));
            // The values of the same keys are needed next.
            let values = halves.map(|at| view.value(tile.place(at), tile.kv_head).cast());
            let bytes = view.value_stride() * S::LANES / F::INPUTS * size_of::<F::Weight>();
            let ahead = Ahead { first: values, step: bytes / words.max(1) };
            let stream = Stream { w: vectors, stride: view.key_stride(), ahead };
            for rows in (0..tiles.count()).map(|tile| tiles.rows(tile)) {
                with_height!(
                    1..=S::ROWS,
                    rows.len(),
                    score_tile::<S, F>(work, &stream, words, rows.start, at - start)
                );
            }
        }
        at += pair;
    }
}

/// Computes the scores of M queries from `row` with one pair of key vectors, and stores them at key
/// `at` of the segment.
#[inline(always)]
unsafe fn score_tile<S: Simd, F: ProductStep, const M: usize>(
    work: Work,
    stream: &Stream<F, 2>,
    words: usize,
    row: usize,
    at: usize,
) {
    // SAFETY: the caller guarantees the instruction set and valid pointers.
    unsafe { S::call(ScoreTile::<F, M> { work, stream, words, row, at }) }
}

struct ScoreTile<'a, F: ProductStep, const M: usize> {
    work: Work,
    stream: &'a Stream<F, 2>,
    words: usize,
    row: usize,
    at: usize,
}

impl<F: ProductStep, const M: usize> Kernel for ScoreTile<'_, F, M> {
    const USES: Extension = F::USES;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let ScoreTile { work, stream, words, row, at } = self;
        // SAFETY: the creator guarantees valid pointers.
        unsafe {
            let mut acc = [[S::splat(0.0); 2]; M];
            let queries = Factors { start: work.q.add(row * words), row: 1, step: M };
            accumulate::<S, F, M, 2>(&mut acc, queries, stream, words);
            let scales = [S::load(work.scales.add(at)), S::load(work.scales.add(at + S::LANES))];
            for (i, [a, b]) in acc.into_iter().enumerate() {
                let p = work.p.add((row + i) * SEGMENT + at);
                S::store(p, S::mul(a, scales[0]));
                S::store(p.add(S::LANES), S::mul(b, scales[1]));
            }
        }
    }
}
