//! The inputs of the matrix product, packed in the order in which it reads them.
//!
//! Inputs are words of 32 bits: one f32 number, or two numbers rounded to bf16. A tile of rows is
//! `[ceil(words / 16)][height][16]`. So the tile is one sequential stream, a row of it is packed by
//! whole vectors, and no two rows compete for the same place of a cache, as rows do whose distance
//! is a power of two. Missing words of the last group are zeros.

use std::ops::Range;

use super::memory::Shared;
use super::simd::{Kernel, Simd};

/// Words of a row that are next to each other: as many as a cache line holds.
pub(super) const GROUP: usize = 16;

/// The contents of the words of packed inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InputWords {
    F32,
    /// Two neighboring inputs.
    Bf16Pairs,
}

impl InputWords {
    /// Returns the words of a row of `cols` inputs.
    pub(super) fn count(self, cols: usize) -> usize {
        match self {
            InputWords::F32 => cols,
            InputWords::Bf16Pairs => cols.div_ceil(2),
        }
    }
}

/// Packed inputs.
#[derive(Clone, Copy)]
pub(super) struct Inputs {
    /// Rows.
    pub(super) n: usize,
    /// The words of a row without padding.
    pub(super) words: usize,
    /// The tiles.
    pub(super) x: *const u32,
}

// SAFETY: the inputs are only read while a loop runs.
unsafe impl Send for Inputs {}
// SAFETY: as above.
unsafe impl Sync for Inputs {}

impl Inputs {
    /// Returns the words that a packed row takes.
    pub(super) fn row_words(words: usize) -> usize {
        words.next_multiple_of(GROUP)
    }

    /// Returns the start of the tile whose first row is `row`.
    ///
    /// # Safety
    /// A tile starts at the row.
    #[inline(always)]
    pub(super) unsafe fn tile(&self, row: usize) -> *const u32 {
        // SAFETY: the rows before this one take as many words each.
        unsafe { self.x.add(row * Inputs::row_words(self.words)) }
    }
}

/// The packing of one tile of rows of `x`, `[n, cols]`.
pub(super) struct PackTile<'a> {
    pub(super) words: InputWords,
    pub(super) cols: usize,
    pub(super) x: &'a [f32],
    /// The rows of the tile.
    pub(super) rows: Range<usize>,
    /// The buffer for all tiles: [`Inputs::row_words`] words per row.
    pub(super) to: Shared<u32>,
}

impl Kernel for PackTile<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let rows = self.rows;
        let row_words = Inputs::row_words(self.words.count(self.cols));
        let x = &self.x[rows.start * self.cols..rows.end * self.cols];
        // SAFETY: the tile belongs to this task alone, and the buffer holds it.
        let to = unsafe { self.to.as_ptr().add(rows.start * row_words) };
        for (i, row) in x.chunks_exact(self.cols.max(1)).enumerate() {
            // SAFETY: the caller guarantees the instruction set. Every group of every row is inside
            // the tile.
            unsafe {
                let to = to.add(i * GROUP);
                match self.words {
                    InputWords::F32 => pack_row::<S, GROUP>(row, to, rows.len() * GROUP, |to, x| {
                        for at in (0..GROUP).step_by(S::LANES) {
                            S::store(to.cast::<f32>().add(at), S::load(x.add(at)));
                        }
                    }),
                    InputWords::Bf16Pairs => {
                        pack_row::<S, { 2 * GROUP }>(row, to, rows.len() * GROUP, |to, x| {
                            for at in (0..2 * GROUP).step_by(S::LANES) {
                                S::store_bf16(to.cast::<u16>().add(at), S::load(x.add(at)));
                            }
                        })
                    }
                }
            }
        }
    }
}

/// Calls `pack(to, x)` for each group of COLS inputs of a row. The last group ends with zeros. The
/// groups are `stride` words apart.
#[inline(always)]
unsafe fn pack_row<S: Simd, const COLS: usize>(
    row: &[f32],
    to: *mut u32,
    stride: usize,
    pack: impl Fn(*mut u32, *const f32),
) {
    let mut padded = [0.0; COLS];
    for (group, x) in row.chunks(COLS).enumerate() {
        let x = if x.len() == COLS {
            x.as_ptr()
        } else {
            padded[..x.len()].copy_from_slice(x);
            padded.as_ptr()
        };
        // The only call: a closure that is called twice can become a function without vector
        // instructions.
        pack(to.wrapping_add(group * stride), x);
    }
}
