//! The block types of GGML, in which GGUF files store quantized weights.
//!
//! A block holds some successive columns of a row, with their scales. The layouts and formulas are
//! those of llama.cpp (Georgi Gerganov, Iwan Kawrakow and others).

mod grids;
#[cfg(test)]
mod tests;
mod words;

use std::ops::Range;

use words::half_at;

use super::codes::{CodeRow, CodeType, CodedWeights};
use crate::quantize::{KFormat, SUPER_BLOCK};
use crate::{Error, Result};

/// A type of blocks. Numbers are little-endian, and scales are of type f16 unless said otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, reason = "the names are those of the format")]
pub enum BlockType {
    /// `(code - 8) * scale`: scale, then 16 bytes with the codes of columns `j` and `j + 16`.
    Q4_0,
    /// `code * scale + minimum`: scale, minimum, codes as in `Q4_0`.
    Q4_1,
    /// `(code - 16) * scale`: scale, a word with the fifth bits, the lower bits as in `Q4_0`.
    Q5_0,
    /// `code * scale + minimum`: scale, minimum, then as `Q5_0`.
    Q5_1,
    /// `code * scale` with signed bytes: scale, codes.
    Q8_0,
    /// Codes of 2 bits in 16 sub-blocks with scales and minima of 4 bits.
    Q2K,
    /// Codes of 3 bits in 16 sub-blocks with scales of 6 bits.
    Q3K,
    /// Codes of 4 bits in 8 sub-blocks with scales and minima of 6 bits.
    Q4K,
    /// Codes of 5 bits in 8 sub-blocks with scales and minima of 6 bits.
    Q5K,
    /// Codes of 6 bits in 16 sub-blocks with scales of 8 bits.
    Q6K,
    /// `table[code] * scale`: scale, codes as in `Q4_0`.
    IQ4_NL,
    /// Codes as in `IQ4_NL`, in 8 sub-blocks with scales of 6 bits.
    IQ4_XS,
    /// `table[code] * scale` with e2m1 numbers: the scale is a power of two, codes as in `Q4_0`.
    MXFP4,
    /// Codes of 8 bits for eight columns, in parts of 32 with a scale of 4 bits.
    IQ2_XXS,
    /// Codes of 9 bits for eight columns, in parts of 16 with a scale of 4 bits.
    IQ2_XS,
    /// Codes of 10 bits for eight columns, in parts of 16 with a scale of 4 bits.
    IQ2_S,
    /// Codes of 8 bits for four columns, in parts of 32 with a scale of 4 bits.
    IQ3_XXS,
    /// Codes of 9 bits for four columns, in parts of 32 with a scale of 4 bits.
    IQ3_S,
    /// Codes of 11 bits for eight columns, in parts of 32 with a scale of 3 bits.
    IQ1_S,
    /// Codes of 11 bits for eight columns, in parts of 16 with a scale of 3 bits.
    IQ1_M,
}

/// Columns of the blocks that are not super-blocks.
pub(crate) const SMALL_BLOCK: usize = 32;

/// Columns of a sub-block of the types with 8 or 16 sub-blocks.
const EIGHTH: usize = SUPER_BLOCK / 8;
const SIXTEENTH: usize = SUPER_BLOCK / 16;

/// The integers of `IQ4_NL` and `IQ4_XS`.
static IQ4_VALUES: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
];

/// Twice the e2m1 numbers, which are integers.
static MXFP4_VALUES: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

impl BlockType {
    /// All types.
    pub const ALL: [BlockType; 20] = [
        BlockType::Q4_0,
        BlockType::Q4_1,
        BlockType::Q5_0,
        BlockType::Q5_1,
        BlockType::Q8_0,
        BlockType::Q2K,
        BlockType::Q3K,
        BlockType::Q4K,
        BlockType::Q5K,
        BlockType::Q6K,
        BlockType::IQ4_NL,
        BlockType::IQ4_XS,
        BlockType::MXFP4,
        BlockType::IQ2_XXS,
        BlockType::IQ2_XS,
        BlockType::IQ2_S,
        BlockType::IQ3_XXS,
        BlockType::IQ3_S,
        BlockType::IQ1_S,
        BlockType::IQ1_M,
    ];

    /// Returns the name in GGML.
    pub const fn name(self) -> &'static str {
        match self {
            BlockType::Q4_0 => "Q4_0",
            BlockType::Q4_1 => "Q4_1",
            BlockType::Q5_0 => "Q5_0",
            BlockType::Q5_1 => "Q5_1",
            BlockType::Q8_0 => "Q8_0",
            BlockType::Q2K => "Q2_K",
            BlockType::Q3K => "Q3_K",
            BlockType::Q4K => "Q4_K",
            BlockType::Q5K => "Q5_K",
            BlockType::Q6K => "Q6_K",
            BlockType::IQ4_NL => "IQ4_NL",
            BlockType::IQ4_XS => "IQ4_XS",
            BlockType::MXFP4 => "MXFP4",
            BlockType::IQ2_XXS => "IQ2_XXS",
            BlockType::IQ2_XS => "IQ2_XS",
            BlockType::IQ2_S => "IQ2_S",
            BlockType::IQ3_XXS => "IQ3_XXS",
            BlockType::IQ3_S => "IQ3_S",
            BlockType::IQ1_S => "IQ1_S",
            BlockType::IQ1_M => "IQ1_M",
        }
    }

    /// Returns the columns of a block.
    pub const fn cols(self) -> usize {
        match self {
            BlockType::Q4_0
            | BlockType::Q4_1
            | BlockType::Q5_0
            | BlockType::Q5_1
            | BlockType::Q8_0
            | BlockType::IQ4_NL
            | BlockType::MXFP4 => SMALL_BLOCK,
            _ => SUPER_BLOCK,
        }
    }

    /// Returns the bytes of a block.
    pub const fn bytes(self) -> usize {
        match self {
            BlockType::Q4_0 | BlockType::IQ4_NL => 18,
            BlockType::Q4_1 => 20,
            BlockType::Q5_0 => 22,
            BlockType::Q5_1 => 24,
            BlockType::Q8_0 => 34,
            BlockType::Q2K => 84,
            BlockType::Q3K => 110,
            BlockType::Q4K => KFormat::Q4K.file_bytes(),
            BlockType::Q5K => 176,
            BlockType::Q6K => KFormat::Q6K.file_bytes(),
            BlockType::IQ4_XS => 136,
            BlockType::MXFP4 => 17,
            BlockType::IQ2_XXS => 66,
            BlockType::IQ2_XS => 74,
            BlockType::IQ2_S => 82,
            BlockType::IQ3_XXS => 98,
            BlockType::IQ3_S => 110,
            BlockType::IQ1_S => 50,
            BlockType::IQ1_M => 56,
        }
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
                self.decode(block, out);
            } else {
                self.decode(block, &mut all[..self.cols()]);
                out.copy_from_slice(&all[first..first + run]);
            }
            (rest, col) = (after, col + run);
        }
    }

    /// Writes the weights of a block to `out`, which has as many elements.
    fn decode(self, block: &[u8], out: &mut [f32]) {
        match self {
            BlockType::Q4_0 | BlockType::Q5_0 | BlockType::Q8_0 => {
                let mut codes = [0; SMALL_BLOCK];
                let scale = self.signed_codes(block, &mut codes);
                out.iter_mut().zip(codes).for_each(|(out, code)| *out = f32::from(code) * scale);
            }
            BlockType::Q4_1 | BlockType::Q5_1 => {
                let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
                let mut codes = [0; SMALL_BLOCK];
                if self == BlockType::Q4_1 {
                    nibbles(&block[4..], &mut codes);
                } else {
                    five_bits(&block[4..], &mut codes);
                }
                out.iter_mut().zip(codes).for_each(|(out, code)| *out = f32::from(code) * scale + minimum);
            }
            BlockType::Q4K => decode_known(KFormat::Q4K, block, out),
            BlockType::Q6K => decode_known(KFormat::Q6K, block, out),
            BlockType::Q2K => decode_q2_k(block, out),
            BlockType::Q3K => decode_q3_k(block, out),
            BlockType::Q5K => decode_q5_k(block, out),
            BlockType::IQ2_XXS => grids::decode_iq2_xxs(block, out),
            BlockType::IQ2_XS => grids::decode_iq2_xs(block, out),
            BlockType::IQ2_S => grids::decode_iq2_s(block, out),
            BlockType::IQ3_XXS => grids::decode_iq3_xxs(block, out),
            BlockType::IQ3_S => grids::decode_iq3_s(block, out),
            BlockType::IQ1_S => grids::decode_iq1_s(block, out),
            BlockType::IQ1_M => grids::decode_iq1_m(block, out),
            BlockType::IQ4_NL | BlockType::IQ4_XS | BlockType::MXFP4 => {
                let mut codes = [0; SUPER_BLOCK];
                let codes = &mut codes[..out.len()];
                self.table_codes(block, codes);
                for (part, (out, codes)) in
                    out.chunks_mut(SMALL_BLOCK).zip(codes.chunks(SMALL_BLOCK)).enumerate()
                {
                    let scale = self.table_scale(block, part);
                    for (out, code) in out.iter_mut().zip(codes) {
                        *out = self.values()[usize::from(*code)] * scale;
                    }
                }
            }
        }
    }

    /// Writes the integers of a block of `Q4_0`, `Q5_0`, `Q8_0` or `IQ4_NL` to `codes`, and returns
    /// its scale: `weight = code * scale`.
    pub(crate) fn signed_codes(self, block: &[u8], codes: &mut [i8; SMALL_BLOCK]) -> f32 {
        let mut unsigned = [0; SMALL_BLOCK];
        let offset = match self {
            BlockType::Q4_0 => {
                nibbles(&block[2..], &mut unsigned);
                8
            }
            BlockType::Q5_0 => {
                five_bits(&block[2..], &mut unsigned);
                16
            }
            BlockType::Q8_0 => {
                unsigned.copy_from_slice(&block[2..]);
                0
            }
            _ => {
                nibbles(&block[2..], &mut unsigned);
                unsigned = unsigned.map(|code| (IQ4_VALUES[usize::from(code)] as i8).cast_unsigned());
                0
            }
        };
        *codes = unsigned.map(|code| code.cast_signed() - offset);
        half_at(block, 0)
    }

    /// Writes the codes of a block of a type with a table.
    fn table_codes(self, block: &[u8], codes: &mut [u8]) {
        let bytes = match self {
            BlockType::IQ4_XS => &block[8..],
            BlockType::MXFP4 => &block[1..],
            _ => &block[2..],
        };
        for (bytes, codes) in bytes.as_chunks::<16>().0.iter().zip(codes.as_chunks_mut().0) {
            nibbles(bytes, codes);
        }
    }

    /// Returns the scale of 32 columns of a block of a type with a table.
    fn table_scale(self, block: &[u8], part: usize) -> f32 {
        match self {
            BlockType::MXFP4 => half_power_of_two(block[0]),
            BlockType::IQ4_XS => {
                let high = u16::from_le_bytes([block[2], block[3]]);
                let low = block[4 + part / 2] >> (4 * (part % 2)) & 15;
                let scale = i16::from(low) | (high >> (2 * part) & 3).cast_signed() << 4;
                half_at(block, 0) * f32::from(scale - 32)
            }
            _ => half_at(block, 0),
        }
    }
}

impl CodedWeights for BlockType {
    fn code_type(&self) -> CodeType {
        CodeType::FourBits
    }

    fn values(&self) -> &[f32] {
        if *self == BlockType::MXFP4 { &MXFP4_VALUES } else { &IQ4_VALUES }
    }

    fn read_codes(&self, row: CodeRow<'_>, cols: Range<usize>, out: &mut [u8]) {
        let (mut rest, mut col) = (out, cols.start);
        let mut all = [0; SUPER_BLOCK];
        while col < cols.end {
            let first = col % self.cols();
            let run = (self.cols() - first).min(cols.end - col);
            self.table_codes(self.block_of(row, col / self.cols()), &mut all[..self.cols()]);
            let (out, after) = rest.split_at_mut(run);
            out.copy_from_slice(&all[first..first + run]);
            (rest, col) = (after, col + run);
        }
    }

    fn block(&self, row: CodeRow<'_>, col: usize) -> (f32, usize) {
        let part = col % self.cols() / SMALL_BLOCK;
        let scale = self.table_scale(self.block_of(row, col / self.cols()), part);
        (scale, (col / SMALL_BLOCK + 1) * SMALL_BLOCK)
    }

    fn has_groups_of(&self, group: usize, _stored: usize, cols: &Range<usize>) -> bool {
        SMALL_BLOCK.is_multiple_of(group) && cols.start.is_multiple_of(group)
    }
}

/// Returns `2^(exponent - 128)`. The largest exponent stands for a NaN.
fn half_power_of_two(exponent: u8) -> f32 {
    match exponent {
        // These two are subnormal in single precision.
        0 | 1 => f32::from_bits(1 << (21 + exponent)),
        255 => f32::NAN,
        exponent => f32::from_bits((u32::from(exponent) - 1) << 23),
    }
}

/// Writes the codes in the lower halves of 16 bytes, then those in the upper halves.
fn nibbles(bytes: &[u8], codes: &mut [u8; SMALL_BLOCK]) {
    let (low, high) = codes.split_at_mut(SMALL_BLOCK / 2);
    for ((byte, low), high) in bytes.iter().zip(low).zip(high) {
        (*low, *high) = (byte & 15, byte >> 4);
    }
}

/// Writes codes of five bits: a word has the fifth bit of each, and 16 bytes have the others.
fn five_bits(bytes: &[u8], codes: &mut [u8; SMALL_BLOCK]) {
    let upper = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    nibbles(&bytes[4..], codes);
    codes.iter_mut().enumerate().for_each(|(index, code)| *code |= ((upper >> index & 1) << 4) as u8);
}

/// Decodes a block of a type that devices keep.
fn decode_known(format: KFormat, block: &[u8], out: &mut [f32]) {
    let block = format.from_file(block);
    out.iter_mut().enumerate().for_each(|(col, out)| *out = format.value(&block, col));
}

/// Decodes scales and minima `[16]`, codes `[64]`, the factors of scales and of minima. Each 128
/// columns share 32 bytes of codes, and 32 successive columns the same bits of them.
fn decode_q2_k(block: &[u8], out: &mut [f32]) {
    let (scale, minimum) = (half_at(block, 80), half_at(block, 82));
    for (col, out) in out.iter_mut().enumerate() {
        let bits = block[col / SIXTEENTH];
        let code = two_bits(&block[16..80], col);
        *out = scale * f32::from(bits & 15) * f32::from(code) - minimum * f32::from(bits >> 4);
    }
}

/// Decodes third bits `[32]`, codes `[64]` as those of `Q2_K`, scales `[12]`, and their factor.
fn decode_q3_k(block: &[u8], out: &mut [f32]) {
    let factor = half_at(block, 108);
    for (col, out) in out.iter_mut().enumerate() {
        *out = factor * f32::from(q3_k_scale(block, col / SIXTEENTH)) * f32::from(q3_k_code(block, col));
    }
}

/// Returns a scale of `Q3_K`, from -32 to 31.
pub(crate) fn q3_k_scale(block: &[u8], sub_block: usize) -> i8 {
    let scales = &block[96..108];
    let low = scales[sub_block % 8] >> (4 * (sub_block / 8)) & 15;
    let high = scales[8 + sub_block % 4] >> (2 * (sub_block / 4)) & 3;
    (low | high << 4).cast_signed() - 32
}

/// Returns a code of `Q3_K`, from -4 to 3.
pub(crate) fn q3_k_code(block: &[u8], col: usize) -> i8 {
    let upper = block[col % EIGHTH] >> (col / EIGHTH) & 1;
    (two_bits(&block[32..96], col) | upper << 2).cast_signed() - 4
}

fn two_bits(codes: &[u8], col: usize) -> u8 {
    let (half, at) = (col / 128, col % 128);
    codes[32 * half + at % 32] >> (2 * (at / 32)) & 3
}

/// Decodes factors of scales and minima, scales and minima `[12]` as those of `Q4_K`, fifth bits
/// `[32]`, and the other bits `[128]` as those of `Q4_K`.
fn decode_q5_k(block: &[u8], out: &mut [f32]) {
    // The same bytes without the fifth bits are a block of Q4_K.
    let mut others = [0; KFormat::Q4K.file_bytes()];
    others[..16].copy_from_slice(&block[..16]);
    others[16..].copy_from_slice(&block[48..]);
    let mut known = KFormat::Q4K.from_file(&others);
    for (col, code) in known.codes.iter_mut().enumerate() {
        *code |= (block[16 + col % EIGHTH] >> (col / EIGHTH) & 1) << 4;
    }
    out.iter_mut().enumerate().for_each(|(col, out)| *out = KFormat::Q4K.value(&known, col));
}
