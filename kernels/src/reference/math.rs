//! Functions on single rows, with sums in f64.

use crate::backend::{Activation, Norm};

pub(super) fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// Normalizes `x` in place (Zhang and Sennrich, "Root Mean Square Layer Normalization").
pub(super) fn rms_norm(x: &mut [f32], norm: &Norm<Vec<f32>>) {
    let scale = 1.0 / (dot(x, x) / x.len() as f64 + f64::from(norm.eps)).sqrt();
    for (x, w) in x.iter_mut().zip(&norm.weight) {
        *x = (f64::from(*x) * scale * f64::from(*w)) as f32;
    }
}

pub(super) fn activate(act: Activation, x: f64) -> f64 {
    match act {
        Activation::Silu => x / (1.0 + (-x).exp()),
    }
}
