//! Activations as signed bytes with one scale per row and super-block.

use std::ops::Range;

use millrace_backend::Result;
use millrace_numbers::formats::ggml::{KFormat, SUPER_BLOCK};

use super::super::memory::{Memory, Shared};
use super::super::quant::{STEP, quantize_group};
use super::super::simd::{Extension, Kernel, Simd};

/// Numbers of the sums of a super-block.
const SUMS: usize = 16;
/// Bytes of a row for one super-block: the activations, the sums and the scale.
const BLOCK_BYTES: usize = SUPER_BLOCK + 4 * SUMS + 4;

/// The quantized activations of the rows of a tile for one super-block. The product reads them as
/// one stream: bytes as `[SUPER_BLOCK / STEP][height][STEP]`, then the sums `[height][SUMS]` and
/// the scales `[height]`. The super-blocks of a tile follow each other. All rows take the same
/// room, so a tile begins behind the rows before it.
#[derive(Debug, Clone, Copy)]
pub(super) struct TileBlock {
    start: *mut u8,
    height: usize,
}

impl TileBlock {
    /// Returns super-block `block` of the tile of `height` rows from `row`, of rows with `blocks`
    /// super-blocks.
    ///
    /// # Safety
    /// The buffer at `x` has all of them.
    #[inline(always)]
    pub(super) unsafe fn new(
        x: *mut u8,
        blocks: usize,
        row: usize,
        height: usize,
        block: usize,
    ) -> TileBlock {
        // SAFETY: as the caller guarantees.
        TileBlock { start: unsafe { x.add((row * blocks + block * height) * BLOCK_BYTES) }, height }
    }

    /// Returns the bytes of the columns from `col` on, a multiple of 4, of the first row. Those of
    /// the other rows follow at a distance of [`STEP`].
    #[inline(always)]
    pub(super) fn bytes(self, col: usize) -> *mut i8 {
        self.start.wrapping_add(col / STEP * STEP * self.height + col % STEP).cast()
    }

    /// Returns the sums of the bytes of each sub-block of row `i`, in the form that the product
    /// needs.
    ///
    /// For `Q6_K` they are the sums times the negated offset. For `Q4_K` the first two words hold
    /// the lower parts of the eight sums, and the next two the upper parts, as signed bytes: `sum =
    /// upper * 128 + lower`. So dot products of bytes multiply them by the minima.
    #[inline(always)]
    pub(super) fn sums(self, i: usize) -> *mut [i32; SUMS] {
        self.start.wrapping_add(SUPER_BLOCK * self.height).cast::<[i32; SUMS]>().wrapping_add(i)
    }

    /// Returns the scale of row `i`: `activation = byte * scale`.
    #[inline(always)]
    pub(super) fn scale(self, i: usize) -> *mut f32 {
        self.sums(self.height).cast::<f32>().wrapping_add(i)
    }
}

/// Returns the bytes that a row of `cols` columns takes in the buffer.
pub(crate) const fn row_bytes(cols: usize) -> usize {
    cols.div_ceil(SUPER_BLOCK) * BLOCK_BYTES
}

/// The buffer for the quantized activations of a product, large enough for the largest one.
#[derive(Debug)]
pub(crate) struct BlockBuffer {
    rows: usize,
    cols: usize,
    pub(super) bytes: Memory<u8>,
}

impl BlockBuffer {
    pub(crate) fn new() -> Result<Self> {
        Ok(BlockBuffer { rows: 0, cols: 0, bytes: Memory::zeroed(0, "quantized activations")? })
    }

    /// Enlarges the buffer to products of `rows` rows and `cols` inputs. No bytes are allocated
    /// before there are both.
    pub(crate) fn reserve(&mut self, rows: usize, cols: usize) -> Result<()> {
        (self.rows, self.cols) = (self.rows.max(rows), self.cols.max(cols));
        let needed = self.rows.saturating_mul(row_bytes(self.cols));
        if needed > self.bytes.len() {
            self.bytes = Memory::zeroed(needed, "quantized activations")?;
        }
        Ok(())
    }
}

/// The quantization of some super-blocks of the rows of a tile. The largest magnitude of each
/// super-block becomes 127. The scale of a super-block with a NaN or an infinity is NaN.
pub(super) struct QuantizeTile<'a> {
    pub(super) format: KFormat,
    /// All rows, `[n, cols]`.
    pub(super) x: &'a [f32],
    pub(super) cols: usize,
    /// The rows of the tile.
    pub(super) rows: Range<usize>,
    pub(super) blocks: Range<usize>,
    /// The buffer for all tiles.
    pub(super) to: Shared<u8>,
}

impl Kernel for QuantizeTile<'_> {
    const USES: Extension = Extension::None;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let QuantizeTile { rows, cols, to, .. } = self;
        let height = rows.len();
        for (i, x) in self.x.chunks_exact(cols).skip(rows.start).take(height).enumerate() {
            for block in self.blocks.clone() {
                let x = &x[block * SUPER_BLOCK..][..SUPER_BLOCK];
                let mut bytes = [0; SUPER_BLOCK];
                // SAFETY: the caller guarantees the instruction set. The super-block is inside the
                // tile, and this task alone writes it.
                unsafe {
                    let to = TileBlock::new(to.as_ptr(), cols / SUPER_BLOCK, rows.start, height, block);
                    *to.scale(i) = quantize_group::<S>(x, bytes.as_mut_ptr(), STEP).0;
                    *to.sums(i) = sums(self.format, &bytes);
                    for (at, bytes) in bytes.as_chunks::<STEP>().0.iter().enumerate() {
                        to.bytes(at * STEP).add(i * STEP).cast::<[i8; STEP]>().write(*bytes);
                    }
                }
            }
        }
    }
}

/// Returns the sums of the bytes of the sub-blocks in the form that the product needs.
#[inline(always)]
fn sums(format: KFormat, bytes: &[i8; SUPER_BLOCK]) -> [i32; SUMS] {
    let mut quarters = [0i32; SUMS];
    for (sum, bytes) in quarters.iter_mut().zip(bytes.as_chunks::<16>().0) {
        *sum = bytes.iter().map(|byte| i32::from(*byte)).sum();
    }
    match format {
        KFormat::Q6K => quarters.map(|sum| -i32::from(KFormat::Q6K.offset()) * sum),
        KFormat::Q4K | KFormat::Q5K => {
            let mut parts = [0u8; 16];
            for (s, pair) in quarters.as_chunks::<2>().0.iter().enumerate() {
                // At most 32 * 127 in magnitude, so that both parts fit signed bytes.
                let sum = pair[0] + pair[1];
                let upper = (sum + 64) >> 7;
                (parts[s], parts[8 + s]) = ((sum - 128 * upper) as u8, upper as u8);
            }
            let mut words = [0; 16];
            for (word, four) in words.iter_mut().zip(parts.as_chunks::<4>().0) {
                *word = i32::from_le_bytes(*four);
            }
            words
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sums_of_sub_blocks_are_stored_exactly(
            bytes in prop::collection::vec(-127i8..=127, SUPER_BLOCK), extreme in prop::option::of(prop::sample::select(vec![-127i8, 127])),
        ) {
            let mut bytes: [i8; SUPER_BLOCK] = bytes.try_into().unwrap();
            if let Some(extreme) = extreme {
                bytes[32..64].fill(extreme);
            }
            let sum = |bytes: &[i8]| bytes.iter().map(|byte| i32::from(*byte)).sum::<i32>();
            for (found, bytes) in sums(KFormat::Q6K, &bytes).iter().zip(bytes.chunks(16)) {
                prop_assert_eq!(*found, -32 * sum(bytes));
            }
            let words = sums(KFormat::Q4K, &bytes);
            let part = |at: usize| i32::from(words[at / 4].to_le_bytes()[at % 4].cast_signed());
            for (s, bytes) in bytes.chunks(32).enumerate() {
                prop_assert_eq!(part(s) + 128 * part(8 + s), sum(bytes));
            }
        }
    }
}
