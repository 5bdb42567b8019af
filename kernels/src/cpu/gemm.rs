//! The matrix product.
//!
//! Every output element is one chain of fused products over the inputs in order, to which the bias
//! is added. Tiles and threads only divide the elements among themselves, so that a row's result
//! depends only on the row.
//!
//! With few rows, the product is bound by reading the weights. Panels are streamed once for all
//! rows. Several panels are streamed together when there are so few accumulators that the latency
//! of the multiplier would limit the speed.
//!
//! With many rows, a block of a panel is converted to f32 once and stays in the L2 cache while all
//! tiles use it. A block has so many inputs that partial sums rarely leave the registers: the
//! distance of the output's rows is often a power of two, at which caches are least effective.

use std::ops::Range;

use super::matrix::{Matrix, Packed, Panels};
use super::memory::Shared;
use super::simd::{Element, Kernel, Simd};
use super::tile::{Stream, accumulate, height, pack, with_height};

/// Inputs in a block of weights.
const BLOCK_STEPS: usize = 2048;
/// Smallest number of panels in a task at which the kernels are fastest: a single row uses as many
/// together.
pub(super) const BLOCK_PANELS: usize = 4;
/// Numbers in a thread's working memory, for a block of converted weights or for a tile of
/// attention.
pub(super) const SCRATCH: usize = 1 << 16;

/// Packed inputs: tiles of `[cols][height]`. All but the last one have the largest height.
#[derive(Clone, Copy)]
pub(super) struct Inputs {
    /// Rows.
    pub(super) n: usize,
    /// The tiles.
    pub(super) x: *const f32,
}

// SAFETY: the inputs are only read while a loop runs.
unsafe impl Send for Inputs {}
// SAFETY: as above.
unsafe impl Sync for Inputs {}

/// The packing of tile `tile` of the rows of `x`, `[n, cols]`.
pub(super) struct PackTile<'a> {
    pub(super) n: usize,
    pub(super) cols: usize,
    pub(super) x: &'a [f32],
    pub(super) tile: usize,
    /// The buffer for all tiles: `n` rounded up to whole tiles, times `cols` numbers.
    pub(super) to: Shared<f32>,
}

impl Kernel for PackTile<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let row = self.tile * S::ROWS;
        let rows = (self.n - row).min(S::ROWS);
        // SAFETY: the rows are inside `x`. All tiles before this one are full, so that it starts at
        // `row * cols`.
        unsafe {
            let x = self.x.as_ptr().add(row * self.cols);
            pack(x, self.cols, rows, height::<S>(rows), self.cols, self.to.as_ptr().add(row * self.cols));
        }
    }
}

/// The computation of the outputs of some panels for all rows.
pub(super) struct Linear<'a> {
    pub(super) inputs: Inputs,
    pub(super) w: &'a Matrix,
    pub(super) bias: Option<&'a [f32]>,
    /// `[n, w.out]`.
    pub(super) out: Shared<f32>,
    pub(super) panels: Range<usize>,
    /// [`SCRATCH`] numbers.
    pub(super) scratch: Shared<f32>,
}

impl Kernel for Linear<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller guarantees the instruction set and valid pointers.
        unsafe {
            match &self.w.packed {
                Packed::F32(panels) => run::<S, f32>(&self, panels),
                Packed::F16(panels) => run::<S, half::f16>(&self, panels),
                Packed::BF16(panels) => run::<S, half::bf16>(&self, panels),
            }
        }
    }
}

#[inline(always)]
unsafe fn run<S: Simd, T: Element>(job: &Linear<'_>, weights: &Panels<T>) {
    // SAFETY: the caller guarantees the instruction set and valid pointers.
    unsafe {
        if job.inputs.n > 2 * S::ROWS {
            blocked::<S, T>(job, weights)
        } else {
            streamed::<S, T>(job, weights)
        }
    }
}

#[inline(always)]
unsafe fn streamed<S: Simd, T: Element>(job: &Linear<'_>, weights: &Panels<T>) {
    let mut panel = job.panels.start;
    let tile_height = height::<S>(job.inputs.n);
    // With so many panels the multiplier has eight independent chains.
    let at_once = (4 / tile_height).max(1);
    while panel < job.panels.end {
        let group = if job.panels.end - panel >= at_once { at_once } else { 1 };
        // SAFETY: panels and rows are inside the operands.
        unsafe {
            if group == 4 {
                streamed_tile::<S, T, 1, 8>(job, weights, panel, 0);
            } else if group == 2 {
                streamed_tile::<S, T, 2, 4>(job, weights, panel, 0);
            } else {
                for row in (0..job.inputs.n).step_by(S::ROWS) {
                    let h = height::<S>(job.inputs.n - row);
                    with_height!(S, h, single::<S, T>(job, weights, panel, row));
                }
            }
        }
        panel += group;
    }
}

#[inline(always)]
unsafe fn single<S: Simd, T: Element, const M: usize>(
    job: &Linear<'_>,
    weights: &Panels<T>,
    panel: usize,
    row: usize,
) {
    // SAFETY: the caller guarantees the instruction set and valid pointers.
    unsafe { streamed_tile::<S, T, M, 2>(job, weights, panel, row) }
}

/// Computes M rows from `row` and NV / 2 panels from `panel`, over all inputs.
#[inline(always)]
unsafe fn streamed_tile<S: Simd, T: Element, const M: usize, const NV: usize>(
    job: &Linear<'_>,
    weights: &Panels<T>,
    panel: usize,
    row: usize,
) {
    // SAFETY: the caller passes rows and panels inside the operands.
    unsafe {
        let mut w = [std::ptr::null(); NV];
        for v in 0..NV {
            w[v] = weights.panel(panel + v / 2).add(v % 2 * S::LANES);
        }
        let mut acc = [[S::splat(0.0); NV]; M];
        let x = job.inputs.x.add(row * job.w.cols);
        let stream = Stream::sequential(w, 2 * S::LANES);
        accumulate::<S, T, M, NV>(&mut acc, x, 1, M, stream, job.w.cols);
        for (i, sums) in acc.iter().enumerate() {
            if row + i < job.inputs.n {
                for v in 0..NV {
                    let col = (panel * 2 + v) * S::LANES;
                    put::<S>(job, row + i, col, sums[v], true);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn blocked<S: Simd, T: Element>(job: &Linear<'_>, weights: &Panels<T>) {
    let cols = job.w.cols;
    let width = 2 * S::LANES;
    for panel in job.panels.clone() {
        let mut start = 0;
        loop {
            let steps = BLOCK_STEPS.min(cols - start);
            // SAFETY: the block is inside the weights, and SCRATCH holds BLOCK_STEPS steps of the
            // widest panel.
            unsafe {
                let block = job.scratch.as_ptr();
                let from = weights.panel(panel).add(start * width);
                for at in (0..steps * width).step_by(S::LANES) {
                    S::store(block.add(at), T::load::<S>(from.add(at)));
                }
                let at = Block { panel, start, steps };
                for row in (0..job.inputs.n).step_by(S::ROWS) {
                    let h = height::<S>(job.inputs.n - row);
                    with_height!(S, h, block_tile::<S>(job, block, at, row));
                }
            }
            start += steps;
            if start == cols {
                break;
            }
        }
    }
}

/// A block of weights.
#[derive(Clone, Copy)]
struct Block {
    panel: usize,
    start: usize,
    steps: usize,
}

/// Multiplies M rows from `row` by one block of converted weights, and adds the partial sums of the
/// blocks before it.
#[inline(always)]
unsafe fn block_tile<S: Simd, const M: usize>(job: &Linear<'_>, block: *const f32, at: Block, row: usize) {
    let rows = M.min(job.inputs.n - row);
    let last = at.start + at.steps == job.w.cols;
    // SAFETY: the caller passes rows and panels inside the operands.
    unsafe {
        let col = at.panel * 2 * S::LANES;
        let mut acc = [[S::splat(0.0); 2]; M];
        if at.start > 0 {
            for i in 0..M {
                if i < rows {
                    acc[i] = [get::<S>(job, row + i, col), get::<S>(job, row + i, col + S::LANES)];
                }
            }
        }
        let x = job.inputs.x.add(row * job.w.cols + at.start * M);
        let stream = Stream::sequential([block, block.add(S::LANES)], 2 * S::LANES);
        accumulate::<S, f32, M, 2>(&mut acc, x, 1, M, stream, at.steps);
        for i in 0..M {
            if i < rows {
                put::<S>(job, row + i, col, acc[i][0], last);
                put::<S>(job, row + i, col + S::LANES, acc[i][1], last);
            }
        }
    }
}

/// Returns the partial sums of outputs `[col, col + LANES)` of a row.
#[inline(always)]
unsafe fn get<S: Simd>(job: &Linear<'_>, row: usize, col: usize) -> S::V {
    let out = job.w.out;
    // SAFETY: the element is inside the output, of which this task owns these columns.
    unsafe {
        let p = job.out.as_ptr().wrapping_add(row * out + col);
        if col + S::LANES <= out { S::load(p) } else { S::load_first(p, out.saturating_sub(col)) }
    }
}

/// Stores outputs `[col, col + LANES)` of a row. The last block adds the bias.
#[inline(always)]
unsafe fn put<S: Simd>(job: &Linear<'_>, row: usize, col: usize, sums: S::V, last: bool) {
    let out = job.w.out;
    // SAFETY: the element is inside the output, of which this task owns these columns.
    unsafe {
        let p = job.out.as_ptr().wrapping_add(row * out + col);
        if col + S::LANES <= out {
            let sums = match job.bias {
                Some(bias) if last => S::add(sums, S::load(bias.as_ptr().add(col))),
                _ => sums,
            };
            S::store(p, sums);
        } else if col < out {
            let sums = match job.bias {
                Some(bias) if last => S::add(sums, S::load_first(bias.as_ptr().add(col), out - col)),
                _ => sums,
            };
            S::store_first(p, sums, out - col);
        }
    }
}
