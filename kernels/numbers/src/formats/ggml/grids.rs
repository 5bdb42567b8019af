//! The block types with codebooks: a code names eight or four weights at once.
//!
//! All are super-blocks of 256 columns, and each function writes the weights of one to `out`
//! `[256]`. A codebook has two bytes for each entry; the first weight is in the lowest bits. The
//! entries are facts of the format, taken from the package `gguf` by
//! `integration-tests/oracle/make_blocks.py`.

use half::f16;

use super::words::{half_at, u16_at, u32_at};

/// Columns that one code of the types with one or two bits stands for.
const OCTET: usize = 8;
/// Columns that one code of the types with three bits stands for.
const QUARTET: usize = 4;
/// Columns that share a scale in most types.
const PART: usize = 32;

static IQ1: &[u8; 4096] = include_bytes!("grids/iq1_s");
static IQ2_XXS: &[u8; 512] = include_bytes!("grids/iq2_xxs");
static IQ2_XS: &[u8; 1024] = include_bytes!("grids/iq2_xs");
static IQ2_S: &[u8; 2048] = include_bytes!("grids/iq2_s");
static IQ3_XXS: &[u8; 512] = include_bytes!("grids/iq3_xxs");
static IQ3_S: &[u8; 1024] = include_bytes!("grids/iq3_s");

/// The magnitudes that the elements of a codebook stand for.
static MAGNITUDES_2: [f32; 4] = [8.0, 25.0, 43.0, 0.0];
static MAGNITUDES_3_XXS: [f32; 8] = [4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0];
static MAGNITUDES_3: [f32; 8] = [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0];

/// The distance of all weights of a part from whole numbers, in the types with one bit.
const SHIFT: f32 = 0.125;

/// Returns an element of 2 bits of an entry.
fn two_bits(grid: &[u8], entry: usize, element: usize) -> usize {
    usize::from(u16_at(grid, 2 * entry) >> (2 * element) & 3)
}

/// Returns an element of an entry of four elements.
fn four_bits(grid: &[u8], entry: usize, element: usize) -> usize {
    usize::from(u16_at(grid, 2 * entry) >> (4 * element) & 7)
}

/// Returns the signs of eight weights of which seven are stored: the number of minus signs is even.
fn even_signs(seven: u32) -> u8 {
    let seven = (seven & 127) as u8;
    seven | ((seven.count_ones() % 2) as u8) << 7
}

/// Returns the number with the sign in a bit.
fn signed(number: f32, signs: u8, bit: usize) -> f32 {
    if signs >> bit & 1 == 1 { -number } else { number }
}

/// Returns the half of a byte that belongs to `index`.
fn half_byte(bytes: &[u8], index: usize) -> u8 {
    bytes[index / 2] >> (4 * (index % 2)) & 15
}

fn put_octet(out: &mut [f32], grid: &[u8], entry: usize, scale: f32, signs: u8) {
    for (element, out) in out.iter_mut().enumerate() {
        *out = signed(scale * MAGNITUDES_2[two_bits(grid, entry, element)], signs, element);
    }
}

/// Decodes a scale, and for each part four codes of 8 bits, and a word with four times seven signs
/// and a scale of 4 bits.
pub(super) fn decode_iq2_xxs(block: &[u8], out: &mut [f32]) {
    for (part, out) in out.chunks_exact_mut(PART).enumerate() {
        let codes = &block[2 + 8 * part..];
        let word = u32_at(codes, 4);
        let scale = half_at(block, 0) * (0.5 + (word >> 28) as f32) * 0.25;
        for (index, out) in out.chunks_exact_mut(OCTET).enumerate() {
            put_octet(out, IQ2_XXS, codes[index].into(), scale, even_signs(word >> (7 * index)));
        }
    }
}

/// Decodes a scale, 32 words with a code of 9 bits and seven signs, and 16 scales of 4 bits.
pub(super) fn decode_iq2_xs(block: &[u8], out: &mut [f32]) {
    for (index, out) in out.chunks_exact_mut(OCTET).enumerate() {
        let word = u16_at(block, 2 + 2 * index);
        let scale = half_at(block, 0) * (0.5 + f32::from(half_byte(&block[66..], index / 2))) * 0.25;
        put_octet(out, IQ2_XS, (word & 511).into(), scale, even_signs((word >> 9).into()));
    }
}

/// Decodes a scale, 32 lower bytes of codes, 32 bytes of signs, the two upper bits of each code,
/// and 16 scales of 4 bits.
pub(super) fn decode_iq2_s(block: &[u8], out: &mut [f32]) {
    for (index, out) in out.chunks_exact_mut(OCTET).enumerate() {
        let upper = usize::from(block[66 + index / 4] >> (2 * (index % 4)) & 3);
        let scale = half_at(block, 0) * (0.5 + f32::from(half_byte(&block[74..], index / 2))) * 0.25;
        put_octet(out, IQ2_S, usize::from(block[2 + index]) | upper << 8, scale, block[34 + index]);
    }
}

/// Decodes a scale, 64 codes of 8 bits, and a word for each part as in `IQ2_XXS`.
pub(super) fn decode_iq3_xxs(block: &[u8], out: &mut [f32]) {
    for (index, out) in out.chunks_exact_mut(QUARTET).enumerate() {
        let (part, within) = (index / 8, index % 8);
        let word = u32_at(block, 66 + 4 * part);
        let scale = half_at(block, 0) * (0.5 + (word >> 28) as f32) * 0.5;
        let signs = even_signs(word >> (7 * (within / 2))) >> (QUARTET * (within % 2));
        for (element, out) in out.iter_mut().enumerate() {
            let magnitude = MAGNITUDES_3_XXS[four_bits(IQ3_XXS, block[2 + index].into(), element)];
            *out = signed(scale * magnitude, signs, element);
        }
    }
}

/// Decodes a scale, 64 lower bytes of codes, the ninth bit of each, 32 bytes of signs, and 8 scales
/// of 4 bits.
pub(super) fn decode_iq3_s(block: &[u8], out: &mut [f32]) {
    for (index, out) in out.chunks_exact_mut(QUARTET).enumerate() {
        let upper = usize::from(block[66 + index / 8] >> (index % 8) & 1);
        let entry = usize::from(block[2 + index]) | upper << 8;
        let scale = half_at(block, 0) * f32::from(1 + 2 * half_byte(&block[106..], index / 8));
        let signs = block[74 + index / 2] >> (QUARTET * (index % 2));
        for (element, out) in out.iter_mut().enumerate() {
            *out = signed(scale * MAGNITUDES_3[four_bits(IQ3_S, entry, element)], signs, element);
        }
    }
}

/// Writes eight weights that are -1, 0 or 1, all moved by the same amount.
fn put_ternary(out: &mut [f32], entry: usize, scale: f32, is_negative: bool) {
    let shift = if is_negative { -SHIFT } else { SHIFT };
    for (element, out) in out.iter_mut().enumerate() {
        *out = scale * (two_bits(IQ1, entry, element) as f32 - 1.0 + shift);
    }
}

/// Decodes a scale, 32 lower bytes of codes, and a word for each part: three upper bits of four
/// codes, a scale of 3 bits, and the sign of the shift.
pub(super) fn decode_iq1_s(block: &[u8], out: &mut [f32]) {
    for (index, out) in out.chunks_exact_mut(OCTET).enumerate() {
        let word = u16_at(block, 34 + 2 * (index / 4));
        let scale = half_at(block, 0) * f32::from(2 * (word >> 12 & 7) + 1);
        let entry = usize::from(block[2 + index]) | usize::from(word >> (3 * (index % 4)) & 7) << 8;
        put_ternary(out, entry, scale, word >> 15 == 1);
    }
}

/// Decodes 32 lower bytes of codes, 16 bytes with three upper bits and the sign of the shift of two
/// codes, and four words with four scales of 3 bits and four bits of the common scale.
pub(super) fn decode_iq1_m(block: &[u8], out: &mut [f32]) {
    let words = [0, 1, 2, 3].map(|index| u16_at(block, 48 + 2 * index));
    let bits = words.iter().rev().fold(0, |bits, word| bits << 4 | word >> 12);
    let common = f16::from_bits(bits).to_f32();
    for (index, out) in out.chunks_exact_mut(OCTET).enumerate() {
        let upper = half_byte(&block[32..], index);
        let entry = usize::from(block[index]) | usize::from(upper & 7) << 8;
        let part = index / 2;
        let scale = common * f32::from(2 * (words[part / 4] >> (3 * (part % 4)) & 7) + 1);
        put_ternary(out, entry, scale, upper & 8 != 0);
    }
}
