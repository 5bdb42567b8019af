//! Super-blocks as the bytes of GGUF files.

use half::f16;

use super::{KFormat, SUPER_BLOCK, SuperBlock};

/// Columns whose codes share bytes: a lower and an upper half of 32 in `Q4_K`, four times 32 in
/// `Q6_K`.
const Q4_RUN: usize = 64;
const Q6_RUN: usize = 128;

impl KFormat {
    /// Reads a super-block from the bytes of a GGUF file. All bytes are valid.
    ///
    /// # Panics
    /// If there are not [`KFormat::file_bytes`] bytes.
    pub fn from_file(self, bytes: &[u8]) -> SuperBlock {
        assert_eq!(bytes.len(), self.file_bytes());
        let number = |at: usize| f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32();
        let mut block = SuperBlock::ZERO;
        match self {
            KFormat::Q4K => {
                (block.scale, block.min) = (number(0), number(2));
                for s in 0..8 {
                    (block.scales[s], block.mins[s]) = six_bit_pair(&bytes[4..16], s);
                }
                for (col, code) in block.codes.iter_mut().enumerate() {
                    let (byte, shift) = q4_place(col);
                    *code = bytes[16 + byte] >> shift & 15;
                }
            }
            KFormat::Q6K => {
                block.scale = number(208);
                for (scale, byte) in block.scales.iter_mut().zip(&bytes[192..208]) {
                    *scale = byte.cast_signed();
                }
                for (col, code) in block.codes.iter_mut().enumerate() {
                    let [(low, low_shift), (high, high_shift)] = q6_places(col);
                    *code = bytes[low] >> low_shift & 15 | (bytes[high] >> high_shift & 3) << 4;
                }
            }
        }
        block
    }

    /// Returns the bytes of a super-block in a GGUF file.
    pub fn to_file(self, block: &SuperBlock) -> Vec<u8> {
        let mut bytes = vec![0; self.file_bytes()];
        let mut put = |at: usize, x: f32| bytes[at..at + 2].copy_from_slice(&f16::from_f32(x).to_le_bytes());
        match self {
            KFormat::Q4K => {
                put(0, block.scale);
                put(2, block.min);
                for s in 0..8 {
                    let (scale, min) = (block.scales[s].cast_unsigned(), block.mins[s]);
                    put_six_bit_pair(&mut bytes[4..16], s, scale, min);
                }
                for (col, code) in block.codes.iter().enumerate() {
                    let (byte, shift) = q4_place(col);
                    bytes[16 + byte] |= code << shift;
                }
            }
            KFormat::Q6K => {
                put(208, block.scale);
                for (byte, scale) in bytes[192..208].iter_mut().zip(block.scales) {
                    *byte = scale.cast_unsigned();
                }
                for (col, code) in block.codes.iter().enumerate() {
                    let [(low, low_shift), (high, high_shift)] = q6_places(col);
                    bytes[low] |= (code & 15) << low_shift;
                    bytes[high] |= (code >> 4) << high_shift;
                }
            }
        }
        bytes
    }
}

/// Returns scale and minimum of sub-block `s` of `Q4_K`. Those of the first four have bytes of
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

/// Returns the byte and the shift of a code of `Q4_K`.
const fn q4_place(col: usize) -> (usize, usize) {
    let (run, at) = (col / Q4_RUN, col % Q4_RUN);
    (run * Q4_RUN / 2 + at % 32, at / 32 * 4)
}

/// Returns the bytes and the shifts of the four lower and the two upper bits of a code of `Q6_K`.
const fn q6_places(col: usize) -> [(usize, usize); 2] {
    let (run, at) = (col / Q6_RUN, col % Q6_RUN);
    let low = (run * Q6_RUN / 2 + at % 64, at / 64 * 4);
    let high = (SUPER_BLOCK / 2 + run * Q6_RUN / 4 + at % 32, at / 32 * 2);
    [low, high]
}
