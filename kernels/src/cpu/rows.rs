//! Operations on single rows: normalization and activation.

use super::exp::exp;
use super::simd::{Extension, Kernel, Simd};
use crate::backend::Activation;

/// `out = x / rms(x) * weight`.
pub(super) struct RmsNorm<'a> {
    pub(super) x: &'a [f32],
    pub(super) weight: &'a [f32],
    pub(super) eps: f32,
    pub(super) out: &'a mut [f32],
}

impl Kernel for RmsNorm<'_> {
    const USES: Extension = Extension::None;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let len = self.x.len();
        assert!(self.weight.len() == len && self.out.len() == len, "norm of {len} features");
        // SAFETY: the three slices have the length that the loops stay below.
        unsafe {
            let scale = inverse_rms::<S>(self.x, self.eps);
            normalize::<S>(self.x.as_ptr(), self.weight, scale, self.out.as_mut_ptr());
        }
    }
}

/// `residual += branch; out = residual / rms(residual) * weight`.
pub(super) struct AddNorm<'a> {
    pub(super) residual: &'a mut [f32],
    pub(super) branch: &'a [f32],
    pub(super) weight: &'a [f32],
    pub(super) eps: f32,
    pub(super) out: &'a mut [f32],
}

impl Kernel for AddNorm<'_> {
    const USES: Extension = Extension::None;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for (r, b) in self.residual.iter_mut().zip(self.branch) {
            *r += b;
        }
        // SAFETY: the caller guarantees the instruction set.
        unsafe {
            RmsNorm { x: self.residual, weight: self.weight, eps: self.eps, out: self.out }.run::<S>();
        }
    }
}

/// `x = x / rms(x) * weight`.
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
pub(super) unsafe fn norm_in_place<S: Simd>(x: &mut [f32], weight: &[f32], eps: f32) {
    assert_eq!(x.len(), weight.len(), "features of a head norm");
    // SAFETY: both slices have the length that the loops stay below.
    unsafe {
        let scale = inverse_rms::<S>(x, eps);
        normalize::<S>(x.as_ptr(), weight, scale, x.as_mut_ptr());
    }
}

/// `out = x * scale * weight` for `weight.len()` numbers.
///
/// # Safety
/// `x` and `out` are valid for as many numbers; they may be the same address.
#[inline(always)]
unsafe fn normalize<S: Simd>(x: *const f32, weight: &[f32], scale: f32, out: *mut f32) {
    let whole = weight.len() - weight.len() % S::LANES;
    // SAFETY: the caller guarantees valid pointers.
    unsafe {
        let scales = S::splat(scale);
        for i in (0..whole).step_by(S::LANES) {
            let y = S::mul(S::mul(S::load(x.add(i)), scales), S::load(weight.as_ptr().add(i)));
            S::store(out.add(i), y);
        }
        for i in whole..weight.len() {
            *out.add(i) = *x.add(i) * scale * weight[i];
        }
    }
}

/// Returns `1 / sqrt(mean(x^2) + eps)`. The order of summation depends on the length only.
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
unsafe fn inverse_rms<S: Simd>(x: &[f32], eps: f32) -> f32 {
    const CHAINS: usize = 4;
    let step = CHAINS * S::LANES;
    // SAFETY: all loads end before the slice does.
    unsafe {
        let mut sums = [S::splat(0.0); CHAINS];
        let mut i = 0;
        while i + step <= x.len() {
            for (c, sum) in sums.iter_mut().enumerate() {
                let v = S::load(x.as_ptr().add(i + c * S::LANES));
                *sum = S::fma(v, v, *sum);
            }
            i += step;
        }
        while i < x.len() {
            let rest = x.len() - i;
            let p = x.as_ptr().add(i);
            let v = if rest < S::LANES { S::load_first(p, rest) } else { S::load(p) };
            sums[0] = S::fma(v, v, sums[0]);
            i += S::LANES;
        }
        let sum = S::sum(S::add(S::add(sums[0], sums[1]), S::add(sums[2], sums[3])));
        1.0 / (sum / x.len() as f32 + eps).sqrt()
    }
}

/// `out = act(gate) * up`, where `x` holds the gate features, then the up features.
pub(super) struct Gate<'a> {
    pub(super) act: Activation,
    pub(super) x: &'a [f32],
    pub(super) out: &'a mut [f32],
}

impl Kernel for Gate<'_> {
    const USES: Extension = Extension::None;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let len = self.out.len();
        assert_eq!(self.x.len(), 2 * len, "features of a gated row");
        let (gate, up) = self.x.split_at(len);
        let whole = len - len % S::LANES;
        // SAFETY: all three slices have `len` numbers.
        unsafe {
            for i in (0..whole).step_by(S::LANES) {
                let y = activate::<S>(self.act, S::load(gate.as_ptr().add(i)));
                S::store(self.out.as_mut_ptr().add(i), S::mul(y, S::load(up.as_ptr().add(i))));
            }
            if whole < len {
                let rest = len - whole;
                let y = activate::<S>(self.act, S::load_first(gate.as_ptr().add(whole), rest));
                let y = S::mul(y, S::load_first(up.as_ptr().add(whole), rest));
                S::store_first(self.out.as_mut_ptr().add(whole), y, rest);
            }
        }
    }
}

#[inline(always)]
unsafe fn activate<S: Simd>(act: Activation, x: S::V) -> S::V {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        match act {
            Activation::Silu => {
                let one = S::splat(1.0);
                S::div(x, S::add(one, exp::<S>(S::sub(S::splat(0.0), x))))
            }
        }
    }
}
