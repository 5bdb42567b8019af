//! Keys and values as signed bytes: the arithmetic that the CPU and the reference share.
//!
//! The key of each token and head has one f32 scale, and so has the value:
//! `number = code * scale` with `scale = max(|numbers|) / 127`.

/// The largest code.
const LARGEST: f32 = 127.0;
/// Lower bound of the largest magnitude, so that every scale has a finite inverse.
const SMALLEST: f32 = 1e-30;

/// Quantizes the numbers of one key or value, calls `put` with the index and the code of each, and
/// returns the scale. A NaN or an infinity makes the scale NaN.
#[inline(always)]
pub fn quantize(numbers: &[f32], mut put: impl FnMut(usize, i8)) -> f32 {
    let largest = numbers.iter().fold(SMALLEST, |largest, x| largest.max(x.abs()));
    // 0, or NaN if a number is a NaN or an infinity.
    let check: f32 = numbers.iter().map(|x| x * 0.0).sum();
    let inverse = LARGEST / largest;
    for (d, x) in numbers.iter().enumerate() {
        // The conversion saturates. Numbers that are not finite have arbitrary codes.
        put(d, (x * inverse).round_ties_even() as i8);
    }
    largest / LARGEST + check
}

/// Rounds the numbers of one key or value to those that the format can hold.
pub fn round(numbers: &[f32], to: &mut [f32]) {
    let scale = quantize(numbers, |d, code| to[d] = f32::from(code));
    to.iter_mut().for_each(|x| *x *= scale);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_reach_127_and_errors_are_half_a_step() {
        let numbers = [0.5, -2.54, 0.031, 1e-9, 0.0];
        let mut codes = [0; 5];
        let scale = quantize(&numbers, |d, code| codes[d] = code);
        assert_eq!(codes, [25, -127, 2, 0, 0]);
        assert!((scale - 0.02).abs() < 1e-8, "{scale}");
        let mut rounded = [0.0; 5];
        round(&numbers, &mut rounded);
        let close = rounded.iter().zip(numbers).all(|(a, b)| (a - b).abs() <= 0.5001 * scale);
        assert!(close, "{rounded:?}");
    }

    #[test]
    fn zeros_stay_and_numbers_that_are_not_finite_spread() {
        let mut rounded = [1.0; 3];
        round(&[0.0; 3], &mut rounded);
        assert_eq!(rounded, [0.0; 3]);
        for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            round(&[1.0, x, 0.0], &mut rounded);
            assert!(rounded.iter().all(|x| x.is_nan()), "{x}: {rounded:?}");
        }
    }
}
