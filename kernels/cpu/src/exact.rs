//! Products of exact activations by integers.
//!
//! Weights become f32 numbers in a thread's working memory, a block of a panel at a time, and are
//! multiplied with all rows there. So the activations stay in f32, and there is no dequantized copy
//! of a matrix. An output element is one chain of products in the order of the packed columns.

use std::ops::Range;

use super::Cpu;
use super::gemm::{BLOCK_PANELS, SCRATCH};
use super::inputs::{GROUP, Inputs};
use super::memory::Shared;
use super::outputs::Outputs;
use super::simd::{Extension, Kernel, Simd};
use super::tile::{Tiles, with_height};

/// Columns of a block. It has whole groups and super-blocks, and the widest panel fits the working
/// memory.
const BLOCK: usize = 2048;
const _: () = assert!(BLOCK * 2 * 16 <= SCRATCH);

/// Panels of weights that can be dequantized.
pub(super) trait Dequantize: Sync {
    /// Returns the columns of a row, with its padding.
    fn packed_cols(&self) -> usize;

    /// Returns the column of the activations for each packed column, if they differ.
    fn order(&self) -> Option<&[u32]> {
        None
    }

    /// Writes the weights of columns `cols` of panel `panel` to `to`, `[cols][2 * S::LANES]`.
    ///
    /// # Safety
    /// The machine has the instruction set, the panel has these columns, which begin with a group
    /// or super-block, and `to` has room for a multiple of 32 columns.
    unsafe fn dequantize<S: Simd>(&self, panel: usize, cols: Range<usize>, to: *mut f32);
}

impl Cpu {
    /// Computes `x · wᵀ + bias` over the packed rows `inputs` in f32, at least one.
    pub(super) fn exact_linear(&self, inputs: Inputs, w: &impl Dequantize, outputs: Outputs<'_>) {
        let work = inputs.n * inputs.words * outputs.cols;
        self.for_panels(outputs.cols, BLOCK_PANELS, work, |panels, thread| {
            let (_guard, scratch) = self.scratch(thread);
            self.target.dispatch(Product { inputs, w, outputs, panels, scratch });
        });
    }
}

/// The computation of the outputs of some panels for all rows.
struct Product<'a, W> {
    inputs: Inputs,
    w: &'a W,
    outputs: Outputs<'a>,
    panels: Range<usize>,
    /// [`SCRATCH`] numbers.
    scratch: Shared<f32>,
}

impl<W: Dequantize> Kernel for Product<'_, W> {
    const USES: Extension = Extension::None;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Product { inputs, w, outputs, panels, scratch } = self;
        let (all, order, tiles) = (w.packed_cols(), w.order(), Tiles::new(inputs.n, S::ROWS));
        for panel in panels {
            for first in (0..all).step_by(BLOCK) {
                let cols = first..all.min(first + BLOCK);
                // The last block adds the bias.
                let outputs = Outputs { bias: outputs.bias.filter(|_| cols.end == all), ..outputs };
                // SAFETY: the caller guarantees the instruction set and valid pointers. Panel,
                // columns and rows are inside the operands, and the working memory holds the block.
                unsafe {
                    w.dequantize::<S>(panel, cols.clone(), scratch.as_ptr());
                    let block = Block { inputs, order, outputs, panel, cols, weights: scratch.as_ptr() };
                    for tile in 0..tiles.count() {
                        let rows = tiles.rows(tile);
                        with_height!(1..=S::ROWS, rows.len(), tile_of::<S>(&block, rows.start));
                    }
                }
            }
        }
    }
}

/// A block of dequantized weights, and what it is multiplied with.
struct Block<'a> {
    inputs: Inputs,
    order: Option<&'a [u32]>,
    outputs: Outputs<'a>,
    panel: usize,
    cols: Range<usize>,
    /// `[cols][2 * LANES]`.
    weights: *const f32,
}

#[inline(always)]
unsafe fn tile_of<S: Simd, const M: usize>(block: &Block<'_>, row: usize) {
    // SAFETY: the caller guarantees the instruction set and valid pointers.
    unsafe { S::call(Tile::<M> { block, row }) }
}

/// The product of M rows from `row` by a block.
struct Tile<'a, const M: usize> {
    block: &'a Block<'a>,
    row: usize,
}

impl<const M: usize> Kernel for Tile<'_, M> {
    const USES: Extension = Extension::None;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Tile { block: Block { inputs, order, outputs, panel, cols, weights }, row } = self;
        let col_of = |v: usize| (panel * 2 + v) * S::LANES;
        // SAFETY: the creator passes rows and panels inside the operands. The order has a column of
        // the inputs for each packed column.
        unsafe {
            let x = inputs.tile(row);
            let mut sums = [[S::splat(0.0); 2]; M];
            if cols.start > 0 {
                for (i, sums) in sums.iter_mut().enumerate() {
                    *sums = [outputs.get::<S>(row + i, col_of(0)), outputs.get::<S>(row + i, col_of(1))];
                }
            }
            for (at, col) in cols.clone().enumerate() {
                let word = order.map_or(col, |order| order[col] as usize);
                let x = x.add(word / GROUP * GROUP * M + word % GROUP);
                let w = weights.add(at * 2 * S::LANES);
                let w = [S::load(w), S::load(w.add(S::LANES))];
                for i in 0..M {
                    let x = S::splat(f32::from_bits(*x.add(i * GROUP)));
                    for v in 0..2 {
                        sums[i][v] = S::fma(x, w[v], sums[i][v]);
                    }
                }
            }
            outputs.put_tile::<S, M, 2>(row, col_of(0), &sums);
        }
    }
}

/// Returns byte `index` of each lane as a number.
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
pub(super) unsafe fn byte<S: Simd>(bytes: S::I, index: usize) -> S::V {
    // SAFETY: the caller guarantees the instruction set.
    unsafe { S::to_f32(S::and_i(S::shift_right(bytes, 8 * index as i32), S::splat_i(0xff))) }
}
