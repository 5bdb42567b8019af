//! The passes over a whole row of logits.
//!
//! They are plain loops over independent lanes, so that compilers vectorize them. A device compiles
//! them for its own instruction set; the order of each sum is written out, so that the results have
//! the same bits on all of them.

use super::exp::exp;

/// One pass over a row. Implementations are `#[inline(always)]`, so that they are compiled for the
/// instruction set of the function that runs them.
pub trait Pass {
    /// The result of the pass.
    type Output;
    /// Runs the pass.
    fn run(self) -> Self::Output;
}

/// A way to run passes.
pub trait Passes {
    /// Runs `pass`.
    fn run<P: Pass>(&self, pass: P) -> P::Output;
}

/// Runs passes with the instruction set that the program is compiled for.
#[derive(Debug, Clone, Copy)]
pub struct Plain;

impl Passes for Plain {
    fn run<P: Pass>(&self, pass: P) -> P::Output {
        pass.run()
    }
}

/// Finds out whether logits of a model contain NaN or plus infinity. Minus infinity is valid: the
/// model rules the token out.
pub(super) struct IsBroken<'a>(pub(super) &'a [f32]);

impl Pass for IsBroken<'_> {
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        self.0.iter().fold(false, |broken, &l| broken | l.is_nan() | (l == f32::INFINITY))
    }
}

/// Finds the greatest of numbers that are not NaN; minus infinity if there are none.
pub(super) struct Greatest<'a>(pub(super) &'a [f32]);

impl Pass for Greatest<'_> {
    type Output = f32;

    #[inline(always)]
    fn run(self) -> f32 {
        /// Several vectors of the longest kind, because each comparison waits for the one before.
        const LANES: usize = 64;
        let (chunks, rest) = self.0.as_chunks::<LANES>();
        let mut greatest = [f32::NEG_INFINITY; LANES];
        for chunk in chunks {
            for (g, &x) in greatest.iter_mut().zip(chunk) {
                *g = if x > *g { x } else { *g };
            }
        }
        greatest.iter().chain(rest).fold(f32::NEG_INFINITY, |g, &x| if x > g { x } else { g })
    }
}

/// Finds the index of the greatest of numbers that are not NaN, the lowest on a tie.
pub(super) struct ArgMax<'a>(pub(super) &'a [f32]);

impl Pass for ArgMax<'_> {
    type Output = u32;

    #[inline(always)]
    fn run(self) -> u32 {
        let greatest = Greatest(self.0).run();
        let mut start = 0;
        for chunk in self.0.chunks(256) {
            // Without a branch per number, so that the search is vectorized.
            if chunk.iter().fold(false, |found, &x| found | (x == greatest)) {
                return (start + chunk.iter().position(|&x| x == greatest).unwrap_or(0)) as u32;
            }
            start += chunk.len();
        }
        0
    }
}

/// Computes `sum exp(x - max)` over `xs`, which must not exceed `max`. The sum has the bits of
/// [`sum_exp`](super::exp::sum_exp).
pub(super) struct SumExp<'a> {
    pub(super) xs: &'a [f32],
    pub(super) max: f32,
}

impl Pass for SumExp<'_> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        /// The exponentials of a block are computed before they are added, because compilers
        /// vectorize two simple loops and not one that does both.
        const BLOCK: usize = 64;
        let (blocks, rest) = self.xs.as_chunks::<BLOCK>();
        let mut sums = [0f64; 8];
        let mut powers = [0f32; BLOCK];
        for block in blocks {
            for (power, x) in powers.iter_mut().zip(block) {
                *power = exp(x - self.max);
            }
            for eight in powers.as_chunks::<8>().0 {
                for (sum, power) in sums.iter_mut().zip(eight) {
                    *sum += f64::from(*power);
                }
            }
        }
        for (i, x) in rest.iter().enumerate() {
            sums[i % 8] += f64::from(exp(x - self.max));
        }
        sums.iter().sum()
    }
}

/// Replaces the non-finite values that penalties and biases can produce: NaN becomes impossible.
/// Infinity becomes the largest number if any logit is finite, and impossible otherwise.
pub(super) struct Sanitize<'a>(pub(super) &'a mut [f32]);

impl Pass for Sanitize<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (mut finite, mut infinite) = (false, false);
        for l in self.0.iter_mut() {
            finite |= l.is_finite();
            infinite |= *l == f32::INFINITY;
            *l = if l.is_nan() { f32::NEG_INFINITY } else { *l };
        }
        if infinite {
            let largest = if finite { f32::MAX } else { f32::NEG_INFINITY };
            for l in self.0.iter_mut() {
                *l = if *l == f32::INFINITY { largest } else { *l };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::exp::sum_exp;
    use proptest::prelude::*;

    /// Logits with ties, zeros of both signs and minus infinity.
    fn logits() -> impl Strategy<Value = Vec<f32>> {
        let logit = prop_oneof![
            6 => -50f32..50.0,
            2 => (-3i8..3).prop_map(f32::from),
            1 => prop_oneof![Just(f32::NEG_INFINITY), Just(0.0), Just(-0.0), Just(f32::MIN)],
        ];
        prop::collection::vec(logit, 0..700)
    }

    proptest! {
        #[test]
        fn passes_are_as_their_definitions(xs in logits()) {
            let greatest = xs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            prop_assert_eq!(Greatest(&xs).run(), greatest);
            let first = xs.iter().position(|x| *x == greatest).unwrap_or(0);
            prop_assert_eq!(ArgMax(&xs).run(), first as u32);
            if greatest.is_finite() {
                let sum = SumExp { xs: &xs, max: greatest }.run();
                prop_assert_eq!(sum.to_bits(), sum_exp(xs.iter().copied(), greatest).to_bits());
            }
        }

        #[test]
        fn broken_and_infinite_logits_are_found(
            mut xs in logits(),
            at in any::<prop::sample::Index>(),
            odd in prop_oneof![Just(f32::NAN), Just(f32::INFINITY)],
        ) {
            prop_assert!(!IsBroken(&xs).run());
            let finite = xs.iter().any(|x| x.is_finite());
            let place = at.index(xs.len() + 1);
            xs.insert(place, odd);
            prop_assert!(IsBroken(&xs).run());
            let mut clean = xs.clone();
            Sanitize(&mut clean).run();
            for (i, (x, clean)) in xs.iter().zip(&clean).enumerate() {
                let expected = match (i == place, odd.is_nan() || !finite) {
                    (false, _) => *x,
                    (true, true) => f32::NEG_INFINITY,
                    (true, false) => f32::MAX,
                };
                prop_assert_eq!(clean.to_bits(), expected.to_bits());
            }
        }
    }
}
