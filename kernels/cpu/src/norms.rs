//! Normalization of single rows.

use millrace_backend::{Norm, NormKind};

use super::simd::{Extension, Kernel, Simd};

/// The independent sums of a statistic.
const CHAINS: usize = 4;

/// `out = norm(x)`.
pub(super) struct NormRow<'a> {
    pub(super) x: &'a [f32],
    pub(super) norm: &'a Norm<Vec<f32>>,
    pub(super) out: &'a mut [f32],
}

impl Kernel for NormRow<'_> {
    const USES: Extension = Extension::None;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let NormRow { x, norm, out } = self;
        let scales = Scales::new(norm, 0, x.len());
        assert_eq!(out.len(), x.len(), "features of a norm");
        // SAFETY: all slices have the same length.
        unsafe { normalize::<S>(x.as_ptr(), &scales, out.as_mut_ptr()) }
    }
}

/// `residual += branch; out = norm(residual)`.
pub(super) struct AddNorm<'a> {
    pub(super) residual: &'a mut [f32],
    pub(super) branch: &'a [f32],
    pub(super) norm: &'a Norm<Vec<f32>>,
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
        unsafe { NormRow { x: self.residual, norm: self.norm, out: self.out }.run::<S>() }
    }
}

/// `x = norm(x)` for each part of `cols` features.
pub(super) struct NormParts<'a> {
    pub(super) x: &'a mut [f32],
    pub(super) cols: usize,
    pub(super) norm: &'a Norm<Vec<f32>>,
}

impl Kernel for NormParts<'_> {
    const USES: Extension = Extension::None;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for (index, part) in self.x.chunks_exact_mut(self.cols).enumerate() {
            // SAFETY: the caller guarantees the instruction set.
            unsafe { norm_part::<S>(part, self.norm, index) };
        }
    }
}

/// `x = norm(x)` for the part with this number, which has weights of its own unless all parts share
/// them.
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
pub(super) unsafe fn norm_part<S: Simd>(x: &mut [f32], norm: &Norm<Vec<f32>>, part: usize) {
    let own = if norm.weight.len() > x.len() { part } else { 0 };
    let scales = Scales::new(norm, own * x.len(), x.len());
    // SAFETY: all slices have the same length.
    unsafe { normalize::<S>(x.as_ptr(), &scales, x.as_mut_ptr()) }
}

/// The weights of a norm for some features.
struct Scales<'a> {
    kind: NormKind,
    weight: &'a [f32],
    bias: Option<&'a [f32]>,
    eps: f32,
}

impl<'a> Scales<'a> {
    #[inline(always)]
    fn new(norm: &'a Norm<Vec<f32>>, first: usize, len: usize) -> Self {
        let of = |all: &'a Vec<f32>| &all[first..first + len];
        Scales { kind: norm.kind, weight: of(&norm.weight), bias: norm.bias.as_ref().map(of), eps: norm.eps }
    }
}

/// Writes the norm of `x` to `out`, as many features as there are scales.
///
/// # Safety
/// The machine has the instruction set. `x` and `out` are valid for as many numbers; they may be
/// the same address.
#[inline(always)]
unsafe fn normalize<S: Simd>(x: *const f32, scales: &Scales<'_>, out: *mut f32) {
    let len = scales.weight.len();
    // SAFETY: the caller guarantees valid pointers.
    unsafe {
        let features = std::slice::from_raw_parts(x, len);
        match scales.kind {
            NormKind::Rms => {
                let scale = inverse_root::<S>(sum::<S>(features, |v| S::mul(v, v), |v| v * v), scales);
                shift_and_scale::<S>(x, 0.0, scale, scales, out);
            }
            NormKind::Layer => {
                let mean = sum::<S>(features, |v| v, |v| v) / len as f32;
                let means = S::splat(mean);
                let square = |v| {
                    let d = S::sub(v, means);
                    S::mul(d, d)
                };
                let scale = inverse_root::<S>(sum::<S>(features, square, |v| (v - mean).powi(2)), scales);
                shift_and_scale::<S>(x, mean, scale, scales, out);
            }
        }
    }
}

/// Returns `1 / sqrt(mean + eps)`, where `sum` is the sum over all features.
#[inline(always)]
fn inverse_root<S: Simd>(sum: f32, scales: &Scales<'_>) -> f32 {
    1.0 / (sum / scales.weight.len() as f32 + scales.eps).sqrt()
}

/// `out = (x - mean) * scale * weight + bias`.
///
/// # Safety
/// As for [`normalize`].
#[inline(always)]
unsafe fn shift_and_scale<S: Simd>(x: *const f32, mean: f32, scale: f32, scales: &Scales<'_>, out: *mut f32) {
    let Scales { weight, bias, .. } = *scales;
    let whole = weight.len() - weight.len() % S::LANES;
    // SAFETY: the caller guarantees valid pointers.
    unsafe {
        let (means, factors) = (S::splat(mean), S::splat(scale));
        for i in (0..whole).step_by(S::LANES) {
            let y = S::mul(S::sub(S::load(x.add(i)), means), factors);
            let y = S::mul(y, S::load(weight.as_ptr().add(i)));
            let y = match bias {
                Some(bias) => S::add(y, S::load(bias.as_ptr().add(i))),
                None => y,
            };
            S::store(out.add(i), y);
        }
        for i in whole..weight.len() {
            *out.add(i) = (*x.add(i) - mean) * scale * weight[i] + bias.map_or(0.0, |bias| bias[i]);
        }
    }
}

/// Returns the sum of a function of all features. The order of summation depends on the length
/// only.
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
unsafe fn sum<S: Simd>(x: &[f32], of_vector: impl Fn(S::V) -> S::V, of_number: impl Fn(f32) -> f32) -> f32 {
    let step = CHAINS * S::LANES;
    // SAFETY: all loads end before the slice does.
    unsafe {
        let mut sums = [S::splat(0.0); CHAINS];
        let mut i = 0;
        while i + step <= x.len() {
            for (c, sum) in sums.iter_mut().enumerate() {
                *sum = S::add(*sum, of_vector(S::load(x.as_ptr().add(i + c * S::LANES))));
            }
            i += step;
        }
        while i + S::LANES <= x.len() {
            sums[0] = S::add(sums[0], of_vector(S::load(x.as_ptr().add(i))));
            i += S::LANES;
        }
        let rest: f32 = x[i..].iter().map(|&v| of_number(v)).sum();
        S::sum(S::add(S::add(sums[0], sums[1]), S::add(sums[2], sums[3]))) + rest
    }
}
