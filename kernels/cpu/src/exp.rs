//! The exponential function.

use super::simd::Simd;

/// Returns `e^x`, with a relative error below 2.5e-7 (two units in the last place) for x in
/// -87.3..=88.3. Smaller x yield 0, larger ones `e^88.3`.
///
/// `x = n ln 2 + r` with integral n and `|r| <= ln 2 / 2`. `e^r` is computed by its Taylor
/// polynomial of degree 7, whose own error is below 6e-9.
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
pub(super) unsafe fn exp<S: Simd>(x: S::V) -> S::V {
    /// Adding and subtracting this number rounds to an integer.
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23
    const LEAST: f32 = -87.3;
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let clamped = S::min(S::max(x, S::splat(LEAST)), S::splat(88.3));
        let round = S::splat(ROUND);
        let n = S::sub(S::fma(clamped, S::splat(std::f32::consts::LOG2_E), round), round);
        // ln 2 is split in two. The first part has so few bits that its product with n is exact.
        let r = S::fma(n, S::splat(-0.693_359_4), clamped);
        let r = S::fma(n, S::splat(2.121_944_4e-4), r);
        let mut p = S::splat(1.0 / 5040.0);
        for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
            p = S::fma(p, r, S::splat(c));
        }
        S::keep_at_least(x, S::splat(LEAST), S::scale(p, n))
    }
}

#[cfg(test)]
mod tests {
    use super::super::simd::{Isa, Kernel, Target};
    use super::*;

    struct ExpAll<'a>(&'a mut [f32]);

    impl Kernel for ExpAll<'_> {
        type Output = ();
        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            for chunk in self.0.chunks_mut(S::LANES) {
                // SAFETY: a chunk has at most LANES numbers.
                unsafe {
                    if chunk.len() == S::LANES {
                        S::store(chunk.as_mut_ptr(), exp::<S>(S::load(chunk.as_ptr())));
                    } else {
                        let x = S::load_first(chunk.as_ptr(), chunk.len());
                        S::store_first(chunk.as_mut_ptr(), exp::<S>(x), chunk.len());
                    }
                }
            }
        }
    }

    #[test]
    fn accuracy_of_every_isa() {
        for isa in Isa::available() {
            let target = Target::new(Some(isa)).unwrap();
            let xs: Vec<f32> = (-872_999..=882_999).map(|i| i as f32 * 1e-4).collect();
            let mut ys = xs.clone();
            target.dispatch(ExpAll(&mut ys));
            let worst = xs.iter().zip(&ys).fold(0f64, |worst, (x, y)| {
                let exact = f64::from(*x).exp();
                worst.max((f64::from(*y) - exact).abs() / exact)
            });
            assert!(worst < 2.5e-7, "{}: {worst}", isa.name());

            let mut edges = [0.0, -0.0, f32::NEG_INFINITY, -88.0, -1e30, 100.0];
            target.dispatch(ExpAll(&mut edges));
            assert_eq!(edges[..5], [1.0, 1.0, 0.0, 0.0, 0.0], "{}", isa.name());
            assert!(edges[5] > 2e38 && edges[5].is_finite());
        }
    }
}
