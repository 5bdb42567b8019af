//! The block types whose codes of 4 bits index a table.

use std::ops::Range;

use super::words::{IQ4_VALUES, SMALL_BLOCK, half_at, nibbles};
use super::{BlockType, SUPER_BLOCK};
use crate::Result;
use crate::codes::{CodeRow, CodeType, CodedWeights};

/// Columns that share a scale of `NVFP4`.
const NVFP4_SCALE_COLS: usize = 16;

/// Twice the e2m1 numbers, which are integers.
static E2M1_VALUES: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

pub(super) fn decode_iq4_nl(block: &[u8], out: &mut [f32]) {
    decode(BlockType::IQ4_NL, block, out);
}

pub(super) fn decode_iq4_xs(block: &[u8], out: &mut [f32]) {
    decode(BlockType::IQ4_XS, block, out);
}

pub(super) fn decode_mxfp4(block: &[u8], out: &mut [f32]) {
    decode(BlockType::MXFP4, block, out);
}

pub(super) fn decode_nvfp4(block: &[u8], out: &mut [f32]) {
    decode(BlockType::NVFP4, block, out);
}

fn decode(kind: BlockType, block: &[u8], out: &mut [f32]) {
    let mut codes = [0; SUPER_BLOCK];
    let (codes, cols) = (&mut codes[..out.len()], kind.scale_cols());
    kind.table_codes(block, codes);
    for (part, (out, codes)) in out.chunks_mut(cols).zip(codes.chunks(cols)).enumerate() {
        let scale = kind.table_scale(block, part);
        for (out, code) in out.iter_mut().zip(codes) {
            *out = kind.values()[usize::from(*code)] * scale;
        }
    }
}

impl BlockType {
    /// Returns whether the codes of these blocks index a table.
    pub(crate) const fn has_table(self) -> bool {
        matches!(self, BlockType::IQ4_NL | BlockType::IQ4_XS | BlockType::MXFP4 | BlockType::NVFP4)
    }

    /// Returns the columns that share a scale in a block of a type with a table.
    const fn scale_cols(self) -> usize {
        match self {
            BlockType::NVFP4 => NVFP4_SCALE_COLS,
            _ => SMALL_BLOCK,
        }
    }

    /// Writes the codes of a block of a type with a table.
    fn table_codes(self, block: &[u8], codes: &mut [u8]) {
        let bytes = match self {
            BlockType::NVFP4 => {
                let parts = block[4..].chunks_exact(NVFP4_SCALE_COLS / 2);
                for (bytes, codes) in parts.zip(codes.chunks_exact_mut(NVFP4_SCALE_COLS)) {
                    nibbles(bytes, codes);
                }
                return;
            }
            BlockType::IQ4_XS => &block[8..],
            BlockType::MXFP4 => &block[1..],
            _ => &block[2..],
        };
        for (bytes, codes) in bytes.as_chunks::<16>().0.iter().zip(codes.chunks_exact_mut(SMALL_BLOCK)) {
            nibbles(bytes, codes);
        }
    }

    /// Returns the scale of part `part` of a block of a type with a table. A part has
    /// [`scale_cols`](Self::scale_cols) columns.
    fn table_scale(self, block: &[u8], part: usize) -> f32 {
        match self {
            BlockType::NVFP4 => half_e4m3(block[part]),
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
    fn check(&self, rows: usize, cols: usize, bytes: usize) -> Result<()> {
        BlockType::check(*self, rows, cols, bytes)
    }

    fn code_type(&self) -> CodeType {
        CodeType::FourBits
    }

    fn values(&self) -> &[f32] {
        if matches!(self, BlockType::MXFP4 | BlockType::NVFP4) { &E2M1_VALUES } else { &IQ4_VALUES }
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
        let cols = self.scale_cols();
        let part = col % self.cols() / cols;
        let scale = self.table_scale(self.block_of(row, col / self.cols()), part);
        (scale, (col / cols + 1) * cols)
    }

    fn has_groups_of(&self, group: usize, _stored: usize, cols: &Range<usize>) -> bool {
        self.scale_cols().is_multiple_of(group) && cols.start.is_multiple_of(group)
    }
}

/// Returns `2^(exponent - 128)`. The largest exponent stands for a NaN.
pub(super) fn half_power_of_two(exponent: u8) -> f32 {
    match exponent {
        // These two are subnormal in single precision.
        0 | 1 => f32::from_bits(1 << (21 + exponent)),
        255 => f32::NAN,
        exponent => f32::from_bits((u32::from(exponent) - 1) << 23),
    }
}

/// Returns half of an e4m3 number without a sign. The number whose bits are all set is 0, as in
/// llama.cpp; the highest bit is ignored otherwise.
pub(super) fn half_e4m3(bits: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(bits >> 3 & 15), f32::from(bits & 7));
    match exponent {
        _ if bits == 0x7f => 0.0,
        0 => mantissa * (-10f32).exp2(),
        _ => (1.0 + mantissa / 8.0) * f32::from_bits((exponent + 119) << 23),
    }
}
