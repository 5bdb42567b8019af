//! Tests of norms, gates, gathering and copying of rows.

use millrace_backend::reference::Reference;
use millrace_backend::{Activation, Backend, Gating, Norm, NormKind, RowParts, Xielu};
use millrace_numbers::DType;
use proptest::prelude::{prop_assert, proptest};

use crate::common::*;

pub(crate) fn norms<B: Backend>(
    device: &B,
    kind: NormKind,
    x: &[f32],
    branch: &[f32],
    weight: &[f32],
) -> [Vec<f32>; 3] {
    let (n, cols) = (x.len() / weight.len(), weight.len());
    let bias = (kind == NormKind::Layer && cols.is_multiple_of(2)).then(|| vector(device, weight));
    let norm = Norm { kind, weight: vector(device, weight), bias, eps: 1e-5 };
    let (mut residual, branch) = (upload(device, x, cols), upload(device, branch, cols));
    let mut out = device.buf(n, cols).unwrap();
    device.norm(n, &residual, &norm, &mut out).unwrap();
    let plain = device.read(&out, n).unwrap();
    device.add_norm(n, &mut residual, &branch, &norm, &mut out).unwrap();
    [plain, device.read(&residual, n).unwrap(), device.read(&out, n).unwrap()]
}

/// Normalizes `parts` of rows of `cols` features. The weights are those of one part, or of all.
pub(crate) fn norm_parts<B: Backend>(
    device: &B,
    kind: NormKind,
    x: &[f32],
    cols: usize,
    parts: RowParts,
    weight: &[f32],
) -> Vec<f32> {
    let n = x.len() / cols;
    let mut x = upload(device, x, cols);
    let norm = Norm { kind, weight: vector(device, weight), bias: None, eps: 1e-3 };
    device.norm_parts(n, &mut x, parts, &norm).unwrap();
    device.read(&x, n).unwrap()
}

/// The activation, the sum with a second buffer, a scaling, and the soft cap of `x`.
pub(crate) fn elementwise<B: Backend>(
    device: &B,
    act: Activation,
    x: &[f32],
    y: &[f32],
    cols: usize,
) -> [Vec<f32>; 4] {
    let n = x.len() / cols;
    let of = |change: &dyn Fn(&mut B::Buf)| {
        let mut buf = upload(device, x, cols);
        change(&mut buf);
        device.read(&buf, n).unwrap()
    };
    let y = upload(device, y, cols);
    [
        of(&|x| device.activate(n, act, x).unwrap()),
        of(&|x| device.add(n, &y, x).unwrap()),
        of(&|x| device.scale(n, 0.3, x).unwrap()),
        of(&|x| device.soft_cap(n, 5.0, x).unwrap()),
    ]
}

/// The numbers of `x` within a bound.
pub(crate) fn clamp<B: Backend>(device: &B, bound: f32, x: &[f32], cols: usize) -> Vec<f32> {
    let n = x.len() / cols;
    let mut buf = upload(device, x, cols);
    device.clamp(n, bound, &mut buf).unwrap();
    device.read(&buf, n).unwrap()
}

/// The activation functions that all devices compute.
pub(crate) const ACTIVATIONS: [Activation; 4] =
    [Activation::Silu, Activation::Gelu, Activation::GeluTanh, Activation::Relu];

/// All gates.
pub(crate) const GATINGS: [Gating; 6] = [
    Gating::Product(Activation::Silu),
    Gating::Product(Activation::Gelu),
    Gating::Product(Activation::GeluTanh),
    Gating::Product(Activation::Relu),
    Gating::Clamped { alpha: 1.702, limit: 7.0 },
    Gating::Clamped { alpha: 0.5, limit: 0.7 },
];

pub(crate) fn gate<B: Backend>(device: &B, gating: Gating, x: &[f32], cols: usize) -> Vec<f32> {
    let n = x.len() / (2 * cols);
    let x = upload(device, x, 2 * cols);
    let mut out = device.buf(n, cols).unwrap();
    device.gate(n, gating, &x, &mut out).unwrap();
    device.read(&out, n).unwrap()
}

pub(crate) fn gather<B: Backend>(device: &B, x: &[f32], cols: usize, outputs: &[u32]) -> Vec<f32> {
    let n = x.len() / cols;
    let tokens = vec![0; n];
    let mut queue = queue(device, n);
    let step = opened(device, &mut queue, &tokens, outputs);
    let x = upload(device, x, cols);
    let mut out = device.buf(n, cols).unwrap();
    device.gather(&step, &x, &mut out).unwrap();
    device.read(&out, outputs.len()).unwrap()
}

pub(crate) fn copy<B: Backend>(
    device: &B,
    x: &[f32],
    cols: usize,
    from: usize,
    n: usize,
    to: usize,
) -> Vec<f32> {
    let mut out = upload(device, &vec![7.0; (to + n + 1) * cols], cols);
    device.copy_rows(&upload(device, x, cols), from, n, &mut out, to).unwrap();
    device.read(&out, to + n + 1).unwrap()
}

/// The expected result of [`copy`]: nothing but the copied rows changes.
pub(crate) fn copied(x: &[f32], cols: usize, from: usize, n: usize, to: usize) -> Vec<f32> {
    let kept = |rows: usize| vec![7.0; rows * cols];
    [kept(to), x[from * cols..][..n * cols].to_vec(), kept(1)].concat()
}

/// Uploads two rows of `x` over the first of three, and returns all three and the first one alone.
pub(crate) fn travel(device: &impl Backend, x: &[f32], cols: usize) -> [Vec<f32>; 2] {
    let mut scratch = vec![9; 3];
    let mut buf = upload(device, &vec![7.0; 3 * cols], cols);
    device.upload(2, &x[..2 * cols], &mut scratch, &mut buf).unwrap();
    let mut of = |n: usize| {
        let mut rows = vec![0.0; n * cols];
        device.download(&buf, n, &mut scratch, &mut rows).unwrap();
        rows
    };
    [of(3), of(1)]
}

/// The expected result of [`travel`] on a device whose activations are of this type.
pub(crate) fn travelled(x: &[f32], cols: usize, dtype: DType) -> [Vec<f32>; 2] {
    let rounded: Vec<f32> = x[..2 * cols].iter().map(|&x| dtype.round(x)).collect();
    [[rounded.clone(), vec![7.0; cols]].concat(), rounded[..cols].to_vec()]
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn norms_match_the_reference(
        n in 1usize..9, cols in 1usize..400, scale in 0.01f32..30.0, layer: bool, seed: u64,
    ) {
        let kind = if layer { NormKind::Layer } else { NormKind::Rms };
        let mut rng = Rng(seed);
        let x: Vec<f32> = rng.values(n * cols).iter().map(|v| v * scale).collect();
        let (branch, weight) = (rng.values(n * cols), rng.values(cols));
        let want = norms(&Reference, kind, &x, &branch, &weight);
        for pair in CPUS.chunks(2) {
            let got = norms(&pair[0], kind, &x, &branch, &weight);
            assert_close("norm", &got[0], &want[0], 2e-6);
            assert_same_bits("residual", &got[1], &want[1]);
            assert_close("add_norm", &got[2], &want[2], 2e-6);
            let other = norms(&pair[1], kind, &x, &branch, &weight);
            let last = (n - 1) * cols;
            let alone = norms(&pair[1], kind, &x[last..], &branch[last..], &weight);
            for i in 0..3 {
                assert_same_bits("threads", &other[i], &got[i]);
                assert_same_bits("row alone", &alone[i], &got[i][last..]);
            }
        }
    }

    #[test]
    fn norms_of_parts_match_the_reference(
        n in 1usize..5, first in 0usize..9, count in 1usize..6, cols in 1usize..70, layer: bool, own: bool, seed: u64,
    ) {
        let kind = if layer { NormKind::Layer } else { NormKind::Rms };
        let (mut rng, width) = (Rng(seed), first + count * cols + 5);
        let (x, weight) = (rng.values(n * width), rng.values(if own { count * cols } else { cols }));
        let parts = RowParts { first, count, cols };
        let want = norm_parts(&Reference, kind, &x, width, parts, &weight);
        for cpu in CPUS.iter() {
            assert_close(&cpu.name(), &norm_parts(cpu, kind, &x, width, parts, &weight), &want, 3e-6);
        }
    }

    #[test]
    fn gates_match_the_reference(
        n in 1usize..6, cols in 1usize..200, scale in 0.1f32..60.0, gating in 0usize..6, seed: u64,
    ) {
        let x: Vec<f32> = Rng(seed).values(2 * n * cols).iter().map(|v| v * scale).collect();
        let gating = GATINGS[gating];
        let want = gate(&Reference, gating, &x, cols);
        // The tails of the two forms of GELU are differences of nearly equal numbers, and so is the
        // sum of up and 1.
        let least = match gating {
            Gating::Product(Activation::Silu) => 1e-30,
            Gating::Product(_) => 3e-7 * scale * scale,
            Gating::Clamped { limit, .. } => 3e-7 * limit.max(1.0) * scale,
        };
        for cpu in CPUS.iter() {
            let got = gate(cpu, gating, &x, cols);
            for (g, w) in got.iter().zip(&want) {
                prop_assert!((g - w).abs() <= 1e-6 * w.abs() + least, "{}: {g} is not {w}", cpu.name());
            }
        }
    }

    #[test]
    fn elementwise_operations_match_the_reference(
        n in 1usize..6, cols in 1usize..200, scale in 0.1f32..60.0, act in 0usize..6, seed: u64,
    ) {
        let mut rng = Rng(seed);
        let x: Vec<f32> = rng.values(n * cols).iter().map(|v| v * scale).collect();
        let y = rng.values(n * cols);
        // Only CPUs compute the square of ReLU and xIELU.
        let xielu = Xielu { positive: 0.02, negative: 0.3, linear: 0.4, limit: -1e-6 };
        let act = match act {
            4 => Activation::ReluSquared,
            5 => Activation::Xielu(xielu),
            usual => ACTIVATIONS[usual],
        };
        let want = elementwise(&Reference, act, &x, &y, cols);
        for cpu in CPUS.iter() {
            let got = elementwise(cpu, act, &x, &y, cols);
            for (got, want) in got.iter().zip(&want) {
                for (g, w) in got.iter().zip(want) {
                    let error = 1e-6 * w.abs() + 1e-6 * scale.max(5.0);
                    prop_assert!((g - w).abs() <= error, "{}: {g} is not {w}", cpu.name());
                }
            }
        }
    }

    /// Other devices refuse it.
    #[test]
    fn cpus_clamp_to_a_bound(n in 1usize..6, cols in 1usize..200, bound in 0.1f32..2.0, seed: u64) {
        let x = Rng(seed).values(n * cols);
        let want: Vec<f32> = x.iter().map(|x| x.clamp(-bound, bound)).collect();
        assert_same_bits("reference", &clamp(&Reference, bound, &x, cols), &want);
        for cpu in CPUS.iter() {
            assert_same_bits(&cpu.name(), &clamp(cpu, bound, &x, cols), &want);
        }
    }

    #[test]
    fn gather_takes_the_output_rows(n in 1usize..20, cols in 1usize..40, keep: u32) {
        let x = Rng(3).values(n * cols);
        let outputs: Vec<u32> = (0..n as u32).filter(|t| keep >> t & 1 == 1).collect();
        let want: Vec<f32> = outputs.iter().flat_map(|&t| x[t as usize * cols..][..cols].to_vec()).collect();
        assert_same_bits("reference", &gather(&Reference, &x, cols, &outputs), &want);
        for cpu in CPUS.iter() {
            assert_same_bits(&cpu.name(), &gather(cpu, &x, cols, &outputs), &want);
        }
    }
}

#[test]
fn copy_rows_copies_only_these_rows() {
    let x = Rng(3).values(9 * 33);
    let want = copied(&x, 33, 2, 5, 3);
    assert_same_bits("reference", &copy(&Reference, &x, 33, 2, 5, 3), &want);
    for cpu in CPUS.iter() {
        assert_same_bits(&cpu.name(), &copy(cpu, &x, 33, 2, 5, 3), &want);
    }
}

#[test]
fn rows_travel_between_host_and_device() {
    let x = Rng(4).values(2 * 33);
    let want = travelled(&x, 33, DType::F32);
    assert_eq!(travel(&Reference, &x, 33), want);
    for cpu in CPUS.iter() {
        assert_eq!(travel(cpu, &x, 33), want, "{}", cpu.name());
    }
}

/// Several threads compute the same bits as one.
#[test]
fn several_threads_give_the_same_bits() {
    let (n, cols) = (150, 1024);
    let mut rng = Rng(5);
    let (x, branch, weight) = (rng.values(n * cols), rng.values(n * cols), rng.values(cols));
    for pair in CPUS.chunks(2) {
        let of = |cpu| norms(cpu, NormKind::Layer, &x, &branch, &weight);
        let (one, many) = (of(&pair[0]), of(&pair[1]));
        (0..3).for_each(|i| assert_same_bits("norms", &one[i], &many[i]));
        let of = |cpu| gate(cpu, Activation::Gelu.into(), &x, cols / 2);
        assert_same_bits("gate", &of(&pair[0]), &of(&pair[1]));
    }
}

/// The products of hand-computed gates.
#[test]
fn clamped_gates_are_those_of_their_definition() {
    let gating = Gating::Clamped { alpha: 2.0, limit: 3.0 };
    let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
    let gates = [1.0, 5.0, -5.0, 0.5, 1.0, 1.0];
    let ups = [2.0, 1.0, 1.0, 9.0, -9.0, -1.0];
    let want = [
        3.0 * sigmoid(2.0),
        2.0 * 3.0 * sigmoid(6.0),
        2.0 * -5.0 * sigmoid(-10.0),
        4.0 * 0.5 * sigmoid(1.0),
        -2.0 * sigmoid(2.0),
        0.0,
    ];
    let x = [gates, ups].concat();
    assert_close("reference", &gate(&Reference, gating, &x, 6), &want, 1e-6);
    for cpu in CPUS.iter() {
        assert_close(&cpu.name(), &gate(cpu, gating, &x, 6), &want, 1e-6);
        for place in [0, 9] {
            let mut x = x.clone();
            x[place] = f32::NAN;
            assert!(gate(cpu, gating, &x, 6)[place % 6].is_nan(), "{}, place {place}", cpu.name());
        }
    }
}
