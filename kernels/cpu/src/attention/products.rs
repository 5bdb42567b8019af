//! The interface of the two products of attention.

use std::ops::Range;

use super::super::kv::View;
use super::super::simd::Simd;
use super::super::step::ProductStep;
use super::job::{Tile, Work};
use super::values::Segment;

/// The two products of attention with a cache of words of `F`.
pub(super) trait Products<F: ProductStep> {
    /// Packs the queries for [`Products::scores`].
    ///
    /// # Safety
    /// The machine has the instruction set, and the working memory is as large as `scratch` says.
    unsafe fn pack<S: Simd>(&mut self, tile: &Tile<'_>, work: Work);

    /// Computes the scores of all queries and the keys at `keys`, in whole vectors. `start` is the
    /// first position of the segment.
    ///
    /// # Safety
    /// The machine has the instruction set, and the block table covers the keys.
    unsafe fn scores<S: Simd>(
        &mut self,
        tile: &Tile<'_>,
        view: &View<F>,
        work: Work,
        keys: Range<usize>,
        start: usize,
    );

    /// Adds the weighted values. `seen` are the positions in the segment that each query attends
    /// to.
    ///
    /// # Safety
    /// The machine has the instruction set, and the block table covers the positions.
    unsafe fn values<S: Simd>(&mut self, segment: &Segment<'_, F>, seen: &[(usize, usize)]);
}
