//! The block types with integers in super-blocks, whose scales are codes themselves.
//!
//! All have 256 columns, and each function writes the weights of one block to `out` `[256]`.

use super::words::half_at;
use super::{KFormat, SUPER_BLOCK};

/// Columns of a sub-block of the types with 8 or 16 sub-blocks.
const EIGHTH: usize = SUPER_BLOCK / 8;
const SIXTEENTH: usize = SUPER_BLOCK / 16;

pub(super) fn decode_q4_k(block: &[u8], out: &mut [f32]) {
    decode_known(KFormat::Q4K, block, out);
}

pub(super) fn decode_q5_k(block: &[u8], out: &mut [f32]) {
    decode_known(KFormat::Q5K, block, out);
}

pub(super) fn decode_q6_k(block: &[u8], out: &mut [f32]) {
    decode_known(KFormat::Q6K, block, out);
}

/// Decodes a block of a type that devices keep.
fn decode_known(format: KFormat, block: &[u8], out: &mut [f32]) {
    let block = format.from_file(block);
    out.iter_mut().enumerate().for_each(|(col, out)| *out = format.value(&block, col));
}

/// Decodes scales and minima `[16]`, codes `[64]`, the factors of scales and of minima. Each 128
/// columns share 32 bytes of codes, and 32 successive columns the same bits of them.
pub(super) fn decode_q2_k(block: &[u8], out: &mut [f32]) {
    let (scale, minimum) = (half_at(block, 80), half_at(block, 82));
    for (col, out) in out.iter_mut().enumerate() {
        let bits = block[col / SIXTEENTH];
        let code = two_bits(&block[16..80], col);
        *out = scale * f32::from(bits & 15) * f32::from(code) - minimum * f32::from(bits >> 4);
    }
}

/// Decodes third bits `[32]`, codes `[64]` as those of `Q2_K`, scales `[12]`, and their factor.
pub(super) fn decode_q3_k(block: &[u8], out: &mut [f32]) {
    let factor = half_at(block, 108);
    for (col, out) in out.iter_mut().enumerate() {
        *out = factor * f32::from(q3_k_scale(block, col / SIXTEENTH)) * f32::from(q3_k_code(block, col));
    }
}

/// Returns a scale of `Q3_K`, from -32 to 31.
pub(super) fn q3_k_scale(block: &[u8], sub_block: usize) -> i8 {
    let scales = &block[96..108];
    let low = scales[sub_block % 8] >> (4 * (sub_block / 8)) & 15;
    let high = scales[8 + sub_block % 4] >> (2 * (sub_block / 4)) & 3;
    (low | high << 4).cast_signed() - 32
}

/// Returns a code of `Q3_K`, from -4 to 3.
pub(super) fn q3_k_code(block: &[u8], col: usize) -> i8 {
    let upper = block[col % EIGHTH] >> (col / EIGHTH) & 1;
    (two_bits(&block[32..96], col) | upper << 2).cast_signed() - 4
}

pub(super) fn two_bits(codes: &[u8], col: usize) -> u8 {
    let (half, at) = (col / 128, col % 128);
    codes[32 * half + at % 32] >> (2 * (at / 32)) & 3
}
