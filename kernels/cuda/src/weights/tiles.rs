//! The tiles of integers of 4 and 8 bits.
//!
//! A tile has 16 outputs and 64 columns, which feed four instructions of the tensor cores; see
//! `kernels/include/weights.cuh`.

use super::format::{DEPTH, PackedFormat};

/// Bytes that a lane loads at once.
const LANE_BYTES: usize = 16;
/// Lanes of a warp.
const LANES: usize = 32;
/// Columns of an instruction that a lane has.
const LANE_COLUMNS: usize = 4;
/// Columns of two instructions.
const CHUNK: usize = 32;

/// Packs the codes of 16 outputs, `[16, depth]`, to the tiles of `to`, `[depth / 64]` tiles.
///
/// # Panics
/// For FP8, whose numbers lie in rows.
pub(super) fn pack_tiles(format: PackedFormat, codes: &[u8], depth: usize, to: &mut [u8]) {
    let tile_bytes = LANES * LANE_BYTES * format.bits() / 4;
    for (tile, bytes) in to.chunks_exact_mut(tile_bytes).enumerate() {
        for (place, to) in bytes.chunks_exact_mut(LANE_BYTES).enumerate() {
            let (load, lane) = (place / LANES, place % LANES);
            // The upper and the lower output of a lane, at four columns of one instruction.
            let pairs = |instruction: usize| {
                let column = tile * DEPTH + instruction / 2 * CHUNK + lane % 4 * 8 + instruction % 2 * 4;
                [lane / 4, lane / 4 + 8].map(|output| {
                    let at = output * depth + column;
                    std::array::from_fn::<u8, LANE_COLUMNS, _>(|i| codes[at + i])
                })
            };
            match format {
                PackedFormat::Int4 | PackedFormat::Codes4 | PackedFormat::Q4K => {
                    for (instruction, to) in to.chunks_exact_mut(4).enumerate() {
                        to.copy_from_slice(&nibbles(pairs(instruction)).to_le_bytes());
                    }
                }
                PackedFormat::Int8 | PackedFormat::Q5K | PackedFormat::Q6K => {
                    for (half, to) in to.chunks_exact_mut(8).enumerate() {
                        let [upper, lower] = pairs(load * 2 + half);
                        to[..4].copy_from_slice(&interleaved(upper));
                        to[4..].copy_from_slice(&interleaved(lower));
                    }
                }
                PackedFormat::Fp8 => panic!("FP8 numbers lie in rows"),
            }
        }
    }
}

/// Puts a lane's codes of one instruction into a word: the pairs of columns of the upper and of the
/// lower output, whose two codes lie in different halves.
fn nibbles(outputs: [[u8; LANE_COLUMNS]; 2]) -> u32 {
    let mut bits = 0;
    for (lower, columns) in outputs.into_iter().enumerate() {
        for (i, code) in columns.into_iter().enumerate() {
            let (later, of_pair) = (i / 2, i % 2);
            bits |= u32::from(code) << (4 * (later * 2 + lower) + 16 * of_pair);
        }
    }
    bits
}

/// Orders bytes so that the two of a pair lie in different halves of the word.
fn interleaved([a, b, c, d]: [u8; LANE_COLUMNS]) -> [u8; LANE_COLUMNS] {
    [a, c, b, d]
}
