//! `Q6_K`: the bytes of its blocks, and the search for scales.
//!
//! As in llama.cpp (`quantize_row_q6_K_ref`), each sub-block is quantized with several step sizes,
//! for each of which the best scale follows from least squares, weighted by the squares of the
//! weights. The weight of largest magnitude becomes the end of the codes that has one code more.

#![allow(clippy::needless_range_loop, reason = "loops over sub-blocks read better with indices")]

use half::f16;

use super::super::words::half_at;
use super::super_block::{ByColumn, SUPER_BLOCK, SuperBlock, by_column, nearest, put_half, quotient};

/// Sub-blocks, and columns of a sub-block.
const SUBS: usize = 16;
const LEN: usize = 16;
/// The smallest and the largest code, less the offset.
const LOWEST: f32 = -32.0;
const HIGHEST: f32 = 31.0;
/// The magnitude of the largest scale.
const MOST_SCALE: f32 = 128.0;
/// Step sizes that are tried. The weight of largest magnitude is 31.1 to 32.9 steps from 0.
const TRIES: usize = 19;

/// Columns whose codes share bytes: four times 32.
const RUN: usize = 128;

/// Bytes of a block in a file.
pub(super) const BYTES: usize = 210;

/// Reads lower bits `[128]`, upper bits `[64]`, scales `[16]`, and their factor.
pub(super) fn from_file(bytes: &[u8]) -> SuperBlock {
    let mut block = SuperBlock { scale: half_at(bytes, 208), ..SuperBlock::ZERO };
    for (scale, byte) in block.scales.iter_mut().zip(&bytes[192..208]) {
        *scale = byte.cast_signed();
    }
    for (col, code) in block.codes.iter_mut().enumerate() {
        let [(low, low_shift), (high, high_shift)] = places(col);
        *code = bytes[low] >> low_shift & 15 | (bytes[high] >> high_shift & 3) << 4;
    }
    block
}

/// Writes the bytes that [`from_file`] reads to zeros.
pub(super) fn to_file(block: &SuperBlock, bytes: &mut [u8]) {
    put_half(bytes, 208, block.scale);
    for (byte, scale) in bytes[192..208].iter_mut().zip(block.scales) {
        *byte = scale.cast_unsigned();
    }
    for (col, code) in block.codes.iter().enumerate() {
        let [(low, low_shift), (high, high_shift)] = places(col);
        bytes[low] |= (code & 15) << low_shift;
        bytes[high] |= (code >> 4) << high_shift;
    }
}

/// Returns the bytes and the shifts of the four lower and the two upper bits of a code.
const fn places(col: usize) -> [(usize, usize); 2] {
    let (run, at) = (col / RUN, col % RUN);
    let low = (run * RUN / 2 + at % 64, at / 64 * 4);
    let high = (SUPER_BLOCK / 2 + run * RUN / 4 + at % 32, at / 32 * 2);
    [low, high]
}

#[inline(always)]
pub(super) fn quantize(weights: &[f32; SUPER_BLOCK]) -> SuperBlock {
    let scales = search(&by_column(weights));
    let mut block = SuperBlock::ZERO;
    let largest = scales.iter().fold(0f32, |most, x| if x.abs() > most.abs() { *x } else { most });
    block.scale = f16::from_f32(largest / -MOST_SCALE).to_f32();
    let mut inverse = [0.0; SUBS];
    for s in 0..SUBS {
        let scale = nearest(quotient(scales[s], block.scale)).clamp(-MOST_SCALE, MOST_SCALE - 1.0);
        block.scales[s] = scale as i8;
        inverse[s] = quotient(1.0, block.scale * scale);
    }
    for (col, code) in block.codes.iter_mut().enumerate() {
        let x = nearest(weights[col] * inverse[col / LEN]).clamp(LOWEST, HIGHEST);
        *code = (x - LOWEST) as i32 as u8;
    }
    block
}

/// Returns the best scale of each sub-block.
#[inline(always)]
fn search(x: &ByColumn<LEN, SUBS>) -> [f32; SUBS] {
    let mut largest = [0f32; SUBS];
    for x in x {
        for s in 0..SUBS {
            largest[s] = if x[s].abs() > largest[s].abs() { x[s] } else { largest[s] };
        }
    }
    let (mut best, mut scales) = ([0f32; SUBS], [0f32; SUBS]);
    for attempt in 0..TRIES {
        let steps = LOWEST + 0.1 * (attempt as f32 - (TRIES / 2) as f32);
        let (mut inverse, mut squares, mut products) = ([0f32; SUBS], [0f32; SUBS], [0f32; SUBS]);
        for s in 0..SUBS {
            inverse[s] = quotient(steps, largest[s]);
        }
        for x in x {
            for s in 0..SUBS {
                let code = nearest(x[s] * inverse[s]);
                let code = if code < HIGHEST { code } else { HIGHEST };
                let code = if code > LOWEST { code } else { LOWEST };
                // Relative to the largest weight, so that products of four factors are numbers of
                // type f32.
                let x = x[s] * inverse[s];
                let weighted = x * x * code;
                squares[s] += weighted * code;
                products[s] += weighted * x;
            }
        }
        for s in 0..SUBS {
            let factor = quotient(products[s], squares[s]);
            // What the fit takes away from the sum of squares, in units that all step sizes of a
            // sub-block share.
            let gain = factor * products[s] / (steps * steps * steps * steps);
            if gain > best[s] {
                (best[s], scales[s]) = (gain, factor / inverse[s]);
            }
        }
    }
    scales
}
