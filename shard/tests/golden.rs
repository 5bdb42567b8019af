//! Compares logits and greedy continuations with those of transformers, for every checkpoint in
//! `integration-tests/golden`.
//!
//! The README there describes the numbers. The shard rotates the token at position p as in a
//! sequence of `max(p + 1, original)` tokens, and never rotates it again. In the case with dynamic
//! NTK, transformers does the same only for tokens that it generates one by one
//! (`cached_continuation`) after a prompt of at most the original length. It rotates a longer
//! prompt as a whole, with the base for its full length. Only the numbers to which the shard's rule
//! applies are compared.

#![allow(clippy::unwrap_used, reason = "a test's helpers fail as tests do")]

mod common;

use std::path::{Path, PathBuf};

use common::{Chunk, Harness, row_error};
use millrace_kernels::cpu::{Activations, Cpu, CpuOptions, Isa};
use millrace_kernels::encoding::{CodeType, StoredCodes};
use millrace_kernels::{DType, KvFormat, WeightFormat};
use millrace_shard::ShardLimits;
use millrace_shard::Source;
use millrace_shard::families::{self, Overrides};
use millrace_shard::model::{LayerSlot, Model, RopeScaling, WeightSlot, WeightStorage};
use millrace_shard::split::Split;
use safetensors::SafeTensors;

/// Bound on the largest difference in a row of logits, relative to its largest element.
const TOLERANCE: f64 = 1e-4;
/// The bound where a CPU with BF16 rounds the inputs of products by bf16 weights, which have a
/// relative error of 2^-9 then. The expected numbers were computed in single precision.
const ROUNDED_TOLERANCE: f64 = 0.05;

const LIMITS: ShardLimits = ShardLimits {
    max_step_tokens: 96,
    max_sequences: 96,
    max_sequence_tokens: 96,
    block_size: 16,
    num_blocks: 6,
    kv_format: KvFormat::Dense(DType::F32),
};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../integration-tests/golden")
}

/// The file with the expected numbers of a checkpoint.
struct Golden<'a>(SafeTensors<'a>);

impl Golden<'_> {
    fn words(&self, name: &str) -> Option<Vec<[u8; 4]>> {
        let tensor = self.0.tensor(name).ok()?;
        Some(tensor.data().chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]).collect())
    }

    fn ids(&self, name: &str) -> Option<Vec<u32>> {
        Some(self.words(name)?.into_iter().map(u32::from_le_bytes).collect())
    }

    /// The rows of a matrix.
    fn rows(&self, name: &str) -> Vec<Vec<f64>> {
        let cols = self.0.tensor(name).unwrap().shape()[1];
        let values: Vec<f64> =
            self.words(name).unwrap().into_iter().map(|word| f64::from(f32::from_le_bytes(word))).collect();
        values.chunks_exact(cols).map(<[f64]>::to_vec).collect()
    }
}

/// A greedy generation in the shard.
struct Generation {
    /// Logits of every position of the prompt.
    prompt: Vec<Vec<f32>>,
    ids: Vec<u32>,
    /// The logits that each of `ids` was chosen from.
    chosen_from: Vec<Vec<f32>>,
}

fn generate(harness: &mut Harness<'_, Cpu>, prompt: &[u32], count: usize) -> Generation {
    let blocks = [5, 0, 3, 1, 4, 2];
    let logits = harness.step(&[Chunk { tokens: prompt, start: 0, blocks: &blocks }]);
    let mut generation =
        Generation { chosen_from: vec![logits.last().unwrap().clone()], prompt: logits, ids: vec![] };
    loop {
        let last = generation.chosen_from.last().unwrap();
        let best = (0..last.len()).reduce(|a, b| if last[b] > last[a] { b } else { a }).unwrap();
        generation.ids.push(best as u32);
        if generation.ids.len() == count {
            return generation;
        }
        let start = prompt.len() + generation.ids.len() - 1;
        let token = [best as u32];
        let step = harness.step(&[Chunk { tokens: &token, start, blocks: &blocks }]);
        generation.chosen_from.extend(step);
    }
}

#[track_caller]
fn assert_rows(case: &str, found: &[Vec<f32>], expected: &[Vec<f64>]) {
    assert_eq!(found.len(), expected.len(), "{case}");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = row_error(found, expected);
        assert!(error < TOLERANCE, "{case}, row {i}: relative error {error:e}");
    }
}

/// Compares one checkpoint and returns how many prompts it has.
fn check(name: &str) -> usize {
    let folder = folder().join(name);
    let model = families::load(&Source::Directory(folder.clone()), &Overrides::default()).unwrap();
    let cpu = cpu(Activations::Exact, None);
    let storage = WeightStorage::choose(model.dtype, None, &model, &cpu).unwrap();
    let Model { mut spec, weights, .. } = model;
    let dynamic = spec.ropes.iter().find_map(|rope| match rope.scaling {
        RopeScaling::Dynamic { original, .. } => Some(original),
        _ => None,
    });
    // The sequences of the dynamic case are longer than the limit on purpose.
    spec.max_positions = 96;
    let mut harness = Harness::new(&cpu, &spec, &*weights, storage, &LIMITS);

    let bytes = std::fs::read(folder.join("golden.safetensors")).unwrap();
    let golden = Golden(SafeTensors::deserialize(&bytes).unwrap());
    let prompts = (0..).map_while(|i| Some((i, golden.ids(&format!("prompt_ids.{i}"))?)));
    let mut compared = 0;
    for (i, prompt) in prompts {
        compared += 1;
        let case = format!("{name}.{i}");
        let of = |tensor: &str| format!("{tensor}.{i}");
        if dynamic.is_some_and(|original| prompt.len() > original) {
            // Only its beginnings are defined under the shard's rule.
            let lengths = golden.ids(&of("last_lengths")).unwrap();
            let expected = golden.rows(&of("last_logits"));
            let beginnings = lengths.iter().zip(expected).filter(|(n, _)| **n as usize <= dynamic.unwrap());
            let mut rows = 0;
            for (n, expected) in beginnings {
                let found = generate(&mut harness, &prompt[..*n as usize], 1).chosen_from;
                assert_rows(&format!("{case}, the first {n}"), &found, &[expected]);
                rows += 1;
            }
            assert!(rows >= 2, "{case}");
            continue;
        }
        let rule = if dynamic.is_some() { "cached_continuation" } else { "continuation" };
        let ids = golden.ids(&of(&format!("{rule}_ids"))).unwrap();
        let found = generate(&mut harness, &prompt, ids.len());
        assert_rows(&case, &found.prompt, &golden.rows(&of("logits")));
        assert_eq!(found.ids, ids, "{case}");
        assert_rows(
            &format!("{case}, continued"),
            &found.chosen_from,
            &golden.rows(&of(&format!("{rule}_logits"))),
        );
    }
    compared
}

fn cpu(activations: Activations, isa: Option<Isa>) -> Cpu {
    Cpu::new(CpuOptions { threads: Some(2), activations, isa, cache: None, cores: Vec::new() }).unwrap()
}

#[test]
fn rounded_activations_change_the_logits_of_bf16_models_little() {
    let folder = folder().join("llama_bf16");
    let Model { spec, dtype, weights, .. } =
        families::load(&Source::Directory(folder.clone()), &Overrides::default()).unwrap();
    assert_eq!(dtype, DType::BF16);
    let bytes = std::fs::read(folder.join("golden.safetensors")).unwrap();
    let golden = Golden(SafeTensors::deserialize(&bytes).unwrap());
    let (prompt, expected) = (golden.ids("prompt_ids.0").unwrap(), golden.rows("logits.0"));
    let logits = |activations, isa| {
        let cpu = cpu(activations, isa);
        let mut harness = Harness::new(&cpu, &spec, &*weights, dtype, &LIMITS);
        generate(&mut harness, &prompt, 1).prompt
    };
    let worst = |found: &[Vec<f32>]| {
        found.iter().zip(&expected).map(|(found, expected)| row_error(found, expected)).fold(0.0, f64::max)
    };
    let exact = logits(Activations::Exact, None);
    assert!(worst(&exact) < TOLERANCE, "{:e}", worst(&exact));
    // The portable set rounds on every machine.
    for isa in [Some(Isa::Portable), None] {
        let rounded = logits(Activations::Rounded, isa);
        assert!(worst(&rounded) < ROUNDED_TOLERANCE, "{isa:?}: {:e}", worst(&rounded));
        assert!(isa.is_none() || rounded != exact, "nothing was rounded");
    }
}

/// Experts in MXFP4 keep their codes. A share of input features that begins in the middle of a
/// block has groups of half a block, and one that begins elsewhere within a block is converted.
#[test]
fn experts_in_mxfp4_keep_their_codes() {
    let cpu = cpu(Activations::Exact, None);
    let codes = |cols| WeightFormat::Codes(StoredCodes { codes: CodeType::FourBits, cols });
    let slots = [LayerSlot::ExpertGateUp, LayerSlot::ExpertDown].map(|slot| WeightSlot::Layer(0, slot));
    let cases = [
        ("gpt_oss_mxfp4", (0, 1), codes(32)),
        ("gpt_oss_mxfp4", (1, 2), codes(16)),
        ("gpt_oss_mxfp4", (3, 4), DType::F32.into()),
        ("gpt_oss_mxfp4_wide", (1, 2), codes(32)),
    ];
    for (name, (rank, world_size), down) in cases {
        let model = families::load(&Source::Directory(folder().join(name)), &Overrides::default()).unwrap();
        let share = Split { rank, world_size }.apply(model).unwrap();
        let storage = WeightStorage::choose(share.dtype, None, &share, &cpu).unwrap();
        let formats = slots.map(|slot| storage.matrix(slot, share.spec.shape(slot).1));
        assert_eq!(formats, [codes(32), down], "{name}, rank {rank} of {world_size}");
        let is_converted = storage.warnings(&share.spec).iter().any(|warning| warning.contains("mxfp4"));
        assert_eq!(is_converted, down == DType::F32.into(), "{name}, rank {rank} of {world_size}");
    }
}

#[test]
fn every_checkpoint_gives_the_logits_of_transformers() {
    let mut cases: Vec<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().join("config.json").exists())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    cases.sort();
    assert!(cases.len() >= 32, "{} cases", cases.len());
    for case in cases {
        let prompts = check(&case);
        assert!(prompts >= 2, "{case} has {prompts} prompts");
    }
}
