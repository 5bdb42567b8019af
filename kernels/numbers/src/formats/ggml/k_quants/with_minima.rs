//! `Q4_K` and `Q5_K`: the bytes of their blocks, and the search for scales and minima.
//!
//! As in llama.cpp (`quantize_row_q4_K_ref`, `quantize_row_q5_K_ref`), each sub-block is quantized
//! with several step sizes. For the codes of each, the best scale and minimum follow from weighted
//! least squares, and the step size with the smallest error is taken. Large weights count more than
//! small ones. Here, the error follows from the sums of the least squares, relative to the smallest
//! weight, so that one pass over the weights per step size is enough, and all sub-blocks are
//! searched together.

#![allow(clippy::needless_range_loop, reason = "loops over sub-blocks read better with indices")]

use half::f16;

use super::super::words::half_at;
use super::super_block::{ByColumn, SUPER_BLOCK, SuperBlock, by_column, nearest, put_half, quotient};

/// Sub-blocks, and columns of a sub-block.
const SUBS: usize = 8;
const LEN: usize = 32;
/// The largest scale and minimum.
const MOST_SCALE: f32 = 63.0;

/// The codes of a format, and the step sizes that are tried for it.
struct Codes {
    /// The largest code.
    most: f32,
    /// The first number of steps into which the range of a sub-block is divided, and how many
    /// numbers are tried, each larger than the one before by 0.1.
    first: f32,
    tries: usize,
}

const FOUR_BITS: Codes = Codes { most: 15.0, first: 14.0, tries: 21 };
const FIVE_BITS: Codes = Codes { most: 31.0, first: 30.5, tries: 16 };

/// Columns whose codes share bytes: a lower and an upper half of 32.
const RUN: usize = 64;

/// Bytes of a block of `Q4_K` and of one of `Q5_K` in a file.
pub(super) const Q4_BYTES: usize = 144;
pub(super) const Q5_BYTES: usize = Q4_BYTES + SUPER_BLOCK / 8;
/// Bytes before the codes: factors, scales and minima.
const HEADER: usize = 16;

/// Reads factors of scales and minima, scales and minima `[12]`, codes `[128]`.
pub(super) fn q4_from_file(bytes: &[u8]) -> SuperBlock {
    let mut block = header_from_file(bytes);
    put_low_bits(&bytes[HEADER..], &mut block);
    block
}

/// Reads factors of scales and minima, scales and minima `[12]`, the fifth bits `[32]` of codes,
/// and the others `[128]`.
pub(super) fn q5_from_file(bytes: &[u8]) -> SuperBlock {
    let mut block = header_from_file(bytes);
    put_low_bits(&bytes[HEADER + LEN..], &mut block);
    for (col, code) in block.codes.iter_mut().enumerate() {
        *code |= (bytes[HEADER + col % LEN] >> (col / LEN) & 1) << 4;
    }
    block
}

/// Sets the codes to their lower four bits.
fn put_low_bits(bytes: &[u8], block: &mut SuperBlock) {
    for (col, code) in block.codes.iter_mut().enumerate() {
        let (byte, shift) = place(col);
        *code = bytes[byte] >> shift & 15;
    }
}

fn header_from_file(bytes: &[u8]) -> SuperBlock {
    let mut block = SuperBlock { scale: half_at(bytes, 0), min: half_at(bytes, 2), ..SuperBlock::ZERO };
    for s in 0..SUBS {
        (block.scales[s], block.mins[s]) = six_bit_pair(&bytes[4..16], s);
    }
    block
}

/// Writes the bytes that [`q4_from_file`] reads to zeros.
pub(super) fn q4_to_file(block: &SuperBlock, bytes: &mut [u8]) {
    header_to_file(block, bytes);
    low_bits_to_file(block, &mut bytes[HEADER..]);
}

/// Writes the bytes that [`q5_from_file`] reads to zeros.
pub(super) fn q5_to_file(block: &SuperBlock, bytes: &mut [u8]) {
    header_to_file(block, bytes);
    for (col, code) in block.codes.iter().enumerate() {
        bytes[HEADER + col % LEN] |= (code >> 4) << (col / LEN);
    }
    low_bits_to_file(block, &mut bytes[HEADER + LEN..]);
}

fn low_bits_to_file(block: &SuperBlock, bytes: &mut [u8]) {
    for (col, code) in block.codes.iter().enumerate() {
        let (byte, shift) = place(col);
        bytes[byte] |= (code & 15) << shift;
    }
}

fn header_to_file(block: &SuperBlock, bytes: &mut [u8]) {
    put_half(bytes, 0, block.scale);
    put_half(bytes, 2, block.min);
    for s in 0..SUBS {
        let (scale, min) = (block.scales[s].cast_unsigned(), block.mins[s]);
        put_six_bit_pair(&mut bytes[4..16], s, scale, min);
    }
}

/// Returns scale and minimum of sub-block `s`. Those of the first four have bytes of
/// their own, whose two upper bits belong to the last four.
fn six_bit_pair(bytes: &[u8], s: usize) -> (i8, u8) {
    let (scale, min) = if s < 4 {
        (bytes[s] & 63, bytes[s + 4] & 63)
    } else {
        (bytes[s + 4] & 15 | bytes[s - 4] >> 6 << 4, bytes[s + 4] >> 4 | bytes[s] >> 6 << 4)
    };
    (scale.cast_signed(), min)
}

/// Sets the bits that [`six_bit_pair`] reads, which are zeros.
fn put_six_bit_pair(bytes: &mut [u8], s: usize, scale: u8, min: u8) {
    if s < 4 {
        bytes[s] |= scale;
        bytes[s + 4] |= min;
    } else {
        bytes[s + 4] |= scale & 15 | (min & 15) << 4;
        bytes[s - 4] |= scale >> 4 << 6;
        bytes[s] |= min >> 4 << 6;
    }
}

/// Returns the byte and the shift of the lower four bits of a code.
const fn place(col: usize) -> (usize, usize) {
    let (run, at) = (col / RUN, col % RUN);
    (run * RUN / 2 + at % 32, at / 32 * 4)
}

#[inline(always)]
pub(super) fn quantize_to_q4(weights: &[f32; SUPER_BLOCK]) -> SuperBlock {
    quantize(weights, &FOUR_BITS)
}

#[inline(always)]
pub(super) fn quantize_to_q5(weights: &[f32; SUPER_BLOCK]) -> SuperBlock {
    quantize(weights, &FIVE_BITS)
}

#[inline(always)]
fn quantize(weights: &[f32; SUPER_BLOCK], codes: &Codes) -> SuperBlock {
    let x: ByColumn<LEN, SUBS> = by_column(weights);
    let (scales, mins) = search(&x, codes);
    let mut block = SuperBlock::ZERO;
    let largest = |all: &[f32; SUBS]| all.iter().fold(0f32, |most, x| most.max(*x));
    block.scale = f16::from_f32(largest(&scales) / MOST_SCALE).to_f32();
    block.min = f16::from_f32(largest(&mins) / MOST_SCALE).to_f32();
    let (mut inverse, mut offset) = ([0.0; SUBS], [0.0; SUBS]);
    for s in 0..SUBS {
        let scale = nearest(quotient(scales[s], block.scale)).clamp(0.0, MOST_SCALE);
        let min = nearest(quotient(mins[s], block.min)).clamp(0.0, MOST_SCALE);
        (block.scales[s], block.mins[s]) = (scale as i8, min as u8);
        (inverse[s], offset[s]) = (quotient(1.0, block.scale * scale), block.min * min);
    }
    for (col, code) in block.codes.iter_mut().enumerate() {
        let s = col / LEN;
        *code = nearest((weights[col] + offset[s]) * inverse[s]).clamp(0.0, codes.most) as i32 as u8;
    }
    block
}

/// Returns the best scale and the best minimum, negated, of each sub-block.
#[inline(always)]
fn search(x: &ByColumn<LEN, SUBS>, &Codes { most, first, tries }: &Codes) -> ([f32; SUBS], [f32; SUBS]) {
    let (mut low, mut high, mut squares) = ([0f32; SUBS], [f32::MIN; SUBS], [0f32; SUBS]);
    for x in x {
        for s in 0..SUBS {
            low[s] = if x[s] < low[s] { x[s] } else { low[s] };
            high[s] = if x[s] > high[s] { x[s] } else { high[s] };
            squares[s] += x[s] * x[s];
        }
    }
    // Distances from the smallest weight, and their importance.
    let (mut y, mut importance) = ([[0f32; SUBS]; LEN], [[0f32; SUBS]; LEN]);
    let (mut total, mut total_y) = ([0f32; SUBS], [0f32; SUBS]);
    let (mut mean, mut range) = ([0f32; SUBS], [0f32; SUBS]);
    for s in 0..SUBS {
        mean[s] = (squares[s] / LEN as f32).sqrt();
        range[s] = high[s] - low[s];
    }
    for c in 0..LEN {
        for s in 0..SUBS {
            y[c][s] = x[c][s] - low[s];
            importance[c][s] = mean[s] + x[c][s].abs();
            total[s] += importance[c][s];
            total_y[s] += importance[c][s] * y[c][s];
        }
    }
    let (mut best, mut scales, mut mins) = ([f32::MIN; SUBS], [0f32; SUBS], [0f32; SUBS]);
    for attempt in 0..tries {
        let steps = first + 0.1 * attempt as f32;
        let mut inverse = [0f32; SUBS];
        for s in 0..SUBS {
            inverse[s] = quotient(steps, range[s]);
        }
        // Weighted sums of codes, their squares, and their products with the distances.
        let (mut codes, mut squares, mut products) = ([0f32; SUBS], [0f32; SUBS], [0f32; SUBS]);
        for c in 0..LEN {
            for s in 0..SUBS {
                let code = nearest(y[c][s] * inverse[s]);
                let code = if code < most { code } else { most };
                let weighted = importance[c][s] * code;
                codes[s] += weighted;
                squares[s] += weighted * code;
                products[s] += weighted * y[c][s];
            }
        }
        for s in 0..SUBS {
            let determinant = total[s] * squares[s] - codes[s] * codes[s];
            let scale = (total[s] * products[s] - total_y[s] * codes[s]) / determinant;
            let min = (squares[s] * total_y[s] - codes[s] * products[s]) / determinant;
            // A minimum above 0 cannot be stored. Then only the scale is free.
            let free = min + low[s] <= 0.0;
            let min = if free { min } else { -low[s] };
            let scale = if free { scale } else { (products[s] - min * codes[s]) / squares[s] };
            // What the fit takes away from the sum of squares of the distances.
            let gain = scale * (2.0 * products[s] - scale * squares[s] - 2.0 * min * codes[s])
                + min * (2.0 * total_y[s] - min * total[s]);
            // Not for quotients of zeros.
            if gain > best[s] {
                (best[s], scales[s], mins[s]) = (gain, scale, -(min + low[s]));
            }
        }
    }
    // A sub-block of equal weights has no range. Its minimum alone holds them; positive ones, for
    // which there is no minimum, have a range from 0.
    for s in 0..SUBS {
        if range[s] == 0.0 {
            (scales[s], mins[s]) = (0.0, -low[s]);
        }
    }
    (scales, mins)
}
