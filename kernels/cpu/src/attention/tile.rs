//! The computation of one tile of queries.

use std::ops::Range;

use super::super::kv::{Cache, View, padded};
use super::super::rows::soft_cap;
use super::super::simd::{Extension, Kernel, Simd};
use super::super::step::{Pair, ProductStep, Single};
use super::job::{Output, Tile, Work};
#[cfg(target_arch = "x86_64")]
use super::on_tiles::OnTiles;
use super::products::Products;
use super::softmax::{Partial, Softmax, Unscaled, merge, weigh};
use super::values::{Segment, values};
use super::{QUERIES, SEGMENT, merge, queries, scores};

impl Kernel for Tile<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller guarantees the instruction set and valid pointers.
        unsafe {
            match &self.kv.cache {
                Cache::F32(pages) => run::<S, Single<f32>>(&self, &pages.view(), Vectors),
                Cache::F16(pages) => run::<S, Single<half::f16>>(&self, &pages.view(), Vectors),
                Cache::BF16(pages) => run::<S, Single<half::bf16>>(&self, &pages.view(), Vectors),
                #[cfg(target_arch = "x86_64")]
                Cache::Bf16Pairs(pages) if S::HAS_BF16 && self.has_tiles && OnTiles::fits(&self) => {
                    run::<S, Pair>(&self, &pages.view(), OnTiles::new());
                }
                Cache::Bf16Pairs(pages) if S::HAS_BF16 => {
                    run::<S, Pair>(&self, &pages.view(), Vectors);
                }
                Cache::Int8(pages) => run::<S, Single<i8>>(&self, &pages.view(), Vectors),
                Cache::Bf16Pairs(_) => unreachable!("pairs without an instruction; this is a bug"),
            }
        }
    }
}

/// The products on vectors.
struct Vectors;

impl<F: ProductStep> Products<F> for Vectors {
    #[inline(always)]
    unsafe fn pack<S: Simd>(&mut self, tile: &Tile<'_>, work: Work) {
        // SAFETY: the caller guarantees the same.
        unsafe { queries::pack::<S, F>(tile, work) }
    }

    #[inline(always)]
    unsafe fn scores<S: Simd>(
        &mut self,
        tile: &Tile<'_>,
        view: &View<F>,
        work: Work,
        keys: Range<usize>,
        start: usize,
    ) {
        // SAFETY: the caller guarantees the same.
        unsafe { scores::scores::<S, F>(tile, view, work, keys, start) }
    }

    #[inline(always)]
    unsafe fn values<S: Simd>(&mut self, segment: &Segment<'_, F>, seen: &[(usize, usize)]) {
        // SAFETY: the caller guarantees the same.
        unsafe { values::<S, F>(segment, seen) }
    }
}

#[inline(always)]
unsafe fn run<S: Simd, F: ProductStep>(tile: &Tile<'_>, view: &View<F>, mut products: impl Products<F>) {
    let dim = tile.dims().value;
    let width = padded(dim);
    let work = Work::new(tile.scratch, tile.dims());
    let mut merged = [None; QUERIES];
    // SAFETY: the caller guarantees the instruction set and valid pointers. The loops stay inside
    // the operands, and the working memory belongs to this task.
    unsafe {
        products.pack::<S>(tile, work);
        for j in (0..SEGMENT).step_by(S::LANES) {
            S::store(work.scales.add(j), S::splat(tile.spec.scale));
        }
        for range in tile.ranges.clone() {
            let softmax = attend::<S, F>(&mut products, tile, view, work, range);
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
                        tile.of.finish(u, values, found, tile.terms.sinks, out);
                    }
                    Output::Attention(out) => {
                        let sums = std::slice::from_raw_parts_mut(work.merged.add(i * width), width);
                        let of_range = Unscaled { softmax: found, values };
                        let all = merge::<S>(merged[i], sums, of_range);
                        merged[i] = Some(all);
                        if range + 1 == tile.ranges.end || tile.of.sees_in(u, range + 1).is_empty() {
                            tile.of.finish(u, sums, all, tile.terms.sinks, out);
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
unsafe fn attend<S: Simd, F: ProductStep>(
    products: &mut impl Products<F>,
    tile: &Tile<'_>,
    view: &View<F>,
    work: Work,
    range: usize,
) -> [Softmax<S::V>; QUERIES] {
    let count = tile.queries.len();
    let width = padded(tile.dims().value);
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
            products.scores::<S>(tile, view, work, keys, start);
            let mut seen = [(0, 0); QUERIES]; // each query's keys in the segment
            for (i, u) in tile.queries.clone().enumerate() {
                let keys = tile.of.sees(u);
                let keys = keys.start.max(start)..keys.end.min(segment.end);
                seen[i] = (keys.start, keys.end.max(keys.start));
                if !keys.is_empty() {
                    let p = work.p.add(i * SEGMENT);
                    S::call(Adjust { tile, u, p, keys: keys.clone(), start });
                    let keys = keys.start - start..keys.end - start;
                    weigh::<S, F>(&mut softmax[i], p, value_scales, keys, work.acc.add(i * width), width);
                }
            }
            let segment = Segment { tile, view, work, start, end };
            products.values::<S>(&segment, &seen[..count]);
        }
        softmax
    }
}

/// Applies the soft cap and the biases to the scores at `p` of query `u`, for the keys at
/// `keys` of the segment that begins at `start`.
struct Adjust<'a> {
    tile: &'a Tile<'a>,
    u: usize,
    p: *mut f32,
    keys: Range<usize>,
    start: usize,
}

impl Kernel for Adjust<'_> {
    const USES: Extension = Extension::None;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Adjust { tile, u, p, keys, start } = self;
        let whole = (keys.start - start) / S::LANES * S::LANES..(keys.end - start).next_multiple_of(S::LANES);
        // SAFETY: a segment has whole vectors.
        unsafe {
            if let Some(cap) = tile.spec.soft_cap {
                for j in whole.clone().step_by(S::LANES) {
                    S::store(p.add(j), soft_cap::<S>(cap, S::load(p.add(j))));
                }
            }
            if let Some(bias) = tile.terms.distance {
                let (head, position) = (tile.token_and_head(u).1, tile.of.position(u));
                for j in whole.clone() {
                    *p.add(j) += bias.table[bias.place(head, position, start + j)];
                }
            }
            if let Some(slopes) = tile.terms.alibi {
                let slope = slopes[tile.token_and_head(u).1];
                // The distance is exact: positions are far below 2^24.
                let first = start as f32 - tile.of.position(u) as f32;
                for j in whole {
                    *p.add(j) += slope * (first + j as f32);
                }
            }
        }
    }
}

/// Copies the factors on the scores and on the values of the keys at `keys`, in whole vectors, if
/// the format has any. Returns those on the values, by key of the segment.
#[inline(always)]
unsafe fn gather_scales<S: Simd, F: ProductStep>(
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
