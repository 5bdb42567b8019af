//! FP8 with four bits of exponent, three of mantissa and no infinities (e4m3; Micikevicius et al., "FP8 Formats for Deep Learning"): one f32
//! factor per row brings the row's largest number to the largest that the format has.

use crate::{Error, Result};

/// The largest number of the format.
pub const LARGEST: f32 = 448.0;
/// Smaller maxima count as this, so that no factor is zero or has no inverse.
const SMALLEST: f32 = 1e-30;

/// Writes `values` as e4m3 to `to` and returns the factor, `max(|values|) / 448`: `to[i] * factor` is nearly `values[i]`. The arithmetic is that
/// of the kernel in `cuda/fp8.cu`.
///
/// # Errors
/// [`Error::Unsupported`] for a NaN or an infinity.
///
/// # Panics
/// If the lengths differ.
pub fn quantize(values: &[f32], to: &mut [u8]) -> Result<f32> {
    assert_eq!(values.len(), to.len());
    // As words, maxima of magnitudes are those of the numbers, and a NaN is the largest.
    let largest = values.iter().fold(0, |most, value| most.max(value.to_bits() & !SIGN));
    let largest = f32::from_bits(largest).max(SMALLEST);
    if !values.iter().fold(true, |finite, value| finite & (value.to_bits() & !SIGN < INFINITY)) {
        return Err(Error::Unsupported("a weight that holds a NaN or an infinity".to_owned()));
    }
    let inverse = LARGEST / largest;
    for (to, value) in to.iter_mut().zip(values) {
        *to = nearest(value * inverse);
    }
    Ok(largest / LARGEST)
}

const SIGN: u32 = 1 << 31;
const INFINITY: u32 = 0xff << 23;
/// The smallest number that is not subnormal, 2^-6.
const NORMAL: u32 = (127 - 6) << 23;

/// The nearest number of the format to a finite `x`, ties to even; 448 beyond it. Without branches, so that compilers do several at a time.
fn nearest(x: f32) -> u8 {
    let bits = x.to_bits();
    let magnitude = (bits & !SIGN).min(LARGEST.to_bits());
    // Below 2^-6 the step is 2^-9: adding 2^14 pushes all smaller bits off the mantissa's end.
    let small = (f32::from_bits(magnitude) + 16384.0).to_bits().wrapping_sub(16384f32.to_bits());
    let normal = ((magnitude + 0x7_ffff + (magnitude >> 20 & 1)) >> 20).wrapping_sub((127 - 7) << 3);
    let rest = if magnitude < NORMAL { small } else { normal };
    ((bits >> 24 & 0x80) | rest) as u8
}

/// What a byte of e4m3 stands for.
pub fn widen(byte: u8) -> f32 {
    let (exponent, mantissa) = (byte >> 3 & 15, f32::from(byte & 7));
    let magnitude = match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 512.0,
        (e, _) => (1.0 + mantissa / 8.0) * (f32::from(e) - 7.0).exp2(),
    };
    if byte >> 7 == 1 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// By trying all numbers of the format; of two that are as near, the even one.
    fn searched(x: f32) -> u8 {
        let distance = |byte: u8| (f64::from(widen(byte)) - f64::from(x.abs())).abs();
        let found =
            (0..0x7f).min_by(|&a, &b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1))));
        found.unwrap() | if x.is_sign_negative() { 0x80 } else { 0 }
    }

    proptest! {
        #[test]
        fn the_nearest_is_found(exponent in -12f32..10.0, mantissa in 1f32..2.0, negative: bool) {
            let x = mantissa * exponent.floor().exp2() * if negative { -1.0 } else { 1.0 };
            prop_assert_eq!(nearest(x), searched(x));
        }

        #[test]
        fn rows_reach_the_largest_number(values in prop::collection::vec(-1e4f32..1e4, 1..50)) {
            let mut to = vec![0; values.len()];
            let factor = quantize(&values, &mut to).unwrap();
            let largest = values.iter().fold(0f32, |most, value| most.max(value.abs()));
            prop_assert_eq!(factor, largest / 448.0);
            for (value, byte) in values.iter().zip(to) {
                // Half a step of three bits of mantissa, or of the smallest numbers.
                let bound = (value.abs() / 16.0).max(factor / 1024.0) * 1.0001;
                prop_assert!((widen(byte) * factor - value).abs() <= bound, "{value}: {byte:#x} times {factor}");
            }
        }
    }

    #[test]
    fn every_number_of_the_format_stays() {
        for byte in (0..=255).filter(|byte| byte & 0x7f != 0x7f) {
            assert_eq!(nearest(widen(byte)), byte);
        }
        assert_eq!((nearest(1e9), nearest(-1e9)), (0x7e, 0xfe));
    }

    #[test]
    fn zeros_stay_zeros_and_nothing_else_is_taken() {
        let mut to = [1; 2];
        assert!(quantize(&[0.0, -0.0], &mut to).unwrap() > 0.0);
        assert_eq!(to, [0, 0x80]);
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(quantize(&[1.0, bad], &mut to).unwrap_err().to_string().contains("NaN"));
        }
    }
}
