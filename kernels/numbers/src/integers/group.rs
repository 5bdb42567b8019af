//! The codes of one group of weights. The loops have no branches, so that compilers vectorize them.

use half::f16;

use crate::{Error, Result};

/// The scale and the offset of a group: `weight = (code - offset) * scale`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Group {
    /// The factor, a number of the type that the format stores.
    pub scale: f32,
    /// The code of the weight 0.
    pub offset: u8,
}

impl Group {
    /// Returns the weight that a code stands for.
    pub fn value(self, code: u8) -> f32 {
        f32::from(i16::from(code) - i16::from(self.offset)) * self.scale
    }
}

/// The smallest and the largest of some weights.
#[derive(Debug, Clone, Copy)]
pub(super) struct Range {
    min: f32,
    max: f32,
}

impl Range {
    #[inline(always)]
    pub(super) fn of(weights: &[f32]) -> Result<Range> {
        // A NaN or an infinity, times 0, makes this sum a NaN.
        if fold(weights, |sum, weight| sum + weight * 0.0) != 0.0 {
            return Err(Error::Unsupported("a weight with a NaN or an infinity".to_owned()));
        }
        let min = fold(weights, |min, weight| if weight < min { weight } else { min });
        let max = fold(weights, |max, weight| if weight > max { weight } else { max });
        Ok(Range { min, max })
    }

    /// Returns the largest magnitude.
    pub(super) fn largest(self) -> f32 {
        self.max.max(-self.min)
    }
}

/// Combines 0 and all weights by an operation whose order does not matter. Several independent
/// chains let compilers vectorize it.
#[inline(always)]
fn fold(weights: &[f32], combine: impl Fn(f32, f32) -> f32) -> f32 {
    let (chunks, rest) = weights.as_chunks::<8>();
    let mut chains = [0f32; 8];
    for chunk in chunks {
        for (chain, weight) in chains.iter_mut().zip(chunk) {
            *chain = combine(*chain, *weight);
        }
    }
    chains.iter().chain(rest).fold(0.0, |result, &x| combine(result, x))
}

/// Returns the nearest number of type f16; ties go to the even one.
pub(super) fn round_to_f16(x: f32) -> f32 {
    f16::from_f32(x).to_f32()
}

/// Returns `1 / scale`, or 0 if there is no such number.
#[inline(always)]
fn inverse(scale: f32) -> f32 {
    let inverse = 1.0 / scale;
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// Quantizes to 255 levels around 0. As in GGUF, the codes are computed with the scale before it is
/// rounded to its stored type, and halves are rounded away from zero.
#[inline(always)]
pub(super) fn bytes(weights: &[f32], codes: &mut [u8], largest: f32, stored: fn(f32) -> f32) -> Group {
    let scale = largest / 127.0;
    let inverse = inverse(scale);
    for (code, weight) in codes.iter_mut().zip(weights) {
        let x = weight * inverse;
        let whole = x as i32;
        let rest = x - whole as f32;
        let rounded = whole + i32::from(rest >= 0.5) - i32::from(rest <= -0.5);
        *code = (rounded + 128) as u8;
    }
    Group { scale: stored(scale), offset: 128 }
}

/// Quantizes to 16 levels of which the first one is the weight of largest magnitude, by the
/// arithmetic of GGUF. Of two weights with the largest magnitude, the first one decides.
#[inline(always)]
pub(super) fn q4_0(weights: &[f32], codes: &mut [u8], range: Range) -> Group {
    let largest = range.largest();
    let is_largest = |weight: &f32| weight.abs() == largest && largest > 0.0;
    let first = weights.iter().copied().find(is_largest).unwrap_or(0.0);
    let scale = first / -8.0;
    let inverse = inverse(scale);
    for (code, weight) in codes.iter_mut().zip(weights) {
        *code = ((weight * inverse + 8.5) as i32).clamp(0, 15) as u8;
    }
    Group { scale: round_to_f16(scale), offset: 8 }
}

/// Quantizes to 16 levels from the smallest to the largest weight, one of which is exactly 0.
#[inline(always)]
pub(super) fn int4(weights: &[f32], codes: &mut [u8], range: Range) -> Group {
    // The difference of two weights may exceed the largest f32; a sixteenth of it does not.
    let scale = round_to_f16(range.max / 15.0 - range.min / 15.0);
    let inverse = inverse(scale);
    let offset = nearest(-range.min * inverse).clamp(0.0, 15.0);
    for (code, weight) in codes.iter_mut().zip(weights) {
        *code = (nearest(weight * inverse) + offset).clamp(0.0, 15.0) as i32 as u8;
    }
    Group { scale, offset: offset as u8 }
}

/// Returns the nearest integer of a magnitude below 2^22; ties go to the even one. Lower bits do
/// not fit the mantissa of the sum.
#[inline(always)]
fn nearest(x: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0; // 1.5 * 2^23
    (x + SHIFT) - SHIFT
}
