//! The CUDA backend, in single precision on a simulated card, against the reference. The kernels have tests of their own; here it is
//! about what the backend makes of them.

use std::sync::{Arc, LazyLock};

use millrace_kernels::cuda::{Cuda, Device, Simulated};
use millrace_kernels::reference::Reference;
use millrace_kernels::{Backend, DType, SampleRow, SamplingParams, ScoreRow};
use proptest::prelude::{ProptestConfig, proptest};

use crate::common::*;
use crate::{attention, linear, rows};

static CUDA: LazyLock<Cuda> =
    LazyLock::new(|| Cuda::new(Device::new(Arc::new(Simulated::new().unwrap())), DType::F32));

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn rows_match(n in 1usize..6, cols in 1usize..300, seed: u64) {
        let mut rng = Rng(seed);
        let (x, branch, weight) = (rng.values(n * cols), rng.values(n * cols), rng.values(cols));
        let got = rows::norms(&*CUDA, &x, &branch, &weight);
        let want = rows::norms(&Reference, &x, &branch, &weight);
        for i in 0..3 {
            assert_close("norms", &got[i], &want[i], 4e-6);
        }
        let x = rng.values(2 * n * cols);
        assert_close("gate", &rows::gate(&*CUDA, &x, cols), &rows::gate(&Reference, &x, cols), 4e-6);
        let outputs: Vec<u32> = (0..n as u32).filter(|t| t % 2 == 0).collect();
        let x = &x[..n * cols];
        let want = rows::gather(&Reference, x, cols, &outputs);
        assert_same_bits("gather", &rows::gather(&*CUDA, x, cols, &outputs), &want);
    }

    #[test]
    fn products_match(n in 1usize..20, cols in 1usize..100, out in 1usize..60, bias: bool, seed: u64) {
        let case = linear::Case::new(n, cols, out, bias, DType::F32, seed);
        let all = case.run(&*CUDA);
        assert_close("linear", &all, &case.run(&Reference), 1e-5);
        assert_same_bits("row alone", &case.row(n - 1).run(&*CUDA), &all[(n - 1) * out..]);
    }

    #[test]
    fn attention_matches(case in attention::case_with_prologue(), seed: u64) {
        let exact = case.dtype == DType::F32;
        let want = case.run(&Reference, &case.whole());
        let got = case.run(&*CUDA, &case.whole());
        assert_close("attention", &got, &want, if exact { 1e-5 } else { 2e-2 });
        let plan = case.chunked(&mut Rng(seed));
        assert_same_bits("chunks", &case.run(&*CUDA, &plan), &got);
    }
}

#[test]
fn embeds_rows_of_a_slice() {
    let table = Rng(1).values(20 * 48);
    let tokens = [3, 60, 41, 59, 40, 0];
    let slice = (&table[..], 40);
    let want = linear::embed(&Reference, slice, 48, DType::F32, &tokens);
    assert_same_bits("embed", &linear::embed(&*CUDA, slice, 48, DType::F32, &tokens), &want);
}

#[test]
fn copies_rows() {
    let x = Rng(3).values(9 * 33);
    assert_same_bits("copy", &rows::copy(&*CUDA, &x, 33, 2, 5, 3), &rows::copied(&x, 33, 2, 5, 3));
}

#[test]
fn scores_as_the_reference_does() {
    let logits = Rng(10).values(3 * 400);
    let rows = [0, 7, 399].map(|token| ScoreRow { token, top_n: token % 5 });
    let (mut got, mut want) = (Vec::new(), Vec::new());
    CUDA.score(&mut upload(&*CUDA, &logits, 400), &rows, &mut got).unwrap();
    Reference.score(&mut upload(&Reference, &logits, 400), &rows, &mut want).unwrap();
    for (got, want) in got.iter().zip(&want) {
        assert!(got.rank == want.rank && (got.logprob - want.logprob).abs() < 1e-5);
        assert!(got.top.iter().map(|top| top.0).eq(want.top.iter().map(|top| top.0)));
    }
    assert_eq!(got.len(), 3);
}

#[test]
fn chooses_what_the_reference_chooses() {
    let vocab = 500;
    let logits = Rng(9).values(4 * vocab);
    let params: Vec<SamplingParams> = (0..4)
        .map(|i| SamplingParams {
            do_sample: i > 0,
            temperature: 0.7,
            top_k: if i == 2 { 10 } else { 0 },
            top_p: if i == 3 { 0.8 } else { 1.0 },
            seed: i,
            top_n: 3,
            ..SamplingParams::default()
        })
        .collect();
    let rows: Vec<SampleRow<'_>> = params
        .iter()
        .map(|params| SampleRow { params, tokens: &[1, 2, 3], prompt_len: 2, allowed: None })
        .collect();
    let (mut got, mut want) = (Vec::new(), Vec::new());
    CUDA.sample(&mut upload(&*CUDA, &logits, vocab), &rows, &mut got).unwrap();
    Reference.sample(&mut upload(&Reference, &logits, vocab), &rows, &mut want).unwrap();
    for (got, want) in got.iter().zip(&want) {
        assert_eq!(got.token, want.token);
        assert!((got.logprob - want.logprob).abs() < 1e-5);
        assert_eq!(
            got.top.iter().map(|t| t.0).collect::<Vec<_>>(),
            want.top.iter().map(|t| t.0).collect::<Vec<_>>()
        );
    }
}
