//! Tests that a GPU with recorded steps, which computes one step before it has told the
//! tokens of the last one, continues sequences as the CPU does.

use std::collections::VecDeque;

use crate::common::{Chunk, Harness, repository};
use millrace_backend::{
    DeviceTypes, KvFormat, SampleRow, SampledRows, SamplingParams, SeqRow, StepInput, StepQueue,
};
use millrace_cpu::{Activations, Cpu, CpuOptions};
use millrace_cuda::{Cuda, Device};
use millrace_formats::Source;
use millrace_model::families::{self, Overrides};
use millrace_model::{AdapterLimits, Model, ShardLimits};
use millrace_numbers::DType;
use millrace_shard::decoder::{Decoder, Weights};
use millrace_shard::offline::{BenchWorkload, OfflineEngine};
use millrace_shard::{DeviceKind, ShardOptions};

const LIMITS: ShardLimits = ShardLimits {
    max_step_tokens: 32,
    max_sequences: 4,
    max_sequence_tokens: 32,
    block_size: 16,
    state_checkpoints: 0,
    max_drafts: 0,
    adapters: AdapterLimits::NONE,
    num_blocks: 8,
    kv_format: KvFormat::Dense(DType::F32),
};

/// The prompts of the sequences.
const PROMPTS: [&[u32]; 4] =
    [&[3, 14, 15, 9, 26, 5], &[7, 7, 7], &[31, 0, 15, 6, 2, 1, 40, 12, 9, 33, 4], &[11, 2, 30]];

/// The slot of each sequence, and its blocks. The last sequence takes those of the first.
const PLACES: [(usize, [u32; 2]); 4] = [(2, [5, 0]), (0, [3, 1]), (3, [4, 2]), (2, [0, 5])];

/// The rows of each step: a sequence, its first position, and its number of positions. Rows of one
/// token come first. A token is sampled after the last one that is known.
const STEPS: &[&[(usize, usize, usize)]] = &[
    &[(0, 0, 4), (1, 0, 3)],
    &[(1, 3, 1), (0, 4, 2), (2, 0, 5)],
    &[(1, 4, 1), (0, 6, 1), (2, 5, 6)],
    // Steps of decode rows are recorded.
    &[(2, 11, 1), (0, 7, 1), (1, 5, 1)],
    &[(1, 6, 1), (2, 12, 1), (0, 8, 1)],
    &[(0, 9, 1), (1, 7, 1), (2, 13, 1)],
    &[(2, 14, 1), (3, 0, 3)],
    &[(3, 3, 1)],
    &[(1, 8, 1), (3, 4, 1)],
    &[(3, 5, 1), (2, 15, 1), (1, 9, 1)],
];

fn golden(name: &str) -> Model {
    let folder = repository().join("integration-tests/golden").join(name);
    families::load(&Source::Directory(folder), &Overrides::default()).unwrap()
}

/// Computes the greedy continuation on the CPU, by running the whole sequence again for each token.
fn expected(model: &Model, prompt: &[u32], count: usize) -> Vec<u32> {
    let activations = Activations::Exact;
    let options = CpuOptions { threads: Some(1), isa: None, activations, cache: None, cores: Vec::new() };
    let cpu = Cpu::new(options).unwrap();
    // The harness asks for the logits of all tokens.
    let limits = ShardLimits { max_sequences: LIMITS.max_step_tokens, ..LIMITS };
    let mut harness = Harness::new(&cpu, &model.spec, &*model.weights, DType::F32, &limits);
    let mut tokens = prompt.to_vec();
    for _ in 0..count {
        let logits = harness.step(&[Chunk { tokens: &tokens, start: 0, blocks: &[0, 1] }]);
        let last = logits.last().unwrap();
        let best = (0..last.len()).reduce(|a, b| if last[b] > last[a] { b } else { a }).unwrap();
        tokens.push(best as u32);
    }
    tokens.split_off(prompt.len())
}

/// Computes [`STEPS`] on the GPU under test, and returns the tokens that each sequence is sampled.
fn sampled(model: &Model) -> [Vec<u32>; 4] {
    let gpu = Cuda::new(Device::under_test().unwrap(), DType::F32);
    let positions = LIMITS.max_sequence_tokens;
    let weights =
        Weights::load(&gpu, &model.spec, &*model.weights, DType::F32, positions, &mut |_| Ok(())).unwrap();
    let mut decoder = Decoder::new(&gpu, model.spec.clone(), weights, &LIMITS, None).unwrap();
    let mut queue = decoder.queue(&gpu, &LIMITS).unwrap();
    for rows in [2, 4] {
        assert!(decoder.record(&gpu, &mut queue, rows).unwrap());
    }
    let params = SamplingParams::default();
    let (mut found, mut results) = ([const { Vec::new() }; 4], SampledRows::default());
    let mut submitted = VecDeque::new();
    for rows in STEPS {
        for &(sequence, ..) in rows.iter().filter(|row| row.1 == 0) {
            gpu.admit(&mut queue, PLACES[sequence].0, PROMPTS[sequence], &params).unwrap();
        }
        let of_step: Vec<SeqRow<'_>> = rows
            .iter()
            .map(|&(sequence, start, count)| {
                let (slot, blocks) = &PLACES[sequence];
                let blocks = &blocks[..(start + count).div_ceil(LIMITS.block_size)];
                match count {
                    1 => SeqRow::decode(*slot, start, blocks),
                    _ => SeqRow::prefill(*slot, start..start + count, blocks),
                }
            })
            .collect();
        let (mut end, mut outputs, mut sequences, mut samples) = (0, vec![], vec![], vec![]);
        for &(sequence, start, count) in *rows {
            end += count as u32;
            let prompt = PROMPTS[sequence];
            if start + count >= prompt.len() {
                outputs.push(end - 1);
                sequences.push(sequence);
                samples.push(SampleRow {
                    params: &params,
                    tokens: prompt,
                    prompt_len: prompt.len(),
                    allowed: None,
                });
            }
        }
        // The device knows the tokens, of which the last ones have not been collected.
        let tokens = vec![0; end as usize];
        let input = StepInput {
            tokens: &tokens,
            rows: &of_step,
            outputs: &outputs,
            samples: &samples,
            ..StepInput::EMPTY
        };
        let step = decoder.compute(&gpu, &mut queue, &input).unwrap();
        let step = decoder.sample(&gpu, step, &samples).unwrap();
        submitted.push_back((gpu.finish(step).unwrap(), sequences));
        if submitted.len() == gpu.steps_ahead() {
            collect(&gpu, &mut queue, submitted.pop_front().unwrap(), &mut results, &mut found);
        }
    }
    for step in submitted {
        collect(&gpu, &mut queue, step, &mut results, &mut found);
    }
    found
}

/// Waits for a step, and appends a token to each of its sequences.
fn collect(
    gpu: &Cuda,
    queue: &mut <Cuda as DeviceTypes>::Queue,
    (step, sequences): (<Cuda as StepQueue>::FinishedStep, Vec<usize>),
    results: &mut SampledRows,
    found: &mut [Vec<u32>; 4],
) {
    let before = results.len();
    gpu.collect(queue, step, results).unwrap();
    let new = &results.tokens()[before..];
    assert_eq!(new.len(), sequences.len());
    sequences.iter().zip(new).for_each(|(&sequence, sampled)| found[sequence].push(sampled.token));
}

/// A shard plans the memory of recurrent states on a GPU, records its steps, and computes prompts
/// in chunks beside each other.
#[cfg(unix)]
#[test]
fn a_shard_with_recurrent_layers_starts_on_a_gpu() {
    for name in ["qwen3_next", "granitemoehybrid", "lfm2"] {
        let options = ShardOptions {
            device: DeviceKind::CudaSim,
            graph_sizes: Some(vec![2, 4]),
            max_sequences: 4,
            max_step_tokens: 8,
            ..crate::common::router::options()
        };
        let mut engine = OfflineEngine::load(&options, Box::new(|| Ok(golden(name).into()))).unwrap();
        let spec = golden(name).spec;
        let recurrent = spec.layers.iter().filter_map(|layer| layer.attention.recurrent());
        let states: usize = recurrent.map(|layer| layer.state_spec(4, 4).bytes()).sum();
        let planned = engine.ready().memory.iter().find(|item| item.name == "recurrent states").unwrap();
        assert!(states > 0 && planned.bytes == states as u64, "{name}: {planned:?}, not {states}");
        let times = engine.run(&BenchWorkload { batch: 3, prompt: 7, generate: 5 }).unwrap();
        assert_eq!(times.decode.len(), 5, "{name}");
    }
}

#[test]
fn recorded_steps_continue_sequences_as_the_cpu_does() {
    for name in ["llama_mha", "qwen3_next", "qwen3_5_text", "granitemoehybrid", "lfm2"] {
        let model = golden(name);
        for (sequence, found) in sampled(&model).into_iter().enumerate() {
            assert!(found.len() >= 4, "{name}");
            assert_eq!(
                found,
                expected(&model, PROMPTS[sequence], found.len()),
                "{name}, sequence {sequence}"
            );
        }
    }
}
