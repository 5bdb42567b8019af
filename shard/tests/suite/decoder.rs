//! Compares the decoder with a plain computation in double precision, and with itself under any
//! schedule.

use crate::common::{
    Chunk, Harness, MemoryWeights, POSITIONS, Random, has_latents, limits, naive, row_error, specs,
};
use millrace_backend::reference::Reference;
use millrace_backend::{Backend, KvFormat, ScoreRow};
use millrace_cpu::{Cpu, CpuOptions};
use millrace_model::{DecoderSpec, LayerSlot, ShardLimits, WeightSlot};
use millrace_numbers::DType;
use proptest::prelude::*;

fn tokens(random: &mut Random, vocab: usize, len: usize) -> Vec<u32> {
    (0..len).map(|_| random.below(vocab) as u32).collect()
}

/// Computes the logits of every position of one sequence in a single step.
fn alone<B: Backend>(harness: &mut Harness<'_, B>, tokens: &[u32]) -> Vec<Vec<f32>> {
    let blocks: Vec<u32> = (0..16).collect();
    harness.step(&[Chunk { tokens, start: 0, blocks: &blocks }])
}

/// The error of logits that single precision makes from numbers near one, however small the logits
/// are: a residual stream whose terms cancel keeps their rounding.
const ROUNDING: f64 = 1e-6;

/// Compares the logits of a prompt with the plain decoder's. `bound` is the largest error relative
/// to the largest logit of a row, beside [`ROUNDING`].
fn agrees_with_naive<B: Backend>(backend: &B, spec: &DecoderSpec, (seed, len): (u64, usize), bound: f64) {
    let weights = MemoryWeights::random(spec, seed);
    let prompt = tokens(&mut Random(!seed), spec.vocab, len);
    let mut harness = Harness::new(backend, spec, &weights, DType::F32, &limits(DType::F32));
    naive::take_closest_choice();
    let expected = naive::logits(spec, &weights, &prompt);
    if naive::take_closest_choice() < 1e-5 {
        return;
    }
    for (position, (found, expected)) in alone(&mut harness, &prompt).iter().zip(&expected).enumerate() {
        let error = row_error(found, expected);
        let largest = expected.iter().fold(0f64, |largest, logit| largest.max(logit.abs()));
        let bound = bound.max(ROUNDING / largest);
        assert!(error < bound, "relative error {error:e} at position {position}");
    }
}

/// Computes `count` sequences in random chunks, mixed at random, with blocks in random order. Every
/// logit must have the same bits as when its sequence is computed alone in one step.
fn any_schedule_gives_the_same_bits<B: Backend>(
    backend: &B,
    spec: &DecoderSpec,
    (dtype, kv_format): (DType, KvFormat),
    seed: u64,
    count: usize,
) {
    // Latents have no 8-bit format.
    let kv_format =
        if has_latents(spec) { kv_format.dense().unwrap_or(DType::BF16).into() } else { kv_format };
    let random = &mut Random(seed);
    let weights = MemoryWeights::random(spec, random.next());
    let limits = limits(kv_format);
    let mut harness = Harness::new(backend, spec, &weights, dtype, &limits);
    let sequences: Vec<Vec<u32>> = (0..count)
        .map(|_| {
            let len = 1 + random.below(POSITIONS);
            tokens(random, spec.vocab, len)
        })
        .collect();
    let expected: Vec<Vec<Vec<f32>>> = sequences.iter().map(|s| alone(&mut harness, s)).collect();

    let pool = random.shuffled(limits.num_blocks);
    let tables: Vec<&[u32]> = pool.chunks(limits.table_blocks()).collect();
    let mut done = vec![0; count];
    while done.iter().zip(&sequences).any(|(done, sequence)| *done < sequence.len()) {
        let (mut budget, mut chunks, mut covered) = (limits.max_step_tokens, vec![], vec![]);
        for s in random.shuffled(count).into_iter().map(|s| s as usize) {
            let left = sequences[s].len() - done[s];
            if left == 0 || random.below(3) == 0 {
                continue;
            }
            // Single tokens, as when decoding, and chunks of any length are equally frequent.
            let len = if random.below(2) == 0 { 1 } else { 1 + random.below(left) }.min(budget);
            if len == 0 {
                continue;
            }
            budget -= len;
            let range = done[s]..done[s] + len;
            chunks.push(Chunk { tokens: &sequences[s][range.clone()], start: done[s], blocks: tables[s] });
            covered.extend(range.map(|position| (s, position)));
            done[s] += len;
        }
        if chunks.is_empty() {
            continue;
        }
        for (found, (s, position)) in harness.step(&chunks).iter().zip(covered) {
            let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(found), bits(&expected[s][position]), "sequence {s}, position {position}");
        }
    }
}

fn dtypes() -> impl Strategy<Value = DType> {
    prop_oneof![Just(DType::F32), Just(DType::F16), Just(DType::BF16)]
}

fn cpu() -> Cpu {
    Cpu::new(CpuOptions { threads: Some(2), ..CpuOptions::default() }).unwrap()
}

fn kv_formats() -> impl Strategy<Value = KvFormat> {
    prop::sample::select(KvFormat::ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn reference_agrees_with_naive(spec in specs(), seed: u64, len in 1..POSITIONS) {
        // Activations are in single precision, and norms amplify their rounding.
        agrees_with_naive(&Reference, &spec, (seed, len), 5e-5);
    }

    #[test]
    fn cpu_agrees_with_naive(spec in specs(), seed: u64, len in 1..POSITIONS) {
        // Its GELU and its hyperbolic tangent have errors of 2e-7, which later norms amplify.
        agrees_with_naive(&cpu(), &spec, (seed, len), 5e-5);
    }

    #[test]
    fn cpu_gives_the_same_bits_under_any_schedule(
        spec in specs(), formats in (dtypes(), kv_formats()), seed: u64, count in 1usize..6,
    ) {
        any_schedule_gives_the_same_bits(&cpu(), &spec, formats, seed, count);
    }

    #[test]
    fn reference_gives_the_same_bits_under_any_schedule(
        spec in specs(), formats in (dtypes(), kv_formats()), seed: u64, count in 1usize..6,
    ) {
        any_schedule_gives_the_same_bits(&Reference, &spec, formats, seed, count);
    }
}

/// Several sequences have more states to score than the buffer has rows of logits.
#[test]
fn prompts_are_scored_in_pieces() {
    let spec = crate::common::fixed_spec();
    let weights = MemoryWeights::random(&spec, 4);
    let limits = ShardLimits { max_sequences: 3, ..limits(DType::F32) };
    let mut harness = Harness::new(&Reference, &spec, &weights, DType::F32, &limits);
    let prompts = [10, 7].map(|len| tokens(&mut Random(len), spec.vocab, len as usize));
    let blocks = [[0, 1], [2, 3]];
    let chunk = |of: usize, to: usize| Chunk { tokens: &prompts[of][..to], start: 0, blocks: &blocks[of] };
    // All but the first token of the first prompt, five of the second.
    let followers = prompts[0][1..].iter().chain(&prompts[1][1..6]);
    let rows: Vec<ScoreRow> = followers.map(|&token| ScoreRow { token, top_n: 1 }).collect();
    let mut scored = Vec::new();
    harness.forward_with(&[chunk(0, 10), chunk(1, 5)], &[9], |backend, decoder, step| {
        let step = &mut step.without_sampling();
        decoder.score(backend, step, [0..9, 10..15].into_iter(), &rows, &mut scored).unwrap();
    });

    let logits = prompts.map(|prompt| naive::logits(&spec, &weights, &prompt));
    let logits = logits[0][..9].iter().chain(&logits[1][..5]);
    assert_eq!(scored.len(), rows.len());
    for ((logits, row), scored) in logits.zip(&rows).zip(&scored) {
        let mass = logits.iter().map(|logit| logit.exp()).sum::<f64>().ln();
        let expected = logits[row.token as usize] - mass;
        assert!((f64::from(scored.logprob) - expected).abs() < 1e-4, "{scored:?} is not {expected}");
        let best = logits.iter().fold(f64::NEG_INFINITY, |best, logit| best.max(*logit));
        assert!((f64::from(scored.top[0].1) - (best - mass)).abs() < 1e-4);
    }
}

#[test]
fn a_weight_of_another_shape_is_refused() {
    let spec = crate::common::fixed_spec();
    let mut weights = MemoryWeights::random(&spec, 1);
    weights.set(WeightSlot::Layer(0, LayerSlot::Out), 2, 3, &[0.0; 6]);
    let mut ignore = |_| Ok(());
    let loaded =
        millrace_shard::decoder::Weights::load(&Reference, &spec, &weights, DType::F32, 8, &mut ignore);
    let error = loaded.err().unwrap().to_string();
    assert_eq!(error, "the weight for Layer(0, Out) is [2, 3], but the configuration asks for [8, 8]");
}

#[test]
fn loading_reports_every_byte_of_the_plan() {
    let spec = crate::common::fixed_spec();
    let weights = MemoryWeights::random(&spec, 1);
    let mut reports = vec![];
    let mut progress = |done| {
        reports.push(done);
        Ok(())
    };
    millrace_shard::decoder::Weights::load(&Reference, &spec, &weights, DType::F32, 8, &mut progress)
        .unwrap();
    assert!(reports.is_sorted());
    assert_eq!(reports.len(), spec.slots().len());
    assert_eq!(*reports.last().unwrap(), 4 * spec.parameters());
}
