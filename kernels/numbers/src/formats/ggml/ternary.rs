//! The block types whose weights are -1, 0 or 1, times one scale.
//!
//! Each decoder writes the weights of one block to `out`: 256, or 128 of `Q1_0`.

use super::super_blocks::two_bits;
use super::words::half_at;

/// The numbers by which a byte is multiplied, modulo 256, to move a digit to its front.
const POWERS: [u8; 5] = [1, 3, 9, 27, 81];

/// Decodes 48 bytes of five digits, 4 bytes of four digits, and a scale.
///
/// A byte is a fraction in base 3: `digit` of it is the integer part of three times the fraction
/// `byte * 3^digit mod 256` of 256. A digit of 32 bytes, of the next 16 and of the last 4 makes
/// successive columns.
pub(super) fn decode_tq1_0(block: &[u8], out: &mut [f32]) {
    let scale = half_at(block, 52);
    let mut out = out.iter_mut();
    for (bytes, digits) in [(&block[..32], 5), (&block[32..48], 5), (&block[48..52], 4)] {
        for power in &POWERS[..digits] {
            for (byte, out) in bytes.iter().zip(&mut out) {
                let digit = (u16::from(byte.wrapping_mul(*power)) * 3) >> 8;
                *out = (f32::from(digit) - 1.0) * scale;
            }
        }
    }
}

/// Decodes codes `[64]` of two bits, and a scale.
pub(super) fn decode_tq2_0(block: &[u8], out: &mut [f32]) {
    let scale = half_at(block, 64);
    for (col, out) in out.iter_mut().enumerate() {
        *out = (f32::from(two_bits(&block[..64], col)) - 1.0) * scale;
    }
}

/// Decodes a scale, and a bit for the sign of each column.
pub(super) fn decode_q1_0(block: &[u8], out: &mut [f32]) {
    let scale = half_at(block, 0);
    for (col, out) in out.iter_mut().enumerate() {
        *out = if block[2 + col / 8] >> (col % 8) & 1 == 1 { scale } else { -scale };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of a block of `TQ1_0` whose weights are these digits.
    fn packed(digits: &[u8; 256]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (first, stride, count) in [(0, 32, 5), (160, 16, 5), (240, 4, 4)] {
            for at in 0..stride {
                let digit = |place: usize| u32::from(digits[first + place * stride + at]);
                // The last byte has four digits, which stand before a zero.
                let number =
                    (0..5).fold(0, |sum, place| 3 * sum + if place < count { digit(place) } else { 0 });
                bytes.push((number * 256).div_ceil(243) as u8);
            }
        }
        bytes.extend(half::f16::from_f32(0.5).to_le_bytes());
        bytes
    }

    #[test]
    fn digits_in_base_three_come_back() {
        for seed in 0..50_usize {
            let digits: [u8; 256] =
                std::array::from_fn(|col| ((col * (seed + 7) + col / 11 * seed) % 3) as u8);
            let mut found = [0.0; 256];
            decode_tq1_0(&packed(&digits), &mut found);
            assert_eq!(found, digits.map(|digit| (f32::from(digit) - 1.0) * 0.5), "seed {seed}");
        }
    }
}
