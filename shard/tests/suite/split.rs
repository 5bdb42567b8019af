//! Tests that the shares of a split model compute the same as the whole model, and that each share
//! only reads its part of the weights.

use std::thread;

use crate::common::{
    Chunk, Harness, MemoryWeights, Random, SEPARATOR, encoder, limits, long, prefix_model, row_error, specs,
};
use millrace_backend::HostMemory;
use millrace_backend::reference::Reference;
use millrace_cpu::{Cpu, CpuOptions};
use millrace_model::split::Split;
use millrace_model::{
    DecoderSpec, HeadNormPlan, LayerSlot, Mlp, Model, ModelWarnings, Positions, WeightSlot,
};
use millrace_numbers::DType;
use millrace_shard::HostCollectives;
use millrace_shard::collective::{self, Transport};
use millrace_shard::decoder::Weights;
use proptest::prelude::*;

fn model(spec: &DecoderSpec, seed: u64) -> Model {
    let weights = Box::new(MemoryWeights::random(spec, seed));
    Model {
        spec: spec.clone(),
        dtype: DType::F32,
        quantized: None,
        weights,
        warnings: ModelWarnings::default(),
    }
}

/// Returns a specification with the same options that can be split for all of these tests.
fn divisible(mut spec: DecoderSpec, kv_heads: usize, group: usize) -> DecoderSpec {
    for layer in &mut spec.layers {
        if let Some(recurrent) = layer.attention.recurrent_mut() {
            recurrent.heads.key_heads *= 4;
            recurrent.heads.heads *= 4;
        }
        widen(&mut layer.mlp);
        let Some(heads) = layer.attention.heads_mut() else { continue };
        heads.layout.heads = kv_heads * group;
        heads.layout.kv_heads = if heads.latent.is_some() { 1 } else { kv_heads };
        if let Positions::Linear(slopes) = &mut heads.positions {
            slopes.all = heads.layout.heads;
        }
        if let Positions::Distance(biased) = &mut heads.positions {
            biased.all = heads.layout.heads;
        }
        if heads.head_norm == HeadNormPlan::AllHeads {
            heads.head_norm = HeadNormPlan::PerHead;
        }
    }
    spec
}

/// Makes the width of an MLP divisible.
fn widen(mlp: &mut Mlp) {
    match mlp {
        Mlp::Gated(mlp) | Mlp::Plain(mlp) => mlp.width *= 4,
        Mlp::Experts(experts) => {
            experts.width *= 4;
            experts.shared.iter_mut().for_each(|shared| shared.width *= 4);
        }
        Mlp::None => {}
    }
}

/// Computes the logits of every position of a prompt: first a chunk, then one token after the
/// other. A model whose attention is bidirectional computes the prompt at once.
fn logits<B: HostMemory>(harness: &mut Harness<'_, B>, prompt: &[u32]) -> Vec<Vec<f32>> {
    let blocks: Vec<u32> = (0..8).rev().collect();
    let is_whole = harness.decoder.spec().is_bidirectional();
    let (first, rest) = prompt.split_at(if is_whole { prompt.len() } else { prompt.len() / 2 + 1 });
    let mut all = harness.step(&[Chunk { tokens: first, start: 0, blocks: &blocks }]);
    for (index, token) in rest.iter().enumerate() {
        let start = first.len() + index;
        all.extend(harness.step(&[Chunk { tokens: &[*token], start, blocks: &blocks }]));
    }
    all
}

/// Computes the logits of the prompt on each rank of a group.
fn by_ranks<B: HostMemory>(
    device: impl Fn() -> B + Sync,
    spec: &DecoderSpec,
    seed: u64,
    world_size: usize,
    prompt: &[u32],
    transport: Transport,
) -> Vec<Vec<Vec<f32>>> {
    let lead = collective::lead(transport, world_size, long()).unwrap();
    let address = lead.address();
    let mut lead = Some(lead);
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..world_size)
            .map(|rank| {
                let (address, device) = (&address, &device);
                let lead = lead.take();
                scope.spawn(move || {
                    let group = match lead {
                        Some(lead) => lead.wait(),
                        None => collective::join(address, rank, world_size, long()),
                    };
                    let share = Split { rank, world_size }.apply(model(spec, seed)).unwrap();
                    let device = device();
                    let ranks = Some(Box::new(HostCollectives::new(group.unwrap())) as _);
                    let weights = &*share.weights;
                    let mut harness =
                        Harness::among(&device, &share.spec, weights, DType::F32, &limits(DType::F32), ranks);
                    logits(&mut harness, prompt)
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn check<B: HostMemory>(
    device: impl Fn() -> B + Sync,
    spec: &DecoderSpec,
    seed: u64,
    (world_size, transport): (usize, Transport),
) -> Result<(), TestCaseError> {
    let mut random = Random(!seed);
    let mut prompt: Vec<u32> = (0..24).map(|_| random.below(spec.vocab) as u32).collect();
    // A prefix that is not the whole prompt.
    prompt[16] = SEPARATOR;
    let whole = device();
    let weights = MemoryWeights::random(spec, seed);
    let mut harness = Harness::new(&whole, spec, &weights, DType::F32, &limits(DType::F32));
    let expected = logits(&mut harness, &prompt);
    let found = by_ranks(&device, spec, seed, world_size, &prompt, transport);
    for rank in &found {
        prop_assert_eq!(rank, &found[0], "every rank has the same bits");
    }
    for (position, (found, expected)) in found[0].iter().zip(&expected).enumerate() {
        let expected: Vec<f64> = expected.iter().map(|logit| f64::from(*logit)).collect();
        let error = row_error(found, &expected);
        prop_assert!(error < ROUNDING, "position {position}: {error} is not below {ROUNDING}");
    }
    Ok(())
}

/// Bound on the error of a row of logits. Ranks add in another order than the whole model, and the
/// CPU's GELU and hyperbolic tangent have errors of 2e-7; later norms amplify both.
const ROUNDING: f64 = 5e-5;

fn cpu() -> Cpu {
    Cpu::new(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn shares_compute_what_the_whole_model_does(
        spec in specs(), kv in prop::sample::select(vec![1usize, 2, 4, 8]), group in 1usize..3,
        worlds in 1usize..3, seed: u64,
    ) {
        let world_size = 1usize << worlds;
        // There must be at least as many query heads as ranks.
        let group = group * world_size.div_ceil(kv);
        let spec = divisible(spec, kv, group);
        check(|| Reference, &spec, seed, (world_size, Transport::Shm))?;
        check(cpu, &spec, seed, (world_size, Transport::Shm))?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn shares_of_prefix_models_compute_what_the_whole_model_does(
        spec in specs().prop_map(prefix_model), kv in prop::sample::select(vec![1usize, 2, 4]), seed: u64,
    ) {
        let spec = divisible(spec, kv, 2);
        check(|| Reference, &spec, seed, (2, Transport::Shm))?;
        check(cpu, &spec, seed, (2, Transport::Shm))?;
    }

    #[test]
    fn shares_of_encoders_compute_what_the_whole_encoder_does(
        spec in specs().prop_map(encoder), kv in prop::sample::select(vec![1usize, 2, 4]), seed: u64,
    ) {
        let spec = divisible(spec, kv, 2);
        check(|| Reference, &spec, seed, (2, Transport::Shm))?;
        check(cpu, &spec, seed, (2, Transport::Shm))?;
    }
}

#[test]
fn all_transports_give_the_same_bits() {
    let spec = divisible(crate::common::fixed_spec(), 2, 2);
    let prompt = [1, 5, 9, 31, 7, 7, 2];
    let transports = [Transport::Shm, Transport::Tcp([127, 0, 0, 1].into())];
    let [shm, tcp] = transports.map(|transport| by_ranks(|| Reference, &spec, 3, 4, &prompt, transport));
    assert_eq!(shm, tcp);
}

/// Each rank reads its share, rounded up to whole rows of the vocabulary, and the weights that
/// every rank holds.
#[test]
fn each_rank_reads_its_share_alone() {
    for (kv_heads, vocab) in [(4, 33), (1, 64), (2, 35)] {
        let mut spec = divisible(crate::common::fixed_spec(), kv_heads, 8 / kv_heads);
        (spec.vocab, spec.vocab_rows) = (vocab, 0..vocab);
        for layer in &mut spec.layers {
            let heads = layer.attention.heads_mut().unwrap();
            (heads.qkv_bias, heads.out_bias) = (true, true);
            layer.mlp.dense_mut().unwrap().down_bias = true;
        }
        let bytes = |slot| 4 * spec.shape(slot).0 * spec.shape(slot).1;
        for world_size in [1, 2, 4] {
            let read: Vec<usize> = (0..world_size)
                .map(|rank| {
                    let share = Split { rank, world_size }.apply(model(&spec, 1)).unwrap();
                    let weights =
                        Weights::load(&Reference, &share.spec, &*share.weights, DType::F32, 16, &mut |_| {
                            Ok(())
                        });
                    weights.unwrap().bytes_read()
                })
                .collect();
            let mut expected = vec![0; world_size];
            for (rank, expected) in expected.iter_mut().enumerate() {
                for slot in spec.slots() {
                    *expected += match slot {
                        WeightSlot::Embedding | WeightSlot::Head => {
                            vocab.div_ceil(world_size) * spec.hidden * 4
                        }
                        WeightSlot::Layer(_, LayerSlot::OutBias | LayerSlot::DownBias) if rank > 0 => 0,
                        WeightSlot::Layer(_, LayerSlot::Qkv | LayerSlot::QkvBias) => {
                            let all = 8 + 2 * kv_heads;
                            let mine = 8 / world_size + 2 * kv_heads.div_ceil(world_size);
                            bytes(slot) / all * mine
                        }
                        WeightSlot::Layer(
                            _,
                            LayerSlot::Out | LayerSlot::GateUp | LayerSlot::GateUpBias | LayerSlot::Down,
                        ) => bytes(slot) / world_size,
                        _ => bytes(slot),
                    };
                }
            }
            println!("{kv_heads} KV heads, vocabulary of {vocab}: {read:?} bytes read by {world_size} ranks");
            assert_eq!(read, expected);
        }
    }
}

#[test]
fn an_uneven_split_is_refused_with_the_sizes_that_work() {
    let spec = divisible(crate::common::fixed_spec(), 2, 6);
    let refused = |world_size| match (Split { rank: 0, world_size }).apply(model(&spec, 1)) {
        Ok(_) => panic!("{world_size} ranks"),
        Err(indivisible) => indivisible.to_string(),
    };
    assert_eq!(
        refused(5),
        "--num-shard 5 does not fit this model: its 12 attention heads cannot be shared evenly. \
         Sizes that work: 1, 2, 4, 6, 12"
    );
    assert!(refused(3).contains("its 2 key/value heads can be neither shared nor repeated evenly"));
}
