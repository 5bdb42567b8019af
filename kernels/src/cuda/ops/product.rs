//! What the matrix products share: their operands, and how few rows are multiplied.

use super::countable;
use crate::cuda::{Args, Elem, View};
use crate::{Error, Result};

/// Outputs of a block of the kernels for few rows.
const TILE: usize = 128;
/// Rows of a block of the kernels for few rows, at most; more rows take more blocks.
const MOST_ROWS: usize = 16;
/// Blocks that keep all multiprocessors of today's cards reading. A constant, so that results are the same on all of them.
const WANTED_BLOCKS: usize = 256;
/// Bounds of a slice of k: below, sums of slices would cost more than they save; above, the slice of x would take too much shared memory.
const SLICE: (usize, usize) = (256, 2048);
/// k of a slice is a multiple of this.
pub(crate) const DEPTH: usize = 64;

/// `out = x · wᵀ + bias + residual`, rounded once.
#[derive(Debug, Clone, Copy)]
pub struct Product<'a> {
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
    /// `[rows, outputs]`, of the type of `x`. May be `out`.
    pub residual: Option<View<'a>>,
    /// `[rows, outputs]`, of the type of `x`.
    pub out: View<'a>,
}

impl Product<'_> {
    /// Checks types and lengths.
    pub(crate) fn check(&self) -> Result<()> {
        let elem = self.x.elem();
        if self.inputs == 0 || self.outputs == 0 {
            return Err(Error::Shape(format!("a weight of {} by {} elements", self.outputs, self.inputs)));
        }
        countable(&[self.rows, self.inputs, self.outputs, self.rows * self.outputs.div_ceil(8)])?;
        self.x.expect("x", elem, self.rows * self.inputs)?;
        self.out.expect("out", elem, self.rows * self.outputs)?;
        if let Some(bias) = self.bias {
            bias.expect("bias", Elem::F32, self.outputs)?;
        }
        match self.residual {
            Some(residual) => residual.expect("residual", elem, self.rows * self.outputs),
            None => Ok(()),
        }
    }

    /// Whether the tensor cores can take it, as far as it does not depend on x's rows: 16 bits, at multiples of 16 bytes.
    pub(crate) fn is_half(&self) -> bool {
        let aligned = |view: View<'_>| view.address().is_multiple_of(16);
        self.x.elem().size() == 2 && aligned(self.out) && self.residual.is_none_or(aligned)
    }

    /// Bytes of the activations: each read and written once.
    pub(crate) fn bytes(elem: Elem, rows: usize, inputs: usize, outputs: usize) -> usize {
        rows * (inputs + outputs) * elem.size()
    }

    /// The sizes, in the order in which all kernels take them.
    pub(crate) fn sizes(&self, args: Args) -> Args {
        args.with(self.rows).with(self.outputs).with(self.inputs)
    }
}

/// Where the kernels for few rows leave the sums of slices of k until the last slice is done.
///
/// One workspace serves all products of a stream, one after the other.
#[derive(Debug, Clone, Copy)]
pub struct Workspace<'a> {
    /// f32, of the length that [`partials`] says; contents do not matter.
    pub partials: View<'a>,
    /// u32, of the length that [`counters`] says; 0 before the first product, and left so.
    pub counters: View<'a>,
}

/// Elements of [`Workspace::partials`] for a product; 0 if one slice has all of k.
pub fn partials(rows: usize, inputs: usize, outputs: usize) -> usize {
    match Slices::of(inputs, outputs).count {
        1 => 0,
        slices => blocks_of_rows(rows) * outputs.div_ceil(TILE) * slices * rows_of_block(rows) * TILE,
    }
}

/// Elements of [`Workspace::counters`] for a product; 0 if one slice has all of k.
pub fn counters(rows: usize, inputs: usize, outputs: usize) -> usize {
    if Slices::of(inputs, outputs).count == 1 { 0 } else { blocks_of_rows(rows) * outputs.div_ceil(TILE) }
}

/// Rows of a block for so many rows: 8 or 16. A row's result is the same in both.
pub(crate) fn rows_of_block(rows: usize) -> usize {
    if rows <= MOST_ROWS / 2 { MOST_ROWS / 2 } else { MOST_ROWS }
}

fn blocks_of_rows(rows: usize) -> usize {
    rows.div_ceil(rows_of_block(rows))
}

/// How k is cut: a function of the weight's shape alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slices {
    /// k of a slice, a multiple of 64.
    pub(crate) length: usize,
    /// Number of slices.
    pub(crate) count: usize,
}

impl Slices {
    pub(crate) fn of(inputs: usize, outputs: usize) -> Slices {
        let depth = inputs.next_multiple_of(DEPTH);
        let wanted = WANTED_BLOCKS.div_ceil(outputs.div_ceil(TILE));
        let length = depth.div_ceil(wanted).clamp(SLICE.0, SLICE.1).next_multiple_of(DEPTH);
        Slices { length, count: depth.div_ceil(length) }
    }

    /// Blocks along x, y, z for so many rows.
    pub(crate) fn blocks(&self, rows: usize, outputs: usize) -> Result<[u32; 3]> {
        let blocks = [blocks_of_rows(rows), outputs.div_ceil(TILE), self.count];
        if blocks[1] > 65535 || blocks[2] > 65535 {
            return Err(Error::Shape(format!("{outputs} outputs are more than a grid can have")));
        }
        Ok(blocks.map(|n| n as u32))
    }

    /// Bytes of shared memory of a block: its slice of x, and the words of the groups of `1 << bits` k that the slice touches.
    pub(crate) fn shared(&self, rows: usize, group_bits: Option<u32>) -> usize {
        // A slice may begin in the middle of a group.
        let groups = group_bits.map_or(0, |bits| (self.length >> bits) + 2);
        rows_of_block(rows) * self.length * 2 + groups * TILE * 4
    }
}

impl Workspace<'_> {
    /// Checks that the workspace is large enough for the product.
    pub(crate) fn check(&self, rows: usize, inputs: usize, outputs: usize) -> Result<()> {
        self.partials.expect("partials", Elem::F32, partials(rows, inputs, outputs))?;
        self.counters.expect("counters", Elem::U32, counters(rows, inputs, outputs))
    }
}

/// The kernel for 16-bit activations among a name for bf16 and one for f16.
pub(crate) fn by_half(elem: Elem, bf16: &'static str, f16: &'static str) -> Result<&'static str> {
    match elem {
        Elem::BF16 => Ok(bf16),
        Elem::F16 => Ok(f16),
        other => Err(Error::Unsupported(format!("activations of type {other:?} on tensor cores"))),
    }
}

/// The kernel `$name` for activations of 16 bits: `$name_bf16` or `$name_f16`.
macro_rules! halved {
    ($elem:expr, $name:literal) => {
        $crate::cuda::ops::product::by_half($elem, concat!($name, "_bf16"), concat!($name, "_f16"))
    };
}
pub(crate) use halved;
