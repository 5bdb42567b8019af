//! The product of pairs of bf16 numbers.
//!
//! The sums of an output element are added in the order of the inputs, 32 of them at a time, and
//! each 32 in the order of the instruction. Tiles, blocks and threads only divide the elements and
//! the chains among themselves, so that a row's result depends only on the row.
//!
//! Up to 32 rows are bound by reading the weights, each of which is read once. More rows are
//! computed block after block: the weights of a block stay in the L1 cache, and the inputs of all
//! rows in the L2 cache, while the weights of the next block are prefetched.

use std::ops::Range;

use half::bf16;

use super::super::inputs::{GROUP, Inputs};
use super::super::memory::Shared;
use super::super::tile::Tiles;
use super::block::{Ahead, Block, Unit};
use super::unit::{Amx, ROWS, STEP_BYTES, WIDTH};

/// Steps of a block of weights, which take 64 KiB.
const BLOCK_STEPS: usize = 32;
/// Panels whose sums stay in the L2 cache between blocks.
const GROUP_PANELS: usize = 8;

/// The computation of the outputs of some panels for all rows.
pub(super) struct Bf16Product<'a> {
    /// Tiles of at most [`ROWS`] rows.
    pub(super) inputs: Inputs,
    /// `[panels][words][WIDTH][2]`.
    pub(super) weights: *const bf16,
    pub(super) bias: Option<&'a [f32]>,
    /// `[n, outputs]`.
    pub(super) out: Shared<f32>,
    pub(super) outputs: usize,
    pub(super) panels: Range<usize>,
}

impl Bf16Product<'_> {
    /// Computes the product.
    ///
    /// # Safety
    /// The machine must have the tile unit, and the pointers must be valid. Only this task may
    /// write to these outputs.
    pub(super) unsafe fn compute(&self) {
        // SAFETY: the caller guarantees what the function requires.
        unsafe { self.compute_with(&mut Amx::new()) }
    }

    /// As [`Bf16Product::compute`], with an implementation of the tile unit.
    ///
    /// # Safety
    /// As for [`Bf16Product::compute`].
    pub(super) unsafe fn compute_with(&self, unit: &mut impl Unit) {
        let tiles = Tiles::new(self.inputs.n, ROWS);
        // The last words are a step of their own if they do not fill one.
        let steps = self.inputs.words.div_ceil(GROUP);
        let pairs = tiles.count().div_ceil(2);
        if pairs == 1 {
            for panel in self.panels.clone() {
                // SAFETY: the caller guarantees what the function requires.
                unsafe { self.block(unit, Place { panel, first_tile: 0, steps: 0..steps }, Ahead::Own) };
            }
            return;
        }
        let starts = || (0..steps.max(1)).step_by(BLOCK_STEPS);
        for first in self.panels.clone().step_by(GROUP_PANELS) {
            let group = first..(first + GROUP_PANELS).min(self.panels.end);
            for start in starts() {
                for panel in group.clone() {
                    let steps = start..steps.min(start + BLOCK_STEPS);
                    let mut ahead = self.after(&group, panel, steps.start);
                    for pair in 0..pairs {
                        let at = Place { panel, first_tile: 2 * pair, steps: steps.clone() };
                        // SAFETY: as above.
                        unsafe { self.block(unit, at, Ahead::From(ahead)) };
                        ahead = ahead.wrapping_add(128 * steps.len());
                    }
                }
            }
        }
    }

    /// Returns the address of the weights of the block that follows.
    fn after(&self, group: &Range<usize>, panel: usize, start: usize) -> *const u8 {
        let (panel, start) = if panel + 1 < group.end {
            (panel + 1, start)
        } else if (start + BLOCK_STEPS) * GROUP < self.inputs.words {
            (group.start, start + BLOCK_STEPS)
        } else {
            (group.end, 0)
        };
        self.weights_at(panel, start)
    }

    fn weights_at(&self, panel: usize, step: usize) -> *const u8 {
        let words = panel * self.inputs.words + step * GROUP;
        self.weights.cast::<u8>().wrapping_add(words * WIDTH * size_of::<u32>())
    }

    /// Adds the products of a block to its sums, which start as zeros and end with the bias.
    ///
    /// # Safety
    /// As for [`Bf16Product::compute`].
    unsafe fn block(&self, unit: &mut impl Unit, at: Place, ahead: Ahead) {
        let Place { panel, first_tile, steps } = at;
        let tiles = Tiles::new(self.inputs.n, ROWS);
        let first = tiles.rows(first_tile);
        let second = if first_tile + 1 < tiles.count() { tiles.rows(first_tile + 1) } else { 0..0 };
        let rows = first.start..first.end + second.len();
        let heights = [first.len(), second.len()];
        let col = panel * WIDTH;
        let width = WIDTH.min(self.outputs - col);
        let is_last = steps.end * GROUP >= self.inputs.words;
        // SAFETY: the rows, the columns and the steps are inside the operands.
        unsafe {
            let out = self.out.as_ptr().add(rows.start * self.outputs + col);
            // The sums of a panel that is wider than the rest of the outputs are elsewhere.
            let mut edge = [[0f32; WIDTH]; 2 * ROWS];
            let (sums, stride) =
                if width == WIDTH { (out, self.outputs) } else { (edge.as_mut_ptr().cast(), WIDTH) };
            for row in 0..rows.len() {
                if steps.start == 0 {
                    std::ptr::write_bytes(sums.add(row * stride), 0, width);
                } else if width < WIDTH {
                    let from = out.add(row * self.outputs);
                    std::ptr::copy_nonoverlapping(from, sums.add(row * stride), width);
                }
            }
            let input = |row: usize, height: usize| -> *const u8 {
                self.inputs.tile(row).wrapping_add(steps.start * height * GROUP).cast()
            };
            let whole = steps.end.min(self.inputs.words / GROUP) - steps.start;
            let mut block = Block {
                heights,
                inputs: [input(first.start, heights[0]), input(first.end, heights[1])],
                weights: self.weights_at(panel, steps.start),
                steps: whole,
                sums: [sums, sums.wrapping_add(heights[0] * stride)],
                fresh: false,
                stride: stride * size_of::<f32>(),
                ahead,
            };
            unit.multiply_bf16(&block);
            if whole < steps.len() {
                // The step reads whole tiles of weights, whose missing rows must not be the next
                // panel: an infinity there times a zero is not a zero.
                let mut padded = [0u8; STEP_BYTES];
                let rest = self.inputs.words % GROUP * WIDTH * size_of::<u32>();
                let from = self.weights_at(panel, steps.start + whole);
                std::ptr::copy_nonoverlapping(from, padded.as_mut_ptr(), rest);
                for (tile, height) in heights.into_iter().enumerate() {
                    block.inputs[tile] =
                        block.inputs[tile].wrapping_add(whole * height * GROUP * size_of::<u32>());
                }
                (block.weights, block.steps) = (padded.as_ptr(), 1);
                unit.multiply_bf16(&block);
            }
            for row in 0..rows.len() {
                let sums = sums.add(row * stride);
                if let (Some(bias), true) = (self.bias, is_last) {
                    for (i, bias) in bias[col..col + width].iter().enumerate() {
                        *sums.add(i) += bias;
                    }
                }
                if width < WIDTH {
                    std::ptr::copy_nonoverlapping(sums, out.add(row * self.outputs), width);
                }
            }
        }
    }
}

/// A block of one panel and up to two tiles of rows.
struct Place {
    panel: usize,
    /// The first of the tiles.
    first_tile: usize,
    steps: Range<usize>,
}
