//! The numbers of a super-block, and arithmetic that the formats share.

use half::f16;

/// Columns of a super-block.
pub const SUPER_BLOCK: usize = 256;

/// The numbers of a super-block.
#[derive(Debug, Clone, PartialEq)]
pub struct SuperBlock {
    /// The factor of the scales, a number of type f16.
    pub scale: f32,
    /// The factor of the minima, a number of type f16; 0 without minima.
    pub min: f32,
    /// The scales of the sub-blocks.
    pub scales: [i8; 16],
    /// The minima of the sub-blocks; zeros without minima.
    pub mins: [u8; 8],
    /// One code per column.
    pub codes: [u8; SUPER_BLOCK],
}

impl SuperBlock {
    /// A super-block of zeros.
    pub(super) const ZERO: SuperBlock =
        SuperBlock { scale: 0.0, min: 0.0, scales: [0; 16], mins: [0; 8], codes: [0; SUPER_BLOCK] };
}

pub(super) fn put_half(bytes: &mut [u8], at: usize, x: f32) {
    bytes[at..at + 2].copy_from_slice(&f16::from_f32(x).to_le_bytes());
}

/// Weights by columns of the sub-blocks: `[columns of a sub-block][sub-blocks]`. Loops over
/// sub-blocks are inner loops without dependencies, which compilers vectorize.
pub(super) type ByColumn<const LEN: usize, const SUBS: usize> = [[f32; SUBS]; LEN];

#[inline(always)]
pub(super) fn by_column<const LEN: usize, const SUBS: usize>(
    weights: &[f32; SUPER_BLOCK],
) -> ByColumn<LEN, SUBS> {
    let mut columns = [[0.0; SUBS]; LEN];
    for (sub_block, weights) in weights.as_chunks::<LEN>().0.iter().enumerate() {
        for (column, weight) in columns.iter_mut().zip(weights) {
            column[sub_block] = *weight;
        }
    }
    columns
}

/// Returns `a / b`, or 0 if there is no such number.
#[inline(always)]
pub(super) fn quotient(a: f32, b: f32) -> f32 {
    let quotient = a / b;
    if quotient.is_finite() { quotient } else { 0.0 }
}

/// Returns the nearest integer of a magnitude below 2^22; ties go to the even one. Lower bits do
/// not fit the mantissa of the sum.
#[inline(always)]
pub(super) fn nearest(x: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0; // 1.5 * 2^23
    (x + SHIFT) - SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_sub_blocks_are_transposed() {
        let weights = std::array::from_fn(|col| col as f32);
        let columns: ByColumn<16, 16> = by_column(&weights);
        assert_eq!((columns[0][1], columns[3][2], columns[15][15]), (16.0, 35.0, 255.0));
    }
}
