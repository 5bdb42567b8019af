//! The block types of GGML, in which GGUF files and their ancestors store quantized weights.
//!
//! A block holds some successive columns of a row, with their scales. The layouts and formulas are
//! those of llama.cpp (Georgi Gerganov, Iwan Kawrakow and others). A type is one line of the table
//! and one function that decodes a block.
//!
//! | module | types |
//! |---|---|
//! | `small_blocks` | integers with one scale for 32 columns |
//! | `super_blocks` | integers with scales that are codes, for 256 columns |
//! | `tables` | codes that index a table of 16 numbers |
//! | `grids` | codes that stand for four or eight weights at once |
//! | `ternary` | weights that are -1, 0 or 1, times a scale, also without 0 |
//! | `k_quants` | `Q4_K`, `Q5_K` and `Q6_K`, which devices keep and weights are quantized to |
//! | `rows` | rows of blocks without rounding, for devices |

mod grids;
mod k_quants;
mod rows;
mod small_blocks;
mod super_blocks;
mod tables;
mod ternary;
#[cfg(test)]
mod tests;
mod words;

use std::fmt::{self, Display, Formatter};
use std::ops::Range;

pub use k_quants::{KFormat, SUPER_BLOCK, SuperBlock};
pub use rows::{BlockRows, exact_blocks};
use words::SMALL_BLOCK;

use crate::codes::CodeRow;
use crate::{Error, Result};

/// The name of quantized checkpoints that consist of blocks.
pub const NAME: &str = "blocks of GGML";

/// Writes the weights of a block to the second slice, which has as many elements as the block.
type Decode = fn(&[u8], &mut [f32]);

/// Declares the block types: number and name in GGML, columns and bytes of a block, and the
/// function that decodes a block.
macro_rules! block_types {
    ($($(#[$doc:meta])* $name:ident = $id:literal, $text:literal, $cols:expr, $bytes:expr, $decode:path;)*) => {
        /// A type of blocks. Numbers are little-endian, and scales are of type f16 unless said
        /// otherwise.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(non_camel_case_types, reason = "the names are those of the format")]
        pub enum BlockType {
            $($(#[$doc])* $name,)*
        }

        impl BlockType {
            /// All types.
            pub const ALL: [BlockType; [$($id),*].len()] = [$(BlockType::$name),*];

            /// Returns the number of the type in files.
            pub const fn ggml_id(self) -> u32 {
                match self { $(BlockType::$name => $id,)* }
            }

            /// Returns the type with this number in files.
            pub const fn from_ggml_id(id: u32) -> Option<Self> {
                match id {
                    $($id => Some(BlockType::$name),)*
                    _ => None,
                }
            }

            /// Returns the name in GGML.
            pub const fn name(self) -> &'static str {
                match self { $(BlockType::$name => $text,)* }
            }

            /// Returns the columns of a block.
            pub const fn cols(self) -> usize {
                match self { $(BlockType::$name => $cols,)* }
            }

            /// Returns the bytes of a block.
            pub const fn bytes(self) -> usize {
                match self { $(BlockType::$name => $bytes,)* }
            }

            fn decoder(self) -> Decode {
                match self { $(BlockType::$name => $decode,)* }
            }
        }
    };
}

block_types! {
    /// `(code - 8) * scale`: scale, then 16 bytes with the codes of columns `j` and `j + 16`.
    Q4_0 = 2, "Q4_0", SMALL_BLOCK, 18, small_blocks::decode_q4_0;
    /// `code * scale + minimum`: scale, minimum, codes as in `Q4_0`.
    Q4_1 = 3, "Q4_1", SMALL_BLOCK, 20, small_blocks::decode_q4_1;
    /// `(code - 16) * scale`: scale, a word with the fifth bits, the lower bits as in `Q4_0`.
    Q5_0 = 6, "Q5_0", SMALL_BLOCK, 22, small_blocks::decode_q5_0;
    /// `code * scale + minimum`: scale, minimum, then as `Q5_0`.
    Q5_1 = 7, "Q5_1", SMALL_BLOCK, 24, small_blocks::decode_q5_1;
    /// `code * scale` with signed bytes: scale, codes.
    Q8_0 = 8, "Q8_0", SMALL_BLOCK, 34, small_blocks::decode_q8_0;
    /// Codes of 2 bits in 16 sub-blocks with scales and minima of 4 bits.
    Q2K = 10, "Q2_K", SUPER_BLOCK, 84, super_blocks::decode_q2_k;
    /// Codes of 3 bits in 16 sub-blocks with scales of 6 bits.
    Q3K = 11, "Q3_K", SUPER_BLOCK, 110, super_blocks::decode_q3_k;
    /// Codes of 4 bits in 8 sub-blocks with scales and minima of 6 bits.
    Q4K = 12, "Q4_K", SUPER_BLOCK, KFormat::Q4K.file_bytes(), super_blocks::decode_q4_k;
    /// Codes of 5 bits in 8 sub-blocks with scales and minima of 6 bits.
    Q5K = 13, "Q5_K", SUPER_BLOCK, KFormat::Q5K.file_bytes(), super_blocks::decode_q5_k;
    /// Codes of 6 bits in 16 sub-blocks with scales of 8 bits.
    Q6K = 14, "Q6_K", SUPER_BLOCK, KFormat::Q6K.file_bytes(), super_blocks::decode_q6_k;
    /// `table[code] * scale`: scale, codes as in `Q4_0`.
    IQ4_NL = 20, "IQ4_NL", SMALL_BLOCK, 18, tables::decode_iq4_nl;
    /// Codes as in `IQ4_NL`, in 8 sub-blocks with scales of 6 bits.
    IQ4_XS = 23, "IQ4_XS", SUPER_BLOCK, 136, tables::decode_iq4_xs;
    /// `table[code] * scale` with e2m1 numbers: the scale is a power of two, codes as in `Q4_0`.
    MXFP4 = 39, "MXFP4", SMALL_BLOCK, 17, tables::decode_mxfp4;
    /// Codes of 8 bits for eight columns, in parts of 32 with a scale of 4 bits.
    IQ2_XXS = 16, "IQ2_XXS", SUPER_BLOCK, 66, grids::decode_iq2_xxs;
    /// Codes of 9 bits for eight columns, in parts of 16 with a scale of 4 bits.
    IQ2_XS = 17, "IQ2_XS", SUPER_BLOCK, 74, grids::decode_iq2_xs;
    /// Codes of 10 bits for eight columns, in parts of 16 with a scale of 4 bits.
    IQ2_S = 22, "IQ2_S", SUPER_BLOCK, 82, grids::decode_iq2_s;
    /// Codes of 8 bits for four columns, in parts of 32 with a scale of 4 bits.
    IQ3_XXS = 18, "IQ3_XXS", SUPER_BLOCK, 98, grids::decode_iq3_xxs;
    /// Codes of 9 bits for four columns, in parts of 32 with a scale of 4 bits.
    IQ3_S = 21, "IQ3_S", SUPER_BLOCK, 110, grids::decode_iq3_s;
    /// Codes of 11 bits for eight columns, in parts of 32 with a scale of 3 bits.
    IQ1_S = 19, "IQ1_S", SUPER_BLOCK, 50, grids::decode_iq1_s;
    /// Codes of 11 bits for eight columns, in parts of 16 with a scale of 3 bits.
    IQ1_M = 29, "IQ1_M", SUPER_BLOCK, 56, grids::decode_iq1_m;
    /// Five columns in each of 48 bytes and four in each of 4, in base 3, then a scale.
    TQ1_0 = 34, "TQ1_0", SUPER_BLOCK, 54, ternary::decode_tq1_0;
    /// Codes of 2 bits as in `Q2_K`, then a scale.
    TQ2_0 = 35, "TQ2_0", SUPER_BLOCK, 66, ternary::decode_tq2_0;
    /// `table[code] * scale` with e2m1 numbers: four scales of type e4m3, each for 16 columns, then
    /// 8 bytes for each scale with the codes of columns `j` and `j + 8`.
    NVFP4 = 40, "NVFP4", 64, 36, tables::decode_nvfp4;
    /// `scale` where a bit is set, otherwise `-scale`: scale, bits from the lowest of each byte.
    Q1_0 = 41, "Q1_0", 128, 18, ternary::decode_q1_0;
}

impl BlockType {
    /// Returns the bytes of `elements` successive elements, or `None` if they are not whole blocks.
    pub fn bytes_of(self, elements: usize) -> Option<usize> {
        let blocks = elements.is_multiple_of(self.cols()).then(|| elements / self.cols())?;
        blocks.checked_mul(self.bytes())
    }

    /// Checks that a matrix `[rows, cols]` has `bytes` bytes.
    ///
    /// # Errors
    /// [`Error::Shape`] if it has not, or if a row is not whole blocks.
    pub(crate) fn check(self, rows: usize, cols: usize, bytes: usize) -> Result<()> {
        let needed = (cols / self.cols()).saturating_mul(self.bytes()).saturating_mul(rows);
        if !cols.is_multiple_of(self.cols()) || needed != bytes {
            let name = self.name();
            return Err(Error::Shape(format!(
                "a {name} matrix of {rows} x {cols} cannot have {bytes} bytes"
            )));
        }
        Ok(())
    }

    /// Returns block `index` of a row.
    pub(crate) fn block_of<'a>(self, row: CodeRow<'a>, index: usize) -> &'a [u8] {
        let first = row.row * (row.stored / self.cols());
        &row.bytes[(first + index) * self.bytes()..][..self.bytes()]
    }

    /// Writes the weights of columns `cols` to `out`, which is as long. A block of which only some
    /// columns are wanted is decoded completely.
    pub(crate) fn read_weights(self, row: CodeRow<'_>, cols: Range<usize>, out: &mut [f32]) {
        let (mut rest, mut col) = (out, cols.start);
        let mut all = [0.0; SUPER_BLOCK];
        while col < cols.end {
            let (block, first) = (self.block_of(row, col / self.cols()), col % self.cols());
            let run = (self.cols() - first).min(cols.end - col);
            let (out, after) = rest.split_at_mut(run);
            if run == self.cols() {
                (self.decoder())(block, out);
            } else {
                (self.decoder())(block, &mut all[..self.cols()]);
                out.copy_from_slice(&all[first..first + run]);
            }
            (rest, col) = (after, col + run);
        }
    }
}

impl Display for BlockType {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
