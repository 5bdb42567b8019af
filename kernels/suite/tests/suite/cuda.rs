//! Tests of the CUDA backend, in single precision on the GPU under test, against the reference. The
//! kernels have tests of their own; these cover how the backend combines them.

use std::collections::VecDeque;
use std::sync::LazyLock;

use millrace_backend::reference::Reference;
use millrace_backend::{
    AdapterSpec, Backend, ForwardOps, HeadRows, ModelLoading, NormKind, ProductShape, RowParts, SampleRow,
    Sampled, SampledRows, SamplingParams, ScoreRow, SeqRow, StepInput, StepQueue, StepSize, TransferOps,
};
use millrace_cuda::{Cuda, Device};
use millrace_numbers::DType;
use proptest::prelude::proptest;

use crate::common::*;
use crate::product::Case;
use crate::{attention, experts, latent, linear, recurrent, rows};

static DEVICE: LazyLock<Device> = LazyLock::new(|| Device::under_test().unwrap());
static CUDA: LazyLock<Cuda> = LazyLock::new(|| Cuda::new(DEVICE.clone(), DType::F32));

proptest! {
    #![proptest_config(cases(6))]

    #[test]
    fn rowwise_operations_match_the_reference(n in 1usize..6, cols in 1usize..300, seed: u64) {
        let mut rng = Rng(seed);
        let (x, branch, weight) = (rng.values(n * cols), rng.values(n * cols), rng.values(cols));
        let kind = if seed % 2 == 0 { NormKind::Rms } else { NormKind::Layer };
        let got = rows::norms(&*CUDA, kind, &x, &branch, &weight);
        let want = rows::norms(&Reference, kind, &x, &branch, &weight);
        for i in 0..3 {
            assert_close("norms", &got[i], &want[i], 4e-6);
        }
        for (first, count, own) in [(0, 3, false), (7, 2, true)] {
            let (parts, width) = (RowParts { first, count, cols }, 9 + 3 * cols);
            let (x, weight) = (rng.values(n * width), rng.values(if own { count * cols } else { cols }));
            let want = rows::norm_parts(&Reference, kind, &x, width, parts, &weight);
            assert_close("parts", &rows::norm_parts(&*CUDA, kind, &x, width, parts, &weight), &want, 4e-6);
        }
        let x = rng.values(2 * n * cols);
        for gating in rows::GATINGS {
            let want = rows::gate(&Reference, gating, &x, cols);
            assert_close("gate", &rows::gate(&*CUDA, gating, &x, cols), &want, 4e-6);
        }
        for act in rows::ACTIVATIONS {
            let half = x.len() / 2;
            let got = rows::elementwise(&*CUDA, act, &x[..half], &x[half..], cols);
            let want = rows::elementwise(&Reference, act, &x[..half], &x[half..], cols);
            for (got, want) in got.iter().zip(&want) {
                assert_close("elementwise", got, want, 4e-6);
            }
        }
        let outputs: Vec<u32> = (0..n as u32).filter(|t| t % 2 == 0).collect();
        let x = &x[..n * cols];
        let want = rows::gather(&Reference, x, cols, &outputs);
        assert_same_bits("gather", &rows::gather(&*CUDA, x, cols, &outputs), &want);
    }

    #[test]
    fn linear_matches_the_reference(n in 1usize..20, cols in 1usize..100, out in 1usize..60, bias: bool, seed: u64) {
        let case = Case::new((n, cols, out), bias, DType::F32, seed);
        let want = case.run(&Reference);
        assert_close("linear", &case.run(&*CUDA), &want, 1e-5);
        let invariant = Cuda::new(DEVICE.clone(), DType::F32).batch_invariant(true);
        let shape = ProductShape { inputs: cols, outputs: out, format: case.format, logits: false, rows: n };
        invariant.tune(&[shape]).unwrap();
        let all = case.run(&invariant);
        assert_close("batch-invariant linear", &all, &want, 1e-5);
        assert_same_bits("row alone", &case.row(n - 1).run(&invariant), &all[(n - 1) * out..]);
    }

    #[test]
    fn experts_match_the_reference(
        n in 1usize..9, hidden in 1usize..40, width in 1usize..30, router in experts::routers(false), bias: bool,
        scaled: bool, seed: u64,
    ) {
        let case = experts::Case::new((n, hidden, width), router, bias, DType::F32, seed);
        let case = if bias { case.biased(seed) } else { case };
        let case = if scaled { case.scaled(seed) } else { case };
        let all = case.run(&*CUDA);
        assert_close("experts", &all, &case.run(&Reference), 2e-5);
        assert_same_bits("token alone", &case.row(n - 1).run(&*CUDA), &all[(n - 1) * hidden..]);
        let mut rng = Rng(seed);
        let (x, gate, out) = (rng.values(n * hidden), rng.values(n), rng.values(n * hidden));
        let want = experts::add_gated(&Reference, &x, &gate, &out);
        assert_close("gated sum", &experts::add_gated(&*CUDA, &x, &gate, &out), &want, 1e-6);
    }

    #[test]
    fn attention_over_latents_matches_the_reference(case in latent::attention_cases(), seed: u64) {
        let exact = case.format == DType::F32.into();
        let got = case.run(&*CUDA, &case.whole());
        assert_close("latents", &got, &case.run(&Reference, &case.whole()), if exact { 1e-5 } else { 2e-2 });
        assert_same_bits("chunks", &case.run(&*CUDA, &case.chunked(&mut Rng(seed))), &got);
    }

    #[test]
    fn gates_match_the_reference(
        n in 1usize..9, cols in 1usize..9, first in 0usize..3, vectors: bool, function in recurrent::functions(),
        seed: u64,
    ) {
        // Rows of whole vectors have a kernel of their own.
        let (cols, first) = if vectors { (4 * cols, 4 * first) } else { (cols, first) };
        let (mut rng, of_gates) = (Rng(seed), first + cols + 4);
        let gates: Vec<f32> = rng.values(n * of_gates).iter().map(|gate| 9.0 * gate).collect();
        let x = rng.values(n * cols);
        let want = recurrent::gated(&Reference, (&x, cols), (&gates, of_gates, first), function);
        let got = recurrent::gated(&*CUDA, (&x, cols), (&gates, of_gates, first), function);
        assert_close("gates", &got, &want, 4e-6);
    }

    #[test]
    fn products_of_heads_match_the_reference(case in latent::products()) {
        let case = latent::Product { dtype: DType::F32, ..case };
        let got = case.run(&*CUDA, HeadRows::Outputs);
        assert_close("heads", &got, &case.run(&Reference, HeadRows::Outputs), 1e-5);
    }

    #[test]
    fn bidirectional_attention_matches_the_reference(
        case in attention::bidirectional_case(false), seed: u64,
    ) {
        let Ok(dtype) = case.format.dense() else { return Ok(()) };
        let got = case.run(&*CUDA, &case.whole());
        let bound = if dtype == DType::F32 { 1e-5 } else { 2e-2 };
        assert_close("attention", &got, &case.run(&Reference, &case.whole()), bound);
        let plan = case.prefixes_first(&mut Rng(seed));
        assert_same_bits("prefixes first", &case.run(&*CUDA, &plan), &got);
    }

    #[test]
    fn attention_matches_the_reference(case in attention::case_with_prologue(), seed: u64) {
        let Ok(dtype) = case.format.dense() else { return Ok(()) };
        let exact = dtype == DType::F32;
        let want = case.run(&Reference, &case.whole());
        let got = case.run(&*CUDA, &case.whole());
        assert_close("attention", &got, &want, if exact { 1e-5 } else { 2e-2 });
        let plan = case.chunked(&mut Rng(seed));
        assert_same_bits("chunks", &case.run(&*CUDA, &plan), &got);
    }
}

proptest! {
    #![proptest_config(cases(16))]

    #[test]
    fn recurrent_layers_match_the_reference(case in recurrent::cases_of_layers(), seed: u64) {
        let want = case.run(&Reference, &case.whole());
        let got = case.run(&*CUDA, &case.whole());
        let chunks = case.run(&*CUDA, &case.chunked(&mut Rng(seed)));
        for ((want, got), chunks) in want.iter().zip(&got).zip(&chunks) {
            assert_close("recurrent layer", got, want, 2e-5);
            assert_same_bits("chunks", chunks, got);
        }
    }
}

#[test]
fn embed_of_a_slice_matches_the_reference() {
    let table = Rng(1).values(20 * 48);
    let tokens = [3, 60, 41, 59, 40, 0];
    let slice = (&table[..], 40);
    let want = linear::embed(&Reference, slice, 48, DType::F32, &tokens);
    assert_same_bits("embed", &linear::embed(&*CUDA, slice, 48, DType::F32, &tokens), &want);
}

/// Runs two steps of decoding sequences. A device that can run ahead is given the second step
/// before the first one's tokens are collected. Returns the sampled tokens, and the second step's
/// inputs as the rows of an embedding.
fn two_steps<B: Backend>(
    device: &B,
    logits: [&[f32]; 2],
    params: &[SamplingParams],
) -> (Vec<Sampled>, Vec<f32>) {
    let (n, vocab) = (params.len(), logits[0].len() / params.len());
    let (prompt, blocks) = ([1, 2, 3], [0]);
    let mut queue = device.queue(&StepSize { vocab, ..step_size(n, n, 16) }).unwrap();
    let identity: Vec<f32> = (0..vocab).map(|id| id as f32).collect();
    let (table, mut out) = (matrix(device, &identity, 1, DType::F32), device.buf(n, 1).unwrap());
    for (slot, params) in params.iter().enumerate() {
        device.admit(&mut queue, slot, &prompt, params).unwrap();
    }
    let (mut chosen, mut finished) = (SampledRows::default(), VecDeque::new());
    for (i, logits) in logits.into_iter().enumerate() {
        // A device that runs ahead does not know the first step's tokens yet.
        let sampled = |slot: usize| chosen.tokens().get(slot).map_or(0, |sampled| sampled.token);
        let known: Vec<Vec<u32>> =
            (0..n).map(|slot| prompt.into_iter().chain((0..i).map(|_| sampled(slot))).collect()).collect();
        let rows: Vec<SeqRow<'_>> = (0..n).map(|slot| SeqRow::decode(slot, 2 + i, &blocks)).collect();
        let samples: Vec<SampleRow<'_>> = params
            .iter()
            .zip(&known)
            .map(|(params, tokens)| SampleRow { params, tokens, prompt_len: 2, allowed: None })
            .collect();
        let tokens: Vec<u32> = known.iter().map(|tokens| tokens[2 + i]).collect();
        let outputs: Vec<u32> = (0..n as u32).collect();
        let input = StepInput {
            tokens: &tokens,
            rows: &rows,
            outputs: &outputs,
            samples: &samples,
            ..StepInput::EMPTY
        };
        let mut step = open(device, &mut queue, &input);
        device.embed(&step, &table, 0, 1.0, &mut out).unwrap();
        device.sample(&mut step, &mut upload(device, logits, vocab), &samples).unwrap();
        let step = device.append(step).unwrap();
        finished.push_back(device.finish(step).unwrap());
        if device.steps_ahead() == 1 {
            device.collect(&mut queue, finished.pop_front().unwrap(), &mut chosen).unwrap();
        }
    }
    for step in finished {
        device.collect(&mut queue, step, &mut chosen).unwrap();
    }
    assert_eq!(chosen.len(), 2 * n);
    (chosen.tokens().to_vec(), device.read(&out, n).unwrap())
}

#[test]
fn copy_rows_copies_only_these_rows() {
    let x = Rng(3).values(9 * 33);
    assert_same_bits("copy", &rows::copy(&*CUDA, &x, 33, 2, 5, 3), &rows::copied(&x, 33, 2, 5, 3));
}

#[test]
fn rows_travel_between_host_and_device() {
    let x = Rng(4).values(2 * 33);
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let cuda = Cuda::new(Device::under_test().unwrap(), dtype);
        assert_eq!(rows::travel(&cuda, &x, 33), rows::travelled(&x, 33, dtype), "{dtype:?}");
    }
}

#[test]
fn adapters_are_refused_by_name() {
    let spec = AdapterSpec { inputs: 4, outputs: 4, places: 1, rank: 1, dtype: DType::F32 };
    let error = CUDA.adapters(&spec).unwrap_err().to_string();
    assert!(error.contains("unsupported on this device: LoRA adapters"), "{error}");
}

/// Covers ties, NaN and infinity, a row without finite logits, the largest number of rows, and no
/// rows.
#[test]
fn scores_match_the_reference() {
    for (vocab, n) in [(1, 2), (400, 5), (4099, 3), (9000, 7)] {
        let mut logits: Vec<f32> =
            Rng(vocab as u64).values(n * vocab).iter().map(|x| (x * 40.0).round() / 4.0).collect();
        logits[vocab - 1] = f32::NAN;
        logits[(n - 1) * vocab..].fill(f32::INFINITY);
        let token = |i: usize| (i * 977 % vocab) as u32;
        let rows: Vec<ScoreRow> =
            (0..n).map(|i| ScoreRow { token: token(i), top_n: i.min(vocab) as u32 % 5 }).collect();
        let size = StepSize { vocab, ..step_size(n, n, 1) };
        let (mut got, mut want) = (Vec::new(), Vec::new());
        let mut queue = CUDA.queue(&size).unwrap();
        let mut step = opened(&*CUDA, &mut queue, &[0], &[0]).without_sampling();
        for rows in [&rows[..], &[]] {
            CUDA.score(&mut step, &mut upload(&*CUDA, &logits, vocab), rows, &mut got).unwrap();
        }
        let mut queue = Reference.queue(&size).unwrap();
        let mut step = opened(&Reference, &mut queue, &[0], &[0]).without_sampling();
        Reference.score(&mut step, &mut upload(&Reference, &logits, vocab), &rows, &mut want).unwrap();
        assert_eq!(got.len(), n);
        let close = |g: f32, w: f32| g == w || g.is_nan() && w.is_nan() || (g - w).abs() < 1e-5;
        for (got, want) in got.iter().zip(&want) {
            let tops = got.top.len() == want.top.len()
                && got.top.iter().zip(&want.top).all(|(g, w)| g.0 == w.0 && close(g.1, w.1));
            let same = got.rank == want.rank && close(got.logprob, want.logprob) && tops;
            assert!(same, "{vocab} tokens: {got:?}, not {want:?}");
        }
    }
}

#[test]
fn samples_one_step_ahead_match_the_reference() {
    let (vocab, n) = (500, 8);
    let logits = [Rng(9).values(n * vocab), Rng(10).values(n * vocab)];
    let params: Vec<SamplingParams> = (0..n as u64)
        .map(|i| SamplingParams {
            do_sample: i > 0,
            temperature: 0.7,
            top_k: if i == 2 { 10 } else { 0 },
            top_p: if i == 3 { 0.8 } else { 1.0 },
            repetition_penalty: if i == 4 { 0.2 } else { 1.0 },
            presence_penalty: if i == 5 { -50.0 } else { 0.0 },
            logit_bias: if i == 6 { vec![(7, 80.0), (9, 99.0)] } else { Vec::new() },
            min_new_tokens: if i == 6 { 2 } else { 0 },
            end_tokens: if i == 6 { vec![9] } else { Vec::new() },
            seed: i,
            top_n: 3,
            warped_logprobs: i == 7,
            ..SamplingParams::default()
        })
        .collect();
    let (got, got_inputs) = two_steps(&*CUDA, [&logits[0], &logits[1]], &params);
    let (want, want_inputs) = two_steps(&Reference, [&logits[0], &logits[1]], &params);
    for (got, want) in got.iter().zip(&want) {
        assert_eq!(got.token, want.token);
        assert!((got.logprob - want.logprob).abs() < 1e-5);
        assert_eq!(
            got.top.iter().map(|t| t.0).collect::<Vec<_>>(),
            want.top.iter().map(|t| t.0).collect::<Vec<_>>()
        );
    }
    assert_eq!(got_inputs, want_inputs);
    // The penalties count the tokens of the first step, and an end token comes as soon as it may.
    assert_eq!((want[n + 5].token, want[6].token, want[n + 6].token), (want[5].token, 7, 9));
}

/// Decoding rows have a kernel of their own, whose results depend on nothing else in the step.
#[test]
fn decoding_does_not_depend_on_the_batch() {
    let bf16 = Cuda::new(CUDA.device().clone(), DType::BF16);
    for seed in 0..3 {
        let case = attention::Case::decoding(seed);
        let (together, alone) = case.prompts_then_decoding();
        let got = case.run(&bf16, &together);
        assert_close("decoding", &got, &case.run(&Reference, &together), 2e-2);
        assert_same_bits("alone", &case.run(&bf16, &alone), &got);
    }
}

/// Tokens and biases of new sequences that do not fit into a step's upload are uploaded before it.
#[test]
fn tokens_and_biases_beyond_one_upload_arrive() {
    let (vocab, longest) = (3000, 3000);
    let mut queue = CUDA.queue(&StepSize { vocab, ..step_size(4, 3, longest) }).unwrap();
    let identity: Vec<f32> = (0..vocab).map(|id| id as f32).collect();
    let (table, mut out) = (matrix(&*CUDA, &identity, 1, DType::F32), CUDA.buf(4, 1).unwrap());
    let prompts: Vec<Vec<u32>> =
        (0..3).map(|slot| (0..longest as u32 - slot).map(|i| (i * 7 + slot) % 3000).collect()).collect();
    // The last bias of each sequence is the largest.
    let params: Vec<SamplingParams> = (0..3u32)
        .map(|slot| {
            let logit_bias = (0..2000).map(|i| ((i + 500 * slot) % 3000, i as f32)).collect();
            SamplingParams { logit_bias, ..SamplingParams::default() }
        })
        .collect();
    for (slot, (tokens, params)) in prompts.iter().zip(&params).enumerate() {
        CUDA.admit(&mut queue, slot, tokens, params).unwrap();
    }
    let blocks: Vec<u32> = (0..longest.div_ceil(16) as u32).collect();
    let rows: Vec<SeqRow<'_>> = prompts
        .iter()
        .enumerate()
        .map(|(slot, prompt)| {
            let count = if slot == 0 { 2 } else { 1 };
            let start = prompt.len() - count;
            SeqRow::prefill(slot, start..start + count, &blocks[..prompt.len().div_ceil(16)])
        })
        .collect();
    let samples: Vec<SampleRow<'_>> = prompts
        .iter()
        .zip(&params)
        .map(|(tokens, params)| SampleRow { params, tokens, prompt_len: tokens.len(), allowed: None })
        .collect();
    let input = StepInput {
        tokens: &[0; 4],
        rows: &rows,
        outputs: &[1, 2, 3],
        samples: &samples,
        ..StepInput::EMPTY
    };
    let mut step = open(&*CUDA, &mut queue, &input);
    CUDA.embed(&step, &table, 0, 1.0, &mut out).unwrap();
    CUDA.sample(&mut step, &mut upload(&*CUDA, &vec![0.0; 3 * vocab], vocab), &samples).unwrap();
    let step = CUDA.append(step).unwrap();
    let step = CUDA.finish(step).unwrap();
    let mut chosen = SampledRows::default();
    CUDA.collect(&mut queue, step, &mut chosen).unwrap();
    let last = |slot: usize, back: usize| prompts[slot][prompts[slot].len() - back] as f32;
    assert_eq!(CUDA.read(&out, 4).unwrap(), [last(0, 2), last(0, 1), last(1, 1), last(2, 1)]);
    assert_eq!(chosen.tokens().iter().map(|sampled| sampled.token).collect::<Vec<_>>(), [1999, 2499, 2999]);
}
