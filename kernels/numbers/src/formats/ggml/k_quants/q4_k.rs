//! `Q4_K`: the bytes of its blocks, and the search for scales and minima.
//!
//! As in llama.cpp (`quantize_row_q4_K_ref`), each sub-block is quantized with several step sizes.
//! For the codes of each, the best scale and minimum follow from weighted least squares, and the
//! step size with the smallest error is taken. Large weights count more than small ones. Here, the
//! error follows from the sums of the least squares, relative to the smallest weight, so that one
//! pass over the weights per step size is enough, and all sub-blocks are searched together.

#![allow(clippy::needless_range_loop, reason = "loops over sub-blocks read better with indices")]

use half::f16;

use super::super::words::half_at;
use super::super_block::{ByColumn, SUPER_BLOCK, SuperBlock, by_column, nearest, put_half, quotient};

/// Sub-blocks, and columns of a sub-block.
const SUBS: usize = 8;
const LEN: usize = 32;
/// The largest code, and the largest scale and minimum.
const MOST: f32 = 15.0;
const MOST_SCALE: f32 = 63.0;
/// Step sizes that are tried. They divide the range of a sub-block into 14 to 16 steps.
const TRIES: usize = 21;

/// Columns whose codes share bytes: a lower and an upper half of 32.
const RUN: usize = 64;

/// Bytes of a block in a file.
pub(super) const BYTES: usize = 144;

/// Reads factors of scales and minima, scales and minima `[12]`, codes `[128]`.
pub(super) fn from_file(bytes: &[u8]) -> SuperBlock {
    let mut block = SuperBlock { scale: half_at(bytes, 0), min: half_at(bytes, 2), ..SuperBlock::ZERO };
    for s in 0..SUBS {
        (block.scales[s], block.mins[s]) = six_bit_pair(&bytes[4..16], s);
    }
    for (col, code) in block.codes.iter_mut().enumerate() {
        let (byte, shift) = place(col);
        *code = bytes[16 + byte] >> shift & 15;
    }
    block
}

/// Writes the bytes that [`from_file`] reads to zeros.
pub(super) fn to_file(block: &SuperBlock, bytes: &mut [u8]) {
    put_half(bytes, 0, block.scale);
    put_half(bytes, 2, block.min);
    for s in 0..SUBS {
        let (scale, min) = (block.scales[s].cast_unsigned(), block.mins[s]);
        put_six_bit_pair(&mut bytes[4..16], s, scale, min);
    }
    for (col, code) in block.codes.iter().enumerate() {
        let (byte, shift) = place(col);
        bytes[16 + byte] |= code << shift;
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

/// Returns the byte and the shift of a code.
const fn place(col: usize) -> (usize, usize) {
    let (run, at) = (col / RUN, col % RUN);
    (run * RUN / 2 + at % 32, at / 32 * 4)
}

#[inline(always)]
pub(super) fn quantize(weights: &[f32; SUPER_BLOCK]) -> SuperBlock {
    let x: ByColumn<LEN, SUBS> = by_column(weights);
    let (scales, mins) = search(&x);
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
        *code = nearest((weights[col] + offset[s]) * inverse[s]).clamp(0.0, MOST) as i32 as u8;
    }
    block
}

/// Returns the best scale and the best minimum, negated, of each sub-block.
#[inline(always)]
fn search(x: &ByColumn<LEN, SUBS>) -> ([f32; SUBS], [f32; SUBS]) {
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
    for attempt in 0..TRIES {
        let steps = MOST - 1.0 + 0.1 * attempt as f32;
        let mut inverse = [0f32; SUBS];
        for s in 0..SUBS {
            inverse[s] = quotient(steps, range[s]);
        }
        // Weighted sums of codes, their squares, and their products with the distances.
        let (mut codes, mut squares, mut products) = ([0f32; SUBS], [0f32; SUBS], [0f32; SUBS]);
        for c in 0..LEN {
            for s in 0..SUBS {
                let code = nearest(y[c][s] * inverse[s]);
                let code = if code < MOST { code } else { MOST };
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
