//! Tests that the ranks of a pipeline, which have some layers each, compute the logits of the whole
//! model.

use std::thread;

use crate::common::{Chunk, Harness, MemoryWeights, divisible, encoder, fixed_spec, limits, long, specs};
use millrace_backend::HostMemory;
use millrace_backend::reference::Reference;
use millrace_cpu::{Cpu, CpuOptions};
use millrace_model::DecoderSpec;
use millrace_model::memory_plan::{UnpaddedDevice, footprint, weight_bytes};
use millrace_model::split::LayerShare;
use millrace_numbers::DType;
use millrace_shard::HostCollectives;
use millrace_shard::collective::{self, Transport};
use millrace_shard::decoder::ModelPart;
use proptest::prelude::*;

const PROMPT: [u32; 11] = [3, 1, 4, 1, 5, 7, 2, 6, 5, 3, 5];

/// The blocks of two sequences.
const BLOCKS: [[u32; 2]; 2] = [[3, 0], [1, 2]];

/// Computes the logits of two sequences, whose prompts and next tokens are in steps together.
fn logits<B: HostMemory>(harness: &mut Harness<'_, B>) -> Vec<Vec<f32>> {
    let chunk = |sequence: usize, start: usize, end: usize| Chunk {
        tokens: &PROMPT[start..end],
        start,
        blocks: &BLOCKS[sequence],
    };
    let steps: &[&[Chunk<'_>]] = match harness.decoder.spec().is_bidirectional() {
        true => &[&[chunk(0, 0, 9), chunk(1, 0, 5)]],
        false => &[
            &[chunk(0, 0, 6)],
            &[chunk(0, 6, 9), chunk(1, 0, 5)],
            &[chunk(1, 5, 6), chunk(0, 9, 10)],
            &[chunk(0, 10, 11)],
        ],
    };
    steps.iter().flat_map(|step| harness.step(step)).collect()
}

/// Computes the logits on rank 0 of a pipeline.
fn by_pipeline<B: HostMemory>(
    device: impl Fn() -> B + Sync,
    whole: &DecoderSpec,
    seed: u64,
    world_size: usize,
    transport: Transport,
) -> Vec<Vec<f32>> {
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
                    let share = LayerShare { rank, world_size };
                    let (layers, spec) = (share.layers(whole).unwrap(), share.spec(whole.clone()));
                    let weights = MemoryWeights::random(whole, seed);
                    let (device, limits) = (device(), limits(DType::F32));
                    let ranks = Box::new(HostCollectives::new(group.unwrap()));
                    let part = ModelPart { spec: &spec, layers };
                    let mut harness = Harness::in_pipeline(&device, part, &weights, &limits, ranks);
                    logits(&mut harness)
                })
            })
            .collect();
        let mut all: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        all.swap_remove(0)
    })
}

fn check<B: HostMemory>(
    device: impl Fn() -> B + Sync,
    spec: &DecoderSpec,
    seed: u64,
) -> Result<(), TestCaseError> {
    let whole = device();
    let weights = MemoryWeights::random(spec, seed);
    let mut harness = Harness::new(&whole, spec, &weights, DType::F32, &limits(DType::F32));
    let expected = logits(&mut harness);
    for world_size in 2..=spec.layers.len() {
        let found = by_pipeline(&device, spec, seed, world_size, Transport::Shm);
        prop_assert!(found == expected, "{} ranks give other bits than one", world_size);
    }
    Ok(())
}

fn cpu() -> Cpu {
    Cpu::new(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    /// States are passed on in float32, so that not even the last bit changes.
    #[test]
    fn a_pipeline_gives_the_bits_of_the_whole_model(spec in specs().prop_map(divisible), is_encoder: bool, seed: u64) {
        let spec = if is_encoder { encoder(spec) } else { spec };
        check(|| Reference, &spec, seed)?;
        check(cpu, &spec, seed)?;
    }
}

#[test]
fn both_transports_give_the_same_bits() {
    let mut spec = fixed_spec();
    spec.layers.resize(5, spec.layers[0].clone());
    let transports = [Transport::Shm, Transport::Tcp([127, 0, 0, 1].into())];
    let [shm, tcp] = transports.map(|transport| by_pipeline(|| Reference, &spec, 3, 4, transport));
    assert_eq!(shm, tcp);
}

#[test]
fn each_layer_is_on_one_rank_and_the_ends_are_on_the_first() {
    let mut spec = fixed_spec();
    spec.layers.resize(5, spec.layers[0].clone());
    let of = |rank: usize| {
        let share = LayerShare { rank, world_size: 2 };
        let held = share.spec(spec.clone());
        let layers = held.layers[share.layers(&spec).unwrap()].to_vec();
        DecoderSpec { layers, ..held }
    };
    let [first, second] = [0, 1].map(of);
    assert_eq!((first.layers.len(), second.layers.len()), (2, 3));
    assert_eq!((first.has_ends(), second.has_ends()), (true, false));
    let bytes = |spec: &DecoderSpec| weight_bytes(spec, &DType::F32.into(), &UnpaddedDevice);
    assert_eq!(bytes(&first) + bytes(&second), bytes(&spec));
    let plan = |spec: &DecoderSpec| footprint(spec, DType::F32, &limits(DType::F32), 2, &UnpaddedDevice);
    assert_eq!(plan(&first).kv_pool + plan(&second).kv_pool, plan(&spec).kv_pool);
    assert!(plan(&second).logits < plan(&first).logits);
    let error = LayerShare { rank: 0, world_size: 6 }.layers(&spec).unwrap_err().to_string();
    assert!(error.contains("--pipeline-parallel 6: this model has 5 layers"), "{error}");
}
