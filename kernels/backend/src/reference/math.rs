//! Functions on single rows, with sums in f64.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use crate::{Activation, Gating, Norm, NormKind, Xielu};

pub(super) fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// Normalizes `x` in place. `part` is the number of the part of the norm's weights that belongs to
/// `x`, if several rows have weights of their own.
pub(super) fn normalize(x: &mut [f32], norm: &Norm<Vec<f32>>, part: usize) {
    let cols = x.len() as f64;
    let mean = match norm.kind {
        NormKind::Rms => 0.0,
        NormKind::Layer => x.iter().map(|x| f64::from(*x)).sum::<f64>() / cols,
    };
    let square: f64 = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum();
    let scale = 1.0 / (square / cols + f64::from(norm.eps)).sqrt();
    let own = part * x.len()..(part + 1) * x.len();
    for (i, (x, w)) in x.iter_mut().zip(&norm.weight[own.clone()]).enumerate() {
        let bias = norm.bias.as_ref().map_or(0.0, |bias| bias[own.start + i]);
        *x = ((f64::from(*x) - mean) * scale * f64::from(*w) + f64::from(bias)) as f32;
    }
}

pub(super) fn activate(act: Activation, x: f64) -> f64 {
    match act {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => 0.5 * x * (1.0 + libm::erf(x * FRAC_1_SQRT_2)),
        Activation::GeluTanh => {
            let inner = (2.0 / PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::Relu => x.max(0.0),
        Activation::ReluSquared => x.max(0.0).powi(2),
        Activation::Xielu(Xielu { positive, negative, linear, limit }) => {
            let curve = if x > 0.0 {
                f64::from(positive) * x * x
            } else {
                f64::from(negative) * (x.min(f64::from(limit)).exp_m1() - x)
            };
            curve + f64::from(linear) * x
        }
    }
}

/// Returns the product of a gate and a feature of up.
pub(super) fn gate(gating: Gating, gate: f32, up: f32) -> f32 {
    let (gate, up) = (f64::from(gate), f64::from(up));
    let product = match gating {
        Gating::Product(act) => activate(act, gate) * up,
        Gating::Clamped { alpha, limit } => {
            let (alpha, limit) = (f64::from(alpha), f64::from(limit));
            let gate = gate.min(limit);
            gate / (1.0 + (-alpha * gate).exp()) * (up.clamp(-limit, limit) + 1.0)
        }
    };
    product as f32
}

/// Bounds `x` by `cap`.
pub(super) fn soft_cap(x: f64, cap: f32) -> f64 {
    f64::from(cap) * (x / f64::from(cap)).tanh()
}
