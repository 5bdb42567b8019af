//! Tests of norms, gates, gathering and copying of rows.

use millrace_kernels::reference::Reference;
use millrace_kernels::{Activation, Backend, Norm};
use proptest::prelude::{prop_assert, proptest};

use crate::common::*;

pub(crate) fn norms<B: Backend>(device: &B, x: &[f32], branch: &[f32], weight: &[f32]) -> [Vec<f32>; 3] {
    let (n, cols) = (x.len() / weight.len(), weight.len());
    let norm = Norm { weight: vector(device, weight), eps: 1e-5 };
    let (mut residual, branch) = (upload(device, x, cols), upload(device, branch, cols));
    let mut out = device.buf(n, cols).unwrap();
    device.norm(n, &residual, &norm, &mut out).unwrap();
    let plain = device.read(&out, n).unwrap();
    device.add_norm(n, &mut residual, &branch, &norm, &mut out).unwrap();
    [plain, device.read(&residual, n).unwrap(), device.read(&out, n).unwrap()]
}

pub(crate) fn gate<B: Backend>(device: &B, x: &[f32], cols: usize) -> Vec<f32> {
    let n = x.len() / (2 * cols);
    let x = upload(device, x, 2 * cols);
    let mut out = device.buf(n, cols).unwrap();
    device.gate(n, Activation::Silu, &x, &mut out).unwrap();
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

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn norms_match_the_reference(n in 1usize..9, cols in 1usize..400, scale in 0.01f32..30.0, seed: u64) {
        let mut rng = Rng(seed);
        let x: Vec<f32> = rng.values(n * cols).iter().map(|v| v * scale).collect();
        let (branch, weight) = (rng.values(n * cols), rng.values(cols));
        let want = norms(&Reference, &x, &branch, &weight);
        for pair in CPUS.chunks(2) {
            let got = norms(&pair[0], &x, &branch, &weight);
            assert_close("norm", &got[0], &want[0], 2e-6);
            assert_same_bits("residual", &got[1], &want[1]);
            assert_close("add_norm", &got[2], &want[2], 2e-6);
            let other = norms(&pair[1], &x, &branch, &weight);
            let last = (n - 1) * cols;
            let alone = norms(&pair[1], &x[last..], &branch[last..], &weight);
            for i in 0..3 {
                assert_same_bits("threads", &other[i], &got[i]);
                assert_same_bits("row alone", &alone[i], &got[i][last..]);
            }
        }
    }

    #[test]
    fn gates_match_the_reference(n in 1usize..6, cols in 1usize..200, scale in 0.1f32..60.0, seed: u64) {
        let x: Vec<f32> = Rng(seed).values(2 * n * cols).iter().map(|v| v * scale).collect();
        let want = gate(&Reference, &x, cols);
        for cpu in CPUS.iter() {
            let got = gate(cpu, &x, cols);
            for (g, w) in got.iter().zip(&want) {
                prop_assert!((g - w).abs() <= 1e-6 * w.abs() + 1e-30, "{}: {g} is not {w}", cpu.name());
            }
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

/// Several threads compute the same bits as one.
#[test]
fn several_threads_give_the_same_bits() {
    let (n, cols) = (150, 1024);
    let mut rng = Rng(5);
    let (x, branch, weight) = (rng.values(n * cols), rng.values(n * cols), rng.values(cols));
    for pair in CPUS.chunks(2) {
        let (one, many) = (norms(&pair[0], &x, &branch, &weight), norms(&pair[1], &x, &branch, &weight));
        (0..3).for_each(|i| assert_same_bits("norms", &one[i], &many[i]));
        assert_same_bits("gate", &gate(&pair[0], &x, cols / 2), &gate(&pair[1], &x, cols / 2));
    }
}
