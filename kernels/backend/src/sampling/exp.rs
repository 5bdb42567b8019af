//! Sums of exponentials over a vocabulary.

/// Returns `sum exp(x - max)` over `xs`, which must not exceed `max`.
///
/// The exponentials are computed in f32 and added in f64. The order of the additions depends only
/// on the positions in `xs`.
pub(super) fn sum_exp(xs: impl Iterator<Item = f32>, max: f32) -> f64 {
    const LANES: usize = 8;
    let mut sums = [0f64; LANES];
    let mut block = [f32::NEG_INFINITY; LANES];
    let mut filled = 0;
    for x in xs {
        block[filled] = x;
        filled += 1;
        if filled == LANES {
            for (s, x) in sums.iter_mut().zip(block) {
                *s += f64::from(exp(x - max));
            }
            filled = 0;
        }
    }
    for (s, x) in sums.iter_mut().zip(&block[..filled]) {
        *s += f64::from(exp(x - max));
    }
    sums.iter().sum()
}

/// `e^x` for x <= 0, without a branch so that compilers vectorize it. The relative error is below
/// 3e-7; the result is 0 below -87.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`; `e^r` is its Taylor polynomial of degree 7.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    /// Adding and subtracting this constant rounds to an integer.
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23
    let clamped = x.max(-87.0);
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    // ln 2 is split in two parts. The first has so few bits that its product with n is exact.
    let r = clamped - n * 0.693_359_4 - n * -2.121_944_4e-4;
    let mut p = 1.0 / 5040.0;
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + c;
    }
    // The low bits of `shifted` hold n; they become the exponent.
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3F80_0000));
    if x < -87.0 { 0.0 } else { p * power }
}

#[cfg(test)]
mod tests {
    use super::exp;

    #[test]
    fn exp_is_accurate() {
        let mut worst = 0f64;
        for i in 0..=870_000 {
            let x = -(i as f32) * 1e-4;
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) - exact).abs() / exact);
        }
        assert!(worst < 3e-7, "{worst}");
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(0.0), 1.0);
    }
}
