//! Conversions of small floats, and sums that are rounded once.

/// The NaN that GPUs generate in f32.
pub(crate) const NAN32: u32 = 0x7fff_ffff;

/// Widens an f16.
pub(crate) fn f16_to_f64(bits: u16) -> f64 {
    widen(bits, 5, 10)
}

/// Widens a bf16.
pub(crate) fn bf16_to_f64(bits: u16) -> f64 {
    f64::from(f32::from_bits(u32::from(bits) << 16))
}

/// Widens an e4m3, which has no infinities.
pub(crate) fn e4m3_to_f64(bits: u8) -> f64 {
    if bits & 0x7f == 0x7f {
        return f64::NAN;
    }
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f64::from(bits & 7));
    let size =
        if exponent == 0 { mantissa * 2f64.powi(-9) } else { (8.0 + mantissa) * 2f64.powi(exponent - 10) };
    if bits & 0x80 != 0 { -size } else { size }
}

fn widen(bits: u16, exponent_bits: u32, mantissa_bits: u32) -> f64 {
    let exponent = i32::from(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    let mantissa = f64::from(bits & ((1 << mantissa_bits) - 1));
    let bias = (1 << (exponent_bits - 1)) - 1;
    let unit = 2f64.powi(exponent.max(1) - bias - mantissa_bits as i32);
    let size = if exponent == (1 << exponent_bits) - 1 {
        if mantissa == 0.0 { f64::INFINITY } else { f64::NAN }
    } else if exponent == 0 {
        mantissa * unit
    } else {
        (mantissa + f64::from(1u32 << mantissa_bits)) * unit
    };
    if bits & 0x8000 != 0 { -size } else { size }
}

/// Rounds to f16, to nearest even; NaN is 0x7fff.
pub(crate) fn f16_from_f64(x: f64) -> u16 {
    narrow(x, 5, 10)
}

/// Rounds to bf16, to nearest even; NaN is 0x7fff.
pub(crate) fn bf16_from_f64(x: f64) -> u16 {
    narrow(x, 8, 7)
}

fn narrow(x: f64, exponent_bits: u32, mantissa_bits: u32) -> u16 {
    if x.is_nan() {
        return 0x7fff;
    }
    let sign = if x.is_sign_negative() { 0x8000 } else { 0 };
    let size = x.abs();
    let bias = (1 << (exponent_bits - 1)) - 1;
    let infinity = ((1u16 << exponent_bits) - 1) << mantissa_bits;
    if size.is_infinite() {
        return sign | infinity;
    }
    // The exponent of the unit in the last place; subnormals share that of the smallest normals.
    let exponent = ((size.to_bits() >> 52) as i32 - 1023).max(1 - bias);
    let unit = exponent - mantissa_bits as i32;
    // Scaling by powers of two is exact here; the sum of two of them stays in range.
    let steps = (size * 2f64.powi(-unit)).round_ties_even() as u32;
    // A carry out of the mantissa continues in the exponent.
    let whole = if steps < 1 << mantissa_bits {
        steps
    } else {
        (((exponent + bias - 1) as u32) << mantissa_bits) + steps
    };
    sign | (whole.min(u32::from(infinity)) as u16)
}

/// a · b + c, rounded to odd: a later rounding to at most 50 bits gives the exact result rounded
/// once. The product must be exact in f64.
pub(crate) fn multiply_add_odd(a: f64, b: f64, c: f64) -> f64 {
    let product = a * b;
    let sum = product + c;
    if !sum.is_finite() {
        return sum;
    }
    // The exact error of the sum (Knuth).
    let other = sum - product;
    let error = (product - (sum - other)) + (c - other);
    if error == 0.0 || sum.to_bits() & 1 == 1 {
        return sum;
    }
    if (error > 0.0) == (sum > 0.0) {
        f64::from_bits(sum.to_bits() + 1)
    } else {
        f64::from_bits(sum.to_bits() - 1)
    }
}

/// a · b + c, rounded down to f32.
pub(crate) fn fma_down(a: f32, b: f32, c: f32) -> f32 {
    let exact = multiply_add_odd(f64::from(a), f64::from(b), f64::from(c));
    let nearest = exact as f32;
    if f64::from(nearest) > exact { nearest.next_down() } else { nearest }
}

/// Replaces subnormals by zeros of the same sign.
pub(crate) fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}

/// Bits of an f32, where every NaN is that of a GPU.
pub(crate) fn bits32(x: f32) -> u64 {
    u64::from(if x.is_nan() { NAN32 } else { x.to_bits() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_small_float_survives_a_round_trip() {
        for bits in 0..=u16::MAX {
            if !f16_to_f64(bits).is_nan() {
                assert_eq!(f16_from_f64(f16_to_f64(bits)), bits);
            }
            if !bf16_to_f64(bits).is_nan() {
                assert_eq!(bf16_from_f64(bf16_to_f64(bits)), bits);
            }
        }
        assert_eq!(f16_from_f64(f64::NAN), 0x7fff);
        assert_eq!(e4m3_to_f64(0x7e), 448.0);
        assert_eq!(e4m3_to_f64(0x01), 2f64.powi(-9));
        assert!(e4m3_to_f64(0xff).is_nan());
    }

    #[test]
    fn halves_round_to_even() {
        // 1 + 2^-11 lies between two f16 and goes to the even one; a little more goes up.
        assert_eq!(f16_from_f64(1.0 + 2f64.powi(-11)), 0x3c00);
        assert_eq!(f16_from_f64(1.0 + 2f64.powi(-11) + 2f64.powi(-40)), 0x3c01);
        assert_eq!(f16_from_f64(1.0 + 3.0 * 2f64.powi(-11)), 0x3c02);
        assert_eq!(f16_from_f64(65520.0), 0x7c00);
        assert_eq!(f16_from_f64(65519.0), 0x7bff);
        assert_eq!(bf16_from_f64(1.0 + 2f64.powi(-8)), 0x3f80);
    }

    #[test]
    fn sums_are_rounded_once() {
        // The product is 1 + 2^-11 in f16 terms, and the addend decides the direction.
        let tiny = 2f64.powi(-80);
        let up = multiply_add_odd(1.0 + 2f64.powi(-11), 1.0, tiny);
        let down = multiply_add_odd(1.0 + 2f64.powi(-11), 1.0, -tiny);
        assert_eq!((f16_from_f64(up), f16_from_f64(down)), (0x3c01, 0x3c00));
        assert_eq!(fma_down(1.0, 1.0, -(2f32.powi(-60))), 1f32.next_down());
        assert_eq!(fma_down(1.0, 1.0, 2f32.powi(-60)), 1.0);
    }
}
