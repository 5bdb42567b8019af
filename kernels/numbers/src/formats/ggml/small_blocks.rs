//! The block types with integers of 4, 5 or 8 bits and one scale for 32 columns.
//!
//! Each decoder writes the weights of one block to `out` `[32]`.

use super::BlockType;
use super::words::{IQ4_VALUES, SMALL_BLOCK, half_at, nibbles};

pub(super) fn decode_q4_0(block: &[u8], out: &mut [f32]) {
    decode_signed(BlockType::Q4_0, block, out);
}

pub(super) fn decode_q5_0(block: &[u8], out: &mut [f32]) {
    decode_signed(BlockType::Q5_0, block, out);
}

pub(super) fn decode_q8_0(block: &[u8], out: &mut [f32]) {
    decode_signed(BlockType::Q8_0, block, out);
}

fn decode_signed(kind: BlockType, block: &[u8], out: &mut [f32]) {
    let mut codes = [0; SMALL_BLOCK];
    let scale = kind.signed_codes(block, &mut codes);
    out.iter_mut().zip(codes).for_each(|(out, code)| *out = f32::from(code) * scale);
}

pub(super) fn decode_q4_1(block: &[u8], out: &mut [f32]) {
    decode_with_minimum(|bytes, codes| nibbles(bytes, codes), block, out);
}

pub(super) fn decode_q5_1(block: &[u8], out: &mut [f32]) {
    decode_with_minimum(five_bits, block, out);
}

/// Decodes scale, minimum, and codes that `unpack` reads.
fn decode_with_minimum(unpack: fn(&[u8], &mut [u8; SMALL_BLOCK]), block: &[u8], out: &mut [f32]) {
    let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
    let mut codes = [0; SMALL_BLOCK];
    unpack(&block[4..], &mut codes);
    out.iter_mut().zip(codes).for_each(|(out, code)| *out = f32::from(code) * scale + minimum);
}

impl BlockType {
    /// Writes the integers of a block of `Q4_0`, `Q5_0`, `Q8_0` or `IQ4_NL` to `codes`, and returns
    /// its scale: `weight = code * scale`.
    pub(super) fn signed_codes(self, block: &[u8], codes: &mut [i8; SMALL_BLOCK]) -> f32 {
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
}

/// Writes codes of five bits: a word has the fifth bit of each, and 16 bytes have the others.
fn five_bits(bytes: &[u8], codes: &mut [u8; SMALL_BLOCK]) {
    let upper = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    nibbles(&bytes[4..], codes);
    codes.iter_mut().enumerate().for_each(|(index, code)| *code |= ((upper >> index & 1) << 4) as u8);
}
