//! The outputs of a matrix product, and their division among tasks.

use std::ops::Range;

use super::memory::Shared;
use super::simd::{LARGEST_LANES, Simd};
use super::{Buf, Cpu};

/// The outputs of a product, `[n, cols]`, and the bias that is added to each row.
#[derive(Clone, Copy)]
pub(super) struct Outputs<'a> {
    pub(super) out: Shared<f32>,
    pub(super) cols: usize,
    /// Elements from one row to the next: more than `cols` for a part of the columns of a buffer.
    pub(super) stride: usize,
    pub(super) bias: Option<&'a [f32]>,
}

impl<'a> Outputs<'a> {
    /// Returns columns `cols` of the first `n` rows of `out`, at least one. The same columns of
    /// `bias` are added to each row.
    pub(super) fn new(out: &mut Buf, n: usize, cols: Range<usize>, bias: Option<&'a [f32]>) -> Self {
        let stride = out.cols;
        assert!(n > 0 && cols.end <= stride, "columns {cols:?} of {n} rows of {stride}");
        let bias = bias.map(|bias| &bias[cols.clone()]);
        Outputs { out: Shared::new(&mut out.rows_mut(n)[cols.start..]), cols: cols.len(), stride, bias }
    }
}

impl Outputs<'_> {
    /// Stores outputs `[col, col + S::LANES)` of a row, as many as there are, with the bias added.
    ///
    /// # Safety
    /// The machine has the instruction set. The row is inside the output, and the calling task owns
    /// these outputs.
    #[inline(always)]
    pub(super) unsafe fn put<S: Simd>(&self, row: usize, col: usize, sums: S::V) {
        let rest = self.cols.saturating_sub(col);
        // SAFETY: as the caller guarantees. The bias is as long as a row.
        unsafe {
            let p = self.out.as_ptr().wrapping_add(row * self.stride + col);
            if rest >= S::LANES {
                let sums = self.bias.map_or(sums, |bias| S::add(sums, S::load(bias.as_ptr().add(col))));
                S::store(p, sums);
            } else if rest > 0 {
                let sums =
                    self.bias.map_or(sums, |bias| S::add(sums, S::load_first(bias.as_ptr().add(col), rest)));
                S::store_first(p, sums, rest);
            }
        }
    }

    /// Stores the outputs `[M, NV * S::LANES]` of a tile from `row` and `col`, as [`Outputs::put`].
    ///
    /// # Safety
    /// As [`Outputs::put`].
    #[inline(always)]
    pub(super) unsafe fn put_tile<S: Simd, const M: usize, const NV: usize>(
        &self,
        row: usize,
        col: usize,
        sums: &[[S::V; NV]; M],
    ) {
        // The loop with the cases of `put` has a variable index. Without this copy the sums lie in
        // memory from the start, and the loop that computes them stores them again and again.
        let mut copy = [[[0f32; LARGEST_LANES]; NV]; M];
        // SAFETY: vectors have at most `LARGEST_LANES` lanes, and the rest is as the caller
        // guarantees.
        unsafe {
            for i in 0..M {
                for v in 0..NV {
                    S::store(copy[i][v].as_mut_ptr(), sums[i][v]);
                }
            }
            for (i, vectors) in copy.iter().enumerate() {
                for (v, vector) in vectors.iter().enumerate() {
                    self.put::<S>(row + i, col + v * S::LANES, S::load(vector.as_ptr()));
                }
            }
        }
    }

    /// Loads outputs `[col, col + S::LANES)` of a row, as many as there are.
    ///
    /// # Safety
    /// As [`Outputs::put`].
    #[inline(always)]
    pub(super) unsafe fn get<S: Simd>(&self, row: usize, col: usize) -> S::V {
        let rest = self.cols.saturating_sub(col);
        // SAFETY: as the caller guarantees.
        unsafe {
            let p = self.out.as_ptr().wrapping_add(row * self.stride + col);
            S::load_up_to(p, rest)
        }
    }
}

impl Cpu {
    /// Calls `body(panels, thread)` for ranges of the panels of a product with `outputs` outputs,
    /// in parallel if the `work` of all together is large enough. There are several ranges per
    /// thread, which balances the load when other processes run. A range has a multiple of `least`
    /// panels, at which kernels are fastest, unless there would be fewer ranges than threads.
    pub(super) fn for_panels(
        &self,
        outputs: usize,
        least: usize,
        work: usize,
        body: impl Fn(Range<usize>, usize) + Sync,
    ) {
        let panels = outputs.div_ceil(self.target.panel_width());
        let at_once = (panels / (8 * self.threads())).next_multiple_of(least).max(least);
        let at_once = at_once.min(panels.div_ceil(self.threads())).max(1);
        self.parallel(panels.div_ceil(at_once), work, |task, thread| {
            body(task * at_once..panels.min((task + 1) * at_once), thread);
        });
    }
}
