//! The "K-quants" of GGUF: weights in super-blocks of 256 columns.
//!
//! A super-block is cut into sub-blocks whose scales (and minima) are small integers themselves. So
//! a scale for 16 or 32 columns costs as little memory as one for a whole super-block would with
//! integers alone. The formats are by Iwan Kawrakow (llama.cpp).

mod q6_k;
mod super_block;
mod with_minima;

pub use super_block::{SUPER_BLOCK, SuperBlock};

use crate::{Error, Result};

/// A format of super-blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KFormat {
    /// Codes of 4 bits in 8 sub-blocks of 32 columns. Each has a scale and a minimum of 6 bits:
    /// `weight = scale * scales[s] * code - min * mins[s]`.
    Q4K,
    /// Codes of 5 bits, otherwise as [`KFormat::Q4K`].
    Q5K,
    /// Codes of 6 bits in 16 sub-blocks of 16 columns. Each has a signed scale of 8 bits: `weight =
    /// scale * scales[s] * (code - 32)`.
    Q6K,
}

impl KFormat {
    /// All formats.
    pub const ALL: [KFormat; 3] = [KFormat::Q4K, KFormat::Q5K, KFormat::Q6K];

    /// Returns the name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            KFormat::Q4K => "q4_k",
            KFormat::Q5K => "q5_k",
            KFormat::Q6K => "q6_k",
        }
    }

    /// Returns the columns of a sub-block.
    pub const fn sub_block(self) -> usize {
        match self {
            KFormat::Q4K | KFormat::Q5K => 32,
            KFormat::Q6K => 16,
        }
    }

    /// Returns the number that is subtracted from a code before it is scaled.
    pub const fn offset(self) -> u8 {
        match self {
            KFormat::Q4K | KFormat::Q5K => 0,
            KFormat::Q6K => 32,
        }
    }

    /// Returns whether sub-blocks have minima.
    pub const fn has_minima(self) -> bool {
        matches!(self, KFormat::Q4K | KFormat::Q5K)
    }

    /// Returns the bytes of a super-block in a GGUF file.
    pub const fn file_bytes(self) -> usize {
        match self {
            KFormat::Q4K => with_minima::Q4_BYTES,
            KFormat::Q5K => with_minima::Q5_BYTES,
            KFormat::Q6K => q6_k::BYTES,
        }
    }

    /// Reads a super-block from the bytes of a GGUF file. All bytes are valid.
    ///
    /// # Panics
    /// If there are not [`KFormat::file_bytes`] bytes.
    pub fn from_file(self, bytes: &[u8]) -> SuperBlock {
        assert_eq!(bytes.len(), self.file_bytes());
        match self {
            KFormat::Q4K => with_minima::q4_from_file(bytes),
            KFormat::Q5K => with_minima::q5_from_file(bytes),
            KFormat::Q6K => q6_k::from_file(bytes),
        }
    }

    /// Returns the bytes of a super-block in a GGUF file.
    pub fn to_file(self, block: &SuperBlock) -> Vec<u8> {
        let mut bytes = vec![0; self.file_bytes()];
        match self {
            KFormat::Q4K => with_minima::q4_to_file(block, &mut bytes),
            KFormat::Q5K => with_minima::q5_to_file(block, &mut bytes),
            KFormat::Q6K => q6_k::to_file(block, &mut bytes),
        }
        bytes
    }

    /// Returns the bytes of a matrix `[out, cols]` in memory, without padding. There, scales and
    /// minima of 6 bits take a byte each.
    pub const fn bytes(self, out: usize, cols: usize) -> usize {
        let block = self.file_bytes() + if self.has_minima() { 4 } else { 0 };
        out.saturating_mul(cols.div_ceil(SUPER_BLOCK) * block)
    }

    /// Checks that rows of `cols` columns consist of whole super-blocks.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if they do not.
    pub fn check_cols(self, cols: usize) -> Result<()> {
        if !cols.is_multiple_of(SUPER_BLOCK) {
            return Err(Error::Unsupported(format!(
                "a matrix of {cols} columns as {}, which needs a multiple of {SUPER_BLOCK}",
                self.name()
            )));
        }
        Ok(())
    }

    /// Quantizes the weights of a super-block.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a NaN, an infinity, and a weight so large that its scale exceeds
    /// the largest f16 number.
    // Inlined, so that its loops are vectorized for the instruction set of the caller.
    #[inline(always)]
    pub fn quantize(self, weights: &[f32; SUPER_BLOCK]) -> Result<SuperBlock> {
        let largest = weights.iter().fold(0, |most, weight| most.max(weight.to_bits() & !(1 << 31)));
        let largest = f32::from_bits(largest);
        if !largest.is_finite() {
            return Err(Error::Unsupported("a weight with a NaN or an infinity".to_owned()));
        }
        // Where squares of weights are subnormal or overflow, no least squares can be computed.
        let block = if largest < SMALLEST {
            SuperBlock::ZERO
        } else if largest > LARGEST {
            SuperBlock { scale: f32::INFINITY, ..SuperBlock::ZERO }
        } else {
            match self {
                KFormat::Q4K => with_minima::quantize_to_q4(weights),
                KFormat::Q5K => with_minima::quantize_to_q5(weights),
                KFormat::Q6K => q6_k::quantize(weights),
            }
        };
        if !(block.scale.is_finite() && block.min.is_finite()) {
            return Err(Error::Unsupported(format!("a weight of {largest:e} as {}", self.name())));
        }
        Ok(block)
    }

    /// Returns the weight in column `col` of a super-block.
    pub fn value(self, block: &SuperBlock, col: usize) -> f32 {
        let sub_block = col / self.sub_block();
        let scale = block.scale * f32::from(block.scales[sub_block]);
        let code = i16::from(block.codes[col]) - i16::from(self.offset());
        match self.has_minima() {
            true => scale * f32::from(code) - block.min * f32::from(block.mins[sub_block]),
            false => scale * f32::from(code),
        }
    }

    /// Rounds rows of `cols` weights to the values of the format, in place.
    ///
    /// # Errors
    /// As [`KFormat::check_cols`] and [`KFormat::quantize`].
    pub fn round(self, weights: &mut [f32], cols: usize) -> Result<()> {
        self.check_cols(cols)?;
        for weights in weights.as_chunks_mut::<SUPER_BLOCK>().0 {
            let block = self.quantize(weights)?;
            for (col, weight) in weights.iter_mut().enumerate() {
                *weight = self.value(&block, col);
            }
        }
        Ok(())
    }
}

/// Super-blocks whose largest weight is smaller become zeros. No f16 number is as small.
const SMALLEST: f32 = 1e-9;
/// Super-blocks with a larger weight are refused: their scale exceeds the largest f16 number.
const LARGEST: f32 = 1e9;
