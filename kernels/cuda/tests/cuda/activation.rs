//! Activation functions, bias, scaled sums and the soft cap.

use millrace_cuda::Elem;
use millrace_cuda::ops::activation::{
    ActivationKind, ActivationRows, BiasRows, GateClamp, KernelVersion, ScaledSum, SoftCapRows, activate,
    add_bias, gate, gate_clamped, scaled_sum, soft_cap,
};

use crate::common::*;

const KINDS: [ActivationKind; 4] =
    [ActivationKind::Silu, ActivationKind::GeluTanh, ActivationKind::Gelu, ActivationKind::Relu];
const VERSIONS: [KernelVersion; 2] = [KernelVersion::Fast, KernelVersion::Plain];

/// The error function by a series whose terms have one sign (DLMF 7.6.2).
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..300 {
        term *= 2.0 * x * x / f64::from(2 * n + 1);
        sum += term;
    }
    if x.abs() > 6.0 { x.signum() } else { sum * (-x * x).exp() * 2.0 / std::f64::consts::PI.sqrt() }
}

fn definition(kind: ActivationKind, x: f64) -> f64 {
    match kind {
        ActivationKind::Silu => x / (1.0 + (-x).exp()),
        ActivationKind::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
        ActivationKind::Gelu => 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2)),
        ActivationKind::Relu => x.max(0.0),
    }
}

fn shape(rng: &mut Rng) -> (Elem, usize, usize) {
    let cols = rng.pick(&[1, 7, 8, 64, 100, 1024, 4096, 9000, 17920]);
    (rng.pick(&ACTIVATIONS), rng.pick(&[0, 1, 2, 5]), cols)
}

/// Random values, most of them small and some large enough to saturate.
fn values(rng: &mut Rng, elem: Elem, n: usize) -> Vec<f32> {
    rng.values(elem, n).iter().enumerate().map(|(i, v)| round(elem, v * [1.0, 4.0, 90.0][i % 3])).collect()
}

#[test]
fn gates_and_activations_match_their_definitions() {
    for_seeds(40, |rng| {
        let (elem, rows, cols) = shape(rng);
        let (kind, gated, in_place) = (rng.pick(&KINDS), rng.below(2) == 1, rng.below(2) == 1);
        let width = if gated { 2 * cols } else { cols };
        let x = values(rng, elem, rows * width);
        let want: Vec<f32> = (0..rows * cols)
            .map(|i| {
                let at = i / cols * width + i % cols;
                let up = if gated { f64::from(x[at + cols]) } else { 1.0 };
                (definition(kind, f64::from(x[at])) * up) as f32
            })
            .collect();
        for version in VERSIONS {
            let (on_x, on_out) = (put(elem, &x), garbage(elem, rows * cols));
            let to = if in_place && !gated { on_x.view(elem) } else { on_out.view(elem) };
            let run = if gated { gate } else { activate };
            let operands = ActivationRows { rows, cols, x: on_x.view(elem), out: to };
            run(&DEVICE, version, kind, &operands).unwrap();
            let name = format!("{kind:?} {elem:?} {rows} x {cols}, gated: {gated}, {version:?}");
            // Large gates multiply the error of erf near zero.
            assert_close(&name, &get(to), &want, precision(elem) * 1.01 + 1e-5, 5e-5);
        }
    });
}

#[test]
fn clamped_gates_match_their_definition() {
    for_seeds(30, |rng| {
        let (elem, rows, cols) = shape(rng);
        let (alpha, limit) = (rng.pick(&[1.702f32, 0.5]), rng.pick(&[7.0f32, 1.0]));
        let x = values(rng, elem, rows * 2 * cols);
        let product = |i: usize| {
            let at = i / cols * 2 * cols + i % cols;
            let (alpha, limit) = (f64::from(alpha), f64::from(limit));
            let (gate, up) = (f64::from(x[at]).min(limit), f64::from(x[at + cols]).clamp(-limit, limit));
            (gate / (1.0 + (-alpha * gate).exp()) * (up + 1.0)) as f32
        };
        let want: Vec<f32> = (0..rows * cols).map(product).collect();
        for version in VERSIONS {
            let (on_x, on_out) = (put(elem, &x), garbage(elem, rows * cols));
            let operands = ActivationRows { rows, cols, x: on_x.view(elem), out: on_out.view(elem) };
            gate_clamped(&DEVICE, version, GateClamp { alpha, limit }, &operands).unwrap();
            let name = format!("{elem:?} {rows} x {cols}, alpha {alpha}, limit {limit}, {version:?}");
            assert_close(&name, &get(on_out.view(elem)), &want, precision(elem) * 1.01 + 1e-5, 1e-6);
        }
    });
}

#[test]
fn nan_stays_nan_in_clamped_gates() {
    for version in VERSIONS {
        for place in [0, 9] {
            let mut x = [1.0; 16];
            x[place] = f32::NAN;
            let (on_x, on_out) = (put(Elem::F32, &x), garbage(Elem::F32, 8));
            let operands =
                ActivationRows { rows: 1, cols: 8, x: on_x.view(Elem::F32), out: on_out.view(Elem::F32) };
            gate_clamped(&DEVICE, version, GateClamp { alpha: 1.0, limit: 7.0 }, &operands).unwrap();
            let is_nan: Vec<bool> = get(on_out.view(Elem::F32)).iter().map(|v| v.is_nan()).collect();
            let want: Vec<bool> = (0..8).map(|at| at == place % 8).collect();
            assert_eq!(is_nan, want, "{version:?}");
        }
    }
}

#[test]
fn nan_stays_nan() {
    for kind in KINDS {
        for version in VERSIONS {
            let x = put(Elem::BF16, &[f32::NAN; 8]);
            let x = x.view(Elem::BF16);
            activate(&DEVICE, version, kind, &ActivationRows { rows: 1, cols: 8, x, out: x }).unwrap();
            assert!(get(x).iter().all(|v| v.is_nan()), "{kind:?}");
        }
    }
}

#[test]
fn bias_and_soft_cap_match_their_definitions() {
    for_seeds(30, |rng| {
        let (elem, rows, cols) = shape(rng);
        let x = values(rng, elem, rows * cols);
        let bias = rng.values(Elem::F32, cols);
        let cap = rng.pick(&[30.0f32, 50.0]);
        let on_bias = put(Elem::F32, &bias);
        for version in VERSIONS {
            let on_x = put(elem, &x);
            let operands = BiasRows { rows, cols, x: on_x.view(elem), bias: on_bias.view(Elem::F32) };
            add_bias(&DEVICE, version, &operands).unwrap();
            let want: Vec<f32> = x.iter().enumerate().map(|(i, v)| v + bias[i % cols]).collect();
            let name = format!("{elem:?} {rows} x {cols} {version:?}");
            assert_close(&name, &get(on_x.view(elem)), &want, precision(elem) * 1.01, 1e-7);

            let on_x = put(elem, &x);
            soft_cap(&DEVICE, version, &SoftCapRows { rows, cols, x: on_x.view(elem), cap }).unwrap();
            let c = f64::from(cap);
            let want: Vec<f32> = x.iter().map(|v| (c * (f64::from(*v) / c).tanh()) as f32).collect();
            assert_close(&name, &get(on_x.view(elem)), &want, precision(elem) * 1.01 + 1e-6, 1e-7);
        }
    });
}

#[test]
fn scaled_sums_match_their_definition() {
    for_seeds(30, |rng| {
        let (elem, rows, cols) = shape(rng);
        let (x, y) = (values(rng, elem, rows * cols), values(rng, elem, rows * cols));
        let (a, b) = (rng.pick(&[1.0, 7.5]), rng.pick(&[1.0, 0.25]));
        let (with_y, in_place) = (rng.below(3) > 0, rng.below(2) == 1);
        let want: Vec<f32> = x
            .iter()
            .zip(&y)
            .map(|(x, y)| {
                f64::from(*x) * f64::from(a) + if with_y { f64::from(*y) * f64::from(b) } else { 0.0 }
            })
            .map(|sum| sum as f32)
            .collect();
        for version in VERSIONS {
            let (on_x, on_y, on_out) = (put(elem, &x), put(elem, &y), garbage(elem, rows * cols));
            let out = if in_place { on_x.view(elem) } else { on_out.view(elem) };
            let y = with_y.then(|| (b, on_y.view(elem)));
            let sum = ScaledSum { rows, cols, x: (a, on_x.view(elem)), y, out };
            scaled_sum(&DEVICE, version, &sum).unwrap();
            let name = format!("{elem:?} {rows} x {cols} {version:?}");
            // The products are rounded to f32.
            assert_close(&name, &get(out), &want, precision(elem) * 1.01 + 2e-7, 2e-5);
        }
    });
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let memory = garbage(Elem::F32, 16);
    let x = memory.view(Elem::F32);
    let text = |result: millrace_backend::Result<()>| result.unwrap_err().to_string();
    let (fast, silu) = (KernelVersion::Fast, ActivationKind::Silu);
    let operands = |rows| ActivationRows { rows, cols: 8, x, out: x };
    assert!(text(gate(&DEVICE, fast, silu, &operands(1))).contains("cannot replace"));
    assert!(text(activate(&DEVICE, fast, silu, &operands(3))).contains("x has 16 elements, not 24"));
    let clamped = |limit, out| {
        let operands = ActivationRows { rows: 1, cols: 4, x, out };
        text(gate_clamped(&DEVICE, fast, GateClamp { alpha: 1.0, limit }, &operands))
    };
    assert!(clamped(1.0, x).contains("cannot replace"));
    let other = garbage(Elem::F32, 4);
    assert!(clamped(0.0, other.view(Elem::F32)).contains("not positive"));
    let capped = SoftCapRows { rows: 1, cols: 8, x, cap: 0.0 };
    assert!(text(soft_cap(&DEVICE, fast, &capped)).contains("not positive"));
    let biased = BiasRows { rows: 1, cols: 32, x, bias: x };
    assert!(text(add_bias(&DEVICE, fast, &biased)).contains("bias has 16 elements, not 32"));
}
