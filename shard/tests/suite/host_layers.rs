//! Tests models whose first layers the host computes, and whose other layers a device computes: for
//! every number of layers on the host, the logits are those of the model on one device.

use crate::common::{MemoryWeights, POSITIONS, divisible, repository, row_error, specs};
use millrace_backend::reference::Reference;
use millrace_backend::{Backend, KvFormat, SamplingParams, SeqRow, StepInput};
use millrace_cpu::{Activations, Cpu, CpuOptions};
use millrace_formats::Source;
use millrace_model::families::{self, Overrides};
use millrace_model::{AdapterLimits, DecoderSpec, Model, ShardLimits, WeightSource, WeightStorage};
use millrace_numbers::DType;
use millrace_shard::decoder::{Decoder, HostLayers, ModelPart, Weights};
use proptest::prelude::*;

/// Bound on the largest difference in a row of logits, relative to its largest element.
const TOLERANCE: f64 = 1e-4;

const LIMITS: ShardLimits = ShardLimits {
    max_step_tokens: 32,
    max_sequences: 32,
    max_sequence_tokens: 32,
    block_size: 16,
    state_checkpoints: 0,
    max_drafts: 0,
    adapters: AdapterLimits::NONE,
    num_blocks: 6,
    kv_format: KvFormat::Dense(DType::F32),
};

/// The blocks of the three sequences of [`STEPS`].
const BLOCKS: [[u32; 2]; 3] = [[5, 0], [3, 1], [4, 2]];

/// The rows of each step: a sequence and its positions. Prompts come in chunks, rows of one token
/// decode beside them, and the last step has decode rows only.
const STEPS: [&[(usize, std::ops::Range<usize>)]; 5] = [
    &[(0, 0..9)],
    &[(0, 9..18), (1, 0..3)],
    &[(0, 18..19), (1, 3..17), (2, 0..4)],
    &[(0, 19..20), (2, 4..5), (1, 17..18)],
    &[(1, 18..19), (0, 20..21), (2, 5..6)],
];

fn cpu() -> Cpu {
    let activations = Activations::Exact;
    Cpu::new(CpuOptions { threads: Some(2), isa: None, activations, cache: None, cores: Vec::new() }).unwrap()
}

/// A model, and the formats of its weights on the device and on the host.
struct Split<'a> {
    spec: &'a DecoderSpec,
    source: &'a dyn WeightSource,
    storage: WeightStorage,
    host_storage: WeightStorage,
    limits: ShardLimits,
}

impl<'a> Split<'a> {
    /// Creates a model whose weights and KV cache are in single precision on both sides.
    fn exact(spec: &'a DecoderSpec, source: &'a dyn WeightSource) -> Self {
        let storage: WeightStorage = DType::F32.into();
        Split { spec, source, host_storage: storage.clone(), storage, limits: LIMITS }
    }

    /// Returns the logits of every token of [`STEPS`], with the first `host_layers` layers on the
    /// host.
    fn logits<B: Backend>(&self, device: &B, host_layers: usize) -> Vec<Vec<f32>> {
        let Split { spec, source, limits, .. } = *self;
        let mut ignore = |_| Ok(());
        let part = ModelPart { spec, layers: host_layers..spec.layers.len() };
        let positions = limits.max_sequence_tokens;
        let weights =
            Weights::load(device, part, source, self.storage.clone(), positions, &mut ignore).unwrap();
        let mut decoder = Decoder::new(device, spec.clone(), weights, &limits, None).unwrap();
        if host_layers > 0 {
            let part = ModelPart { spec, layers: 0..host_layers };
            let storage = self.host_storage.clone();
            let host = HostLayers::load(cpu(), &part, source, storage, &limits, &mut ignore).unwrap();
            decoder = decoder.with_host_layers(host);
        }
        let mut queue = decoder.queue(device, &limits).unwrap();
        assert!(
            host_layers == 0 || !decoder.record(device, &mut queue, 2).unwrap(),
            "a graph without host layers"
        );
        let token = |sequence: usize, position: usize| ((7 * sequence + 5 * position) % spec.vocab) as u32;
        for sequence in 0..BLOCKS.len() {
            let tokens: Vec<u32> = (0..21).map(|position| token(sequence, position)).collect();
            device.admit(&mut queue, sequence, &tokens, &SamplingParams::default()).unwrap();
        }
        let mut all = Vec::new();
        for step in STEPS {
            let row = |(sequence, positions): &(usize, std::ops::Range<usize>)| {
                let blocks = &BLOCKS[*sequence][..positions.end.div_ceil(limits.block_size)];
                match positions.start > 0 && positions.len() == 1 {
                    true => SeqRow::decode(*sequence, positions.start, blocks),
                    false => SeqRow::prefill(*sequence, positions.clone(), blocks),
                }
            };
            let mut rows: Vec<SeqRow<'_>> = step.iter().map(row).collect();
            rows.sort_by_key(|row| !row.decodes());
            let tokens =
                rows.iter().flat_map(|row| (row.start..row.start + row.count).map(|p| (row.slot, p)));
            let tokens: Vec<u32> = tokens.map(|(sequence, position)| token(sequence, position)).collect();
            let outputs: Vec<u32> = (0..tokens.len() as u32).collect();
            let input = StepInput {
                tokens: &tokens,
                rows: &rows,
                outputs: &outputs,
                samples: &[],
                ..StepInput::EMPTY
            };
            let _ = decoder.compute(device, &mut queue, &input).unwrap();
            let logits = decoder.logits(device, tokens.len()).unwrap();
            all.extend(logits.chunks_exact(spec.vocab).map(<[f32]>::to_vec));
        }
        all
    }
}

#[track_caller]
fn assert_rows(case: &str, found: &[Vec<f32>], expected: &[Vec<f32>], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{case}");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let expected: Vec<f64> = expected.iter().map(|&x| x.into()).collect();
        let error = row_error(found, &expected);
        assert!(error < tolerance, "{case}, row {i}: relative error {error:e}");
    }
}

#[cfg(feature = "cpu-sim")]
fn golden(name: &str) -> Model {
    let folder = repository().join("integration-tests/golden").join(name);
    families::load(&Source::Directory(folder), &Overrides::default()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Every combination of options, with the reference as the device.
    #[test]
    fn layers_on_the_host_do_not_change_the_logits(spec in specs().prop_map(divisible), seed: u64) {
        let weights = MemoryWeights::random(&spec, seed);
        let split = Split::exact(&spec, &weights);
        const { assert!(LIMITS.max_sequence_tokens <= POSITIONS) }
        let whole = split.logits(&Reference, 0);
        for host_layers in 1..spec.layers.len() {
            let found = split.logits(&Reference, host_layers);
            assert_rows(&format!("{host_layers} layers on the host"), &found, &whole, TOLERANCE);
        }
    }
}

/// The CUDA backend on the simulated GPU beside the CPU backend, for models with all kinds of
/// layers.
#[cfg(feature = "cpu-sim")]
#[test]
fn a_gpu_and_the_host_give_the_logits_of_the_cpu() {
    for name in [
        "llama_mha",
        "gemma2_layers",
        "gemma3_text",
        "cohere2",
        "smollm3",
        "olmo3",
        "gpt2_scales",
        "gpt_oss_layers",
        "qwen3_moe_sparse",
        "qwen2_sliding",
        "deepseek_v2_lite",
        "stablelm_parallel",
        "bloom",
        "qwen3_next",
        "qwen3_5_text",
        "granitemoehybrid",
        "lfm2",
    ] {
        let Model { spec, weights, .. } = golden(name);
        let split = Split::exact(&spec, &*weights);
        let whole = split.logits(&cpu(), 0);
        assert!(spec.layers.len() > 1, "{name}");
        for host_layers in 0..spec.layers.len() {
            let found = split.logits(&simulated(DType::F32), host_layers);
            assert_rows(&format!("{name}, {host_layers} layers on the host"), &found, &whole, TOLERANCE);
        }
    }
}

/// The host gets float32 states, and computes in its own way. The device rounds to its own type.
#[cfg(feature = "cpu-sim")]
#[test]
fn a_gpu_with_16_bits_rounds_on_its_own_side_only() {
    let Model { spec, weights, dtype, .. } = golden("llama_bf16");
    assert_eq!(dtype, DType::BF16);
    let limits = ShardLimits { kv_format: DType::BF16.into(), ..LIMITS };
    let storage: WeightStorage = DType::BF16.into();
    let (spec, source) = (&spec, &*weights);
    let split = Split { spec, source, host_storage: storage.clone(), storage, limits };
    let whole = split.logits(&cpu(), 0);
    let found = split.logits(&simulated(DType::BF16), 1);
    assert_rows("llama_bf16", &found, &whole, 0.05);
    assert_ne!(found, whole, "nothing was rounded");
}

#[cfg(feature = "cpu-sim")]
fn simulated(dtype: DType) -> millrace_cuda::Cuda {
    use millrace_cuda::{Cuda, Device};
    Cuda::new(Device::under_test().unwrap(), dtype)
}
