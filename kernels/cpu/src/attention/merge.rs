//! The second pass over a tile whose ranges were computed by several tasks.

use std::ops::Range;

use super::super::kv::padded;
use super::super::memory::Shared;
use super::super::simd::{Extension, Kernel, Simd};
use super::job::Queries;
use super::softmax::{Partial, Unscaled, merge};

/// Numbers after the values of a partial result: the maximum and the sum of its softmax, and
/// padding to a cache line.
const TAIL: usize = 16;

/// Returns the distance of two partial results in the buffer for them.
pub(super) const fn stride(value_dim: usize) -> usize {
    padded(value_dim) + TAIL
}

/// Writes the partial result of one query, of [`stride`] numbers.
#[inline(always)]
pub(super) fn write(to: &mut [f32], values: &[f32], softmax: Partial) {
    let (features, tail) = to.split_at_mut(values.len());
    features.copy_from_slice(values);
    (tail[0], tail[1]) = (softmax.max, softmax.sum);
}

/// The merge of a tile's partial results, `[ranges, queries, stride]`.
pub(super) struct Merge<'a> {
    pub(super) of: Queries<'a>,
    /// Attention sinks, `[heads]`.
    pub(super) sinks: Option<&'a Vec<f32>>,
    pub(super) queries: Range<usize>,
    pub(super) ranges: Range<usize>,
    pub(super) partials: &'a [f32],
    /// `[n, heads * value_dim]`
    pub(super) out: Shared<f32>,
    /// Working memory for one row of values.
    pub(super) scratch: Shared<f32>,
}

impl Kernel for Merge<'_> {
    const USES: Extension = Extension::None;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Merge { of, sinks, queries, ranges, partials, out, scratch } = self;
        let dim = of.dims.value;
        let (width, stride) = (padded(dim), stride(dim));
        // SAFETY: the working memory holds a row, and belongs to this task.
        let values = unsafe { scratch.slice(0, width) };
        for (i, u) in queries.clone().enumerate() {
            let mut merged = None;
            for (number, range) in ranges.clone().enumerate() {
                if of.sees_in(u, range).is_empty() {
                    continue;
                }
                let partial = &partials[(number * queries.len() + i) * stride..][..stride];
                let (added, tail) = partial.split_at(width);
                let softmax = Partial { max: tail[0], sum: tail[1] };
                // SAFETY: the caller guarantees the instruction set.
                merged = Some(unsafe { merge::<S>(merged, values, Unscaled { softmax, values: added }) });
            }
            let Some(softmax) = merged else { continue };
            // SAFETY: the heads of these queries belong to this task alone.
            unsafe { of.finish(u, values, softmax, sinks, out) };
        }
    }
}
