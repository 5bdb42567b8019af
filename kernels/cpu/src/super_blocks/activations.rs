//! Activations as signed bytes with one scale per row and super-block.

use millrace_backend::Result;
use millrace_numbers::formats::ggml::{KFormat, SUPER_BLOCK};

use super::super::memory::{Memory, Plain, Shared};
use super::super::quant::quantize_group;
use super::super::simd::{Extension, Kernel, Simd};

/// The quantized activations of one row for one super-block.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct ActivationBlock {
    pub(super) bytes: [i8; SUPER_BLOCK],
    /// The sums of the bytes of each sub-block, in the form that the product needs.
    ///
    /// For `Q6_K` it is the sum times the negated offset. For `Q4_K` the first two words hold the
    /// lower parts of the eight sums, and the next two the upper parts, as signed bytes: `sum =
    /// upper * 128 + lower`. So dot products of bytes multiply them by the minima.
    pub(super) sums: [i32; 16],
    /// `activation = byte * scale`.
    pub(super) scale: f32,
}

// SAFETY: all fields are plain numbers.
unsafe impl Plain for ActivationBlock {}

/// Returns the bytes that a row of `cols` columns takes in the buffer.
pub(crate) const fn row_bytes(cols: usize) -> usize {
    cols.div_ceil(SUPER_BLOCK) * size_of::<ActivationBlock>()
}

/// The buffer for the quantized activations of a product, large enough for the largest one.
#[derive(Debug)]
pub(crate) struct BlockBuffer {
    rows: usize,
    cols: usize,
    pub(super) blocks: Memory<ActivationBlock>,
}

impl BlockBuffer {
    pub(crate) fn new() -> Result<Self> {
        Ok(BlockBuffer { rows: 0, cols: 0, blocks: Memory::zeroed(0, "quantized activations")? })
    }

    /// Enlarges the buffer to products of `rows` rows and `cols` inputs. No bytes are allocated
    /// before there are both.
    pub(crate) fn reserve(&mut self, rows: usize, cols: usize) -> Result<()> {
        (self.rows, self.cols) = (self.rows.max(rows), self.cols.max(cols));
        let needed = self.rows.saturating_mul(self.cols.div_ceil(SUPER_BLOCK));
        if needed > self.blocks.len() {
            self.blocks = Memory::zeroed(needed, "quantized activations")?;
        }
        Ok(())
    }
}

/// The quantization of one row of `x`, `[n, cols]`. The largest magnitude of each super-block
/// becomes 127. The scale of a super-block with a NaN or an infinity is NaN.
pub(super) struct QuantizeRow<'a> {
    pub(super) format: KFormat,
    /// The row.
    pub(super) x: &'a [f32],
    /// The blocks of the row.
    pub(super) to: Shared<ActivationBlock>,
}

impl Kernel for QuantizeRow<'_> {
    const USES: Extension = Extension::None;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for (index, x) in self.x.as_chunks::<SUPER_BLOCK>().0.iter().enumerate() {
            // SAFETY: the caller guarantees the instruction set. The block is inside the row's
            // blocks, which this task alone writes.
            unsafe {
                let to = self.to.as_ptr().add(index);
                (*to).scale = quantize_group::<S>(x, (&raw mut (*to).bytes).cast()).0;
                (*to).sums = sums(self.format, &(*to).bytes);
            }
        }
    }
}

/// Returns the sums of the bytes of the sub-blocks in the form that the product needs.
#[inline(always)]
fn sums(format: KFormat, bytes: &[i8; SUPER_BLOCK]) -> [i32; 16] {
    let mut quarters = [0i32; 16];
    for (sum, bytes) in quarters.iter_mut().zip(bytes.as_chunks::<16>().0) {
        *sum = bytes.iter().map(|byte| i32::from(*byte)).sum();
    }
    match format {
        KFormat::Q6K => quarters.map(|sum| -i32::from(KFormat::Q6K.offset()) * sum),
        KFormat::Q4K => {
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
