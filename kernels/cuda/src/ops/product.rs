//! The operands that the matrix products share, and how few rows are multiplied.

use millrace_backend::{Error, Result};

use super::shared::platform_h::WARP;
use super::shared::skinny_h::{SKINNY_MAX_ROWS, SKINNY_OUTPUTS, SliceParams, skinny_shared_bytes};
use super::shared::weights_h::{PADDED_TO, ProductParams};
use super::sizes::{MAX_BLOCKS, countable, int};
use crate::{Elem, Grid, View};

/// Threads of a block of the plain kernels, in which a warp computes an element of the result.
const PLAIN_THREADS: usize = 256;
/// Elements of a result that a block of a plain kernel computes.
pub(crate) const PLAIN_PER_BLOCK: usize = PLAIN_THREADS / WARP;
/// Blocks that keep all multiprocessors of today's GPUs reading. The number is a constant, so that
/// results are the same on all of them.
const WANTED_BLOCKS: usize = 256;
/// The shortest and the longest slice of k. With shorter slices, adding up the slices would cost
/// more than they save; with longer ones, the slice of x would take too much shared memory.
const SLICE: (usize, usize) = (256, 2048);
/// The longest slice of weights with more than [`WANTED_BLOCKS`] / 2 tiles of outputs. Their blocks
/// are more than run at once, and the last ones should not run for long.
const SLICE_OF_MANY: usize = 1024;
/// A divisor of k of a slice.
pub(crate) const DEPTH: usize = PADDED_TO;

/// The operands of `out = x · wᵀ + bias` besides the weight. The result is rounded once.
#[derive(Debug, Clone, Copy)]
pub struct ProductOperands<'a> {
    /// Rows of `x`; 0 is allowed and does nothing.
    pub rows: usize,
    /// Features of a row of `x`.
    pub inputs: usize,
    /// Features of a row of `out`.
    pub outputs: usize,
    /// `[rows, inputs]`: f32, f16 or bf16.
    pub x: View<'a>,
    /// `[outputs]`, f32.
    pub bias: Option<View<'a>>,
    /// `[rows, outputs]`, of the type of `x`, in rows of `out_stride` elements.
    pub out: View<'a>,
    /// Elements from one row of `out` to the next, at least `outputs`: more if `out` is a part of
    /// the columns of a matrix.
    pub out_stride: usize,
}

impl ProductOperands<'_> {
    /// Checks types and lengths.
    pub(crate) fn check(&self) -> Result<()> {
        let elem = self.x.elem();
        if self.inputs == 0 || self.outputs == 0 {
            return Err(Error::Shape(format!("a weight of {} by {} elements", self.outputs, self.inputs)));
        }
        if self.out_stride < self.outputs {
            return Err(Error::Shape(format!("{} outputs in rows of {}", self.outputs, self.out_stride)));
        }
        countable(&[self.rows, self.inputs, self.out_stride, self.rows * self.outputs.div_ceil(8)])?;
        self.x.expect("x", elem, self.rows * self.inputs)?;
        let last = self.rows.saturating_sub(1) * self.out_stride;
        self.out.expect("out", elem, last + if self.rows == 0 { 0 } else { self.outputs })?;
        match self.bias {
            Some(bias) => bias.expect("bias", Elem::F32, self.outputs),
            None => Ok(()),
        }
    }

    /// Returns an error unless `out` has rows of `outputs` elements, as the device's library and
    /// element-wise kernels need them.
    pub(crate) fn expect_dense(&self) -> Result<()> {
        match self.out_stride == self.outputs {
            true => Ok(()),
            false => Err(Error::Unsupported("a part of a matrix that is not in few bits".to_owned())),
        }
    }

    /// Whether the tensor cores can compute it, as far as this does not depend on x's rows: types
    /// of 16 bits, at multiples of 16 bytes.
    pub(crate) fn is_half(&self) -> bool {
        self.x.elem().size() == 2 && self.out.address().is_multiple_of(16)
    }

    /// The operands as kernels take them.
    pub(super) fn params(&self) -> ProductParams {
        ProductParams {
            out: self.out.into(),
            x: self.x.into(),
            bias: self.bias.into(),
            rows: int(self.rows),
            outputs: int(self.outputs),
            inputs: int(self.inputs),
            stride: int(self.out_stride),
        }
    }
}

/// The grid of the plain kernels.
pub(super) fn plain_grid(p: &ProductOperands<'_>) -> Grid {
    Grid::flat((p.rows * p.outputs).div_ceil(PLAIN_PER_BLOCK), PLAIN_THREADS as u32)
}

/// The memory in which the kernels for few rows leave the sums of slices of k until the last slice
/// is done.
///
/// One workspace serves all products of a stream, one after the other.
#[derive(Debug, Clone, Copy)]
pub struct ProductWorkspace<'a> {
    /// f32, of the length that [`partials`] returns; contents do not matter.
    pub partials: View<'a>,
    /// u32, of the length that [`counters`] returns; zeros before the first product and after each
    /// one.
    pub counters: View<'a>,
}

/// Elements of [`ProductWorkspace::partials`] for a product; 0 if one slice has all of k.
pub fn partials(rows: usize, inputs: usize, outputs: usize) -> usize {
    match DepthSlices::of(inputs, outputs).count {
        1 => 0,
        slices => {
            blocks_of_rows(rows)
                * outputs.div_ceil(SKINNY_OUTPUTS)
                * slices
                * rows_of_block(rows)
                * SKINNY_OUTPUTS
        }
    }
}

/// Elements of [`ProductWorkspace::counters`] for a product; 0 if one slice has all of k.
pub fn counters(rows: usize, inputs: usize, outputs: usize) -> usize {
    if DepthSlices::of(inputs, outputs).count == 1 {
        0
    } else {
        blocks_of_rows(rows) * outputs.div_ceil(SKINNY_OUTPUTS)
    }
}

/// Rows of a block for this number of rows: 8 or 16. A row's result is the same with both.
pub(crate) fn rows_of_block(rows: usize) -> usize {
    if rows <= SKINNY_MAX_ROWS / 2 { SKINNY_MAX_ROWS / 2 } else { SKINNY_MAX_ROWS }
}

fn blocks_of_rows(rows: usize) -> usize {
    rows.div_ceil(rows_of_block(rows))
}

/// The slices of k, a function of the weight's shape alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DepthSlices {
    /// k of a slice, a multiple of 64.
    pub(crate) length: usize,
    /// Number of slices.
    pub(crate) count: usize,
}

impl DepthSlices {
    pub(crate) fn of(inputs: usize, outputs: usize) -> DepthSlices {
        let depth = inputs.next_multiple_of(DEPTH);
        let tiles = outputs.div_ceil(SKINNY_OUTPUTS);
        let longest = if tiles > WANTED_BLOCKS / 2 { SLICE_OF_MANY } else { SLICE.1 };
        let length = depth.div_ceil(WANTED_BLOCKS.div_ceil(tiles)).clamp(SLICE.0, longest);
        let length = length.next_multiple_of(DEPTH);
        DepthSlices { length, count: depth.div_ceil(length) }
    }

    /// Blocks along x, y, z for this number of rows.
    pub(crate) fn blocks(&self, rows: usize, outputs: usize) -> Result<[u32; 3]> {
        let blocks = [blocks_of_rows(rows), outputs.div_ceil(SKINNY_OUTPUTS), self.count];
        if blocks[1] > MAX_BLOCKS || blocks[2] > MAX_BLOCKS {
            return Err(Error::Shape(format!("{outputs} outputs are more than a grid can have")));
        }
        Ok(blocks.map(|n| n as u32))
    }

    /// Bytes of shared memory of a block: its slice of x, and the words of the groups of `1 <<
    /// bits` k that the slice touches.
    pub(crate) fn shared_bytes(&self, rows: usize, group_bits: Option<u32>) -> usize {
        // A slice may begin in the middle of a group.
        let groups = group_bits.map_or(0, |bits| (self.length >> bits) + 2);
        skinny_shared_bytes(rows_of_block(rows), self.length, groups)
    }

    /// The slices as kernels take them, for a weight of `depth` columns.
    pub(super) fn params(&self, workspace: &ProductWorkspace<'_>, depth: usize) -> SliceParams {
        SliceParams {
            partials: workspace.partials.into(),
            counters: workspace.counters.into(),
            length: int(self.length),
            depth: int(depth),
        }
    }
}

impl ProductWorkspace<'_> {
    /// Checks that the workspace is large enough for the product.
    pub(crate) fn check(&self, rows: usize, inputs: usize, outputs: usize) -> Result<()> {
        self.partials.expect("partials", Elem::F32, partials(rows, inputs, outputs))?;
        self.counters.expect("counters", Elem::U32, counters(rows, inputs, outputs))
    }
}
