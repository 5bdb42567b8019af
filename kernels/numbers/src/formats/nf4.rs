//! NF4: codes of 4 bits into a table of quantiles of the normal distribution, with one f32 factor
//! per 64 columns (Dettmers et al., "QLoRA"). `weight = TABLE[code] * factor`.

use crate::{Error, Result};

/// Columns of a group. The last group of a row may have fewer.
pub const GROUP: usize = 64;

/// The values of the codes.
pub const TABLE: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// Quantizes the weights of a group to `codes`, one per byte, and returns the factor, the largest
/// magnitude.
///
/// # Errors
/// [`Error::Unsupported`] for a NaN or an infinity.
///
/// # Panics
/// If the lengths differ.
// Inlined, so that its loops are vectorized for the instruction set of the caller.
#[inline(always)]
pub fn quantize(weights: &[f32], codes: &mut [u8]) -> Result<f32> {
    assert_eq!(weights.len(), codes.len());
    // Magnitudes compare like their bits as integers, with a NaN as the largest.
    let largest = weights.iter().fold(0, |most, weight| most.max(weight.to_bits() & !(1 << 31)));
    let largest = f32::from_bits(largest);
    if !largest.is_finite() {
        return Err(Error::Unsupported("a weight with a NaN or an infinity".to_owned()));
    }
    let inverse = 1.0 / largest;
    let inverse = if inverse.is_finite() { inverse } else { 0.0 };
    for (code, weight) in codes.iter_mut().zip(weights) {
        let x = weight * inverse;
        // The number of middles of neighboring values below it.
        *code = (0..15).map(|i| u8::from(x > 0.5 * (TABLE[i] + TABLE[i + 1]))).sum();
    }
    Ok(largest)
}

/// Rounds rows of `cols` weights to the values of the format, in place.
///
/// # Errors
/// As [`quantize`].
pub fn round(weights: &mut [f32], cols: usize) -> Result<()> {
    for row in weights.chunks_exact_mut(cols.max(1)) {
        for weights in row.chunks_mut(GROUP) {
            let mut codes = [0; GROUP];
            let codes = &mut codes[..weights.len()];
            let factor = quantize(weights, codes)?;
            weights.iter_mut().zip(codes).for_each(|(w, code)| *w = TABLE[usize::from(*code)] * factor);
        }
    }
    Ok(())
}
