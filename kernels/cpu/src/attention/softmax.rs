//! The online softmax of a query: within a range, and across ranges.

use std::ops::Range;

use super::super::exp::exp;
use super::super::simd::Simd;
use super::super::step::ProductStep;

/// The softmax of one query over the keys of a range so far.
#[derive(Clone, Copy)]
pub(super) struct Softmax<V> {
    pub(super) max: f32,
    /// The sums of the weights, one per lane.
    pub(super) sum: V,
}

/// The softmax of one query over some ranges.
#[derive(Clone, Copy)]
pub(super) struct Partial {
    pub(super) max: f32,
    pub(super) sum: f32,
}

/// Turns the scores at `p` of the keys at `keys`, counted from the segment's start, into weights.
/// Rescales the sums that were computed with an earlier maximum.
///
/// The weights are words of `F`: two of them rounded to bf16, or one f32 number. `scales` are
/// factors on the values, which the weights take over, by key of the segment.
///
/// # Safety
/// The machine has the instruction set, `p` and `scales` have a segment's elements, and `acc` has
/// `width`, a multiple of the lanes.
#[inline(always)]
pub(super) unsafe fn weigh<S: Simd, F: ProductStep>(
    softmax: &mut Softmax<S::V>,
    p: *mut f32,
    scales: Option<*const f32>,
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
            softmax.sum = S::add(softmax.sum, weight);
            let weight = match scales {
                Some(scales) => S::mul(weight, S::load(scales.add(j))),
                None => weight,
            };
            if F::INPUTS == 2 {
                // The words are written behind the scores that are still to be read.
                S::store_bf16(p.cast::<u16>().add(j), weight);
            } else {
                S::store(p.add(j), weight);
            }
        }
    }
}

/// The weighted values of a query, not yet divided by the sum of the weights.
#[derive(Clone, Copy)]
pub(super) struct Unscaled<'a> {
    pub(super) softmax: Partial,
    /// Whole vectors.
    pub(super) values: &'a [f32],
}

/// Adds the result over one range to that over the ranges before it, if there is one.
///
/// # Safety
/// The machine has the instruction set. `values` has as many elements as `of_range`.
#[inline(always)]
pub(super) unsafe fn merge<S: Simd>(
    before: Option<Partial>,
    values: &mut [f32],
    of_range: Unscaled<'_>,
) -> Partial {
    let Unscaled { softmax, values: added } = of_range;
    assert_eq!(values.len(), added.len(), "features of two ranges");
    let Some(before) = before else {
        values.copy_from_slice(added);
        return softmax;
    };
    let max = if softmax.max > before.max { softmax.max } else { before.max };
    // SAFETY: both slices consist of whole vectors.
    unsafe {
        let old = exp::<S>(S::splat(before.max - max));
        let new = exp::<S>(S::splat(softmax.max - max));
        for d in (0..added.len()).step_by(S::LANES) {
            let to = values.as_mut_ptr().add(d);
            S::store(to, S::fma(S::load(added.as_ptr().add(d)), new, S::mul(S::load(to), old)));
        }
        let sum = S::fma(S::splat(softmax.sum), new, S::mul(S::splat(before.sum), old));
        Partial { max, sum: S::lanes(sum)[0] }
    }
}
