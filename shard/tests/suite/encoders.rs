//! Tests of models with bidirectional attention: encoders, whose tokens attend to the whole prompt
//! and whose residual stream is normalized after each sum, and models whose prompts have a prefix.

use std::path::{Path, PathBuf};

use crate::common::{
    Chunk, Harness, MemoryWeights, Random, SEPARATOR, encoder, limits, naive, on_two_ranks, prefix_model,
    repository, row_error, specs,
};
use millrace_backend::Backend;
use millrace_backend::reference::Reference;
use millrace_cpu::{Cpu, CpuOptions};
use millrace_formats::Source;
use millrace_model::families::{self, Overrides};
use millrace_model::split::Split;
use millrace_model::{DecoderSpec, LayerSlot, Model, ShardLimits, WeightSlot};
use millrace_numbers::DType;
use proptest::prelude::*;
use safetensors::SafeTensors;

/// Bound on the largest difference in a state, relative to its largest element.
const TOLERANCE: f64 = 1e-4;

fn cpu(threads: usize) -> Cpu {
    Cpu::new(CpuOptions { threads: Some(threads), ..CpuOptions::default() }).unwrap()
}

/// A prompt, and the index of its first token of the second type, if it has such tokens.
type Prompt = (Vec<u32>, Option<usize>);

/// Computes the states of each prompt, all prompts in one step.
fn states<B: Backend>(backend: &B, spec: &DecoderSpec, seed: u64, prompts: &[Prompt]) -> Vec<Vec<Vec<f32>>> {
    let weights = MemoryWeights::random(spec, seed);
    let mut harness = Harness::new(backend, spec, &weights, DType::F32, &limits(DType::F32));
    let blocks: Vec<Vec<u32>> =
        (0..prompts.len() as u32).map(|i| (i * 4..i * 4 + 4).rev().collect()).collect();
    let chunks: Vec<Chunk<'_>> =
        prompts.iter().zip(&blocks).map(|((tokens, _), blocks)| Chunk { tokens, start: 0, blocks }).collect();
    prompts.iter().zip(&blocks).for_each(|((_, start), b)| harness.set_second_type_start(b[0], *start));
    let n = prompts.iter().map(|(tokens, _)| tokens.len()).sum();
    harness.forward(&chunks, &[0]);
    let all = harness.states(n);
    let mut rows = all.chunks_exact(spec.hidden).map(<[f32]>::to_vec);
    prompts.iter().map(|(tokens, _)| rows.by_ref().take(tokens.len()).collect()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn encoders_compute_what_their_definition_says(
        spec in specs().prop_map(encoder), seed: u64,
        lengths in prop::collection::vec((1usize..40, prop::option::of(0usize..40)), 1..4),
    ) {
        let mut random = Random(!seed);
        let mut prompt = |&(length, start): &(usize, Option<usize>)| -> Prompt {
            let tokens = (0..length).map(|_| random.below(spec.vocab) as u32).collect();
            (tokens, start.filter(|&start| start < length))
        };
        let prompts: Vec<Prompt> = lengths.iter().map(&mut prompt).collect();
        let weights = MemoryWeights::random(&spec, seed);
        let found = states(&Reference, &spec, seed, &prompts);
        let on_cpu = states(&cpu(1), &spec, seed, &prompts);
        naive::take_closest_choice();
        for ((prompt, found), on_cpu) in prompts.iter().zip(&found).zip(&on_cpu) {
            let expected = naive::typed_states(&spec, &weights, &prompt.0, prompt.1);
            prop_assume!(naive::take_closest_choice() > 1e-4);
            for ((found, on_cpu), expected) in found.iter().zip(on_cpu).zip(&expected) {
                prop_assert!(row_error(found, expected) < 5e-5, "{:e}", row_error(found, expected));
                prop_assert!(row_error(on_cpu, expected) < TOLERANCE, "{:e}", row_error(on_cpu, expected));
            }
        }
        // Neither threads nor the other prompts of a step change a bit.
        for (prompt, together) in prompts.iter().zip(&on_cpu) {
            prop_assert_eq!(&states(&cpu(2), &spec, seed, std::slice::from_ref(prompt))[0], together);
        }
    }
}

/// Computes the logits of each sequence: its first `first` tokens in one step with those of the
/// others, then the rest one by one, those of all sequences in one step.
fn generated<B: Backend>(
    backend: &B,
    spec: &DecoderSpec,
    weights: &MemoryWeights,
    sequences: &[(Vec<u32>, usize)],
) -> Vec<Vec<Vec<f32>>> {
    let mut harness = Harness::new(backend, spec, weights, DType::F32, &limits(DType::F32));
    let blocks: Vec<Vec<u32>> =
        (0..sequences.len() as u32).map(|i| (i * 4..i * 4 + 4).rev().collect()).collect();
    let mut found = vec![Vec::new(); sequences.len()];
    while found.iter().zip(sequences).any(|(rows, (tokens, _))| rows.len() < tokens.len()) {
        let (mut chunks, mut counts) = (Vec::new(), Vec::new());
        for (s, (tokens, first)) in sequences.iter().enumerate() {
            let start = found[s].len();
            let end = (*first).max(start + 1).min(tokens.len());
            if start < end {
                chunks.push(Chunk { tokens: &tokens[start..end], start, blocks: &blocks[s] });
                counts.push((s, end - start));
            }
        }
        let mut rows = harness.step(&chunks).into_iter();
        for (s, count) in counts {
            found[s].extend(rows.by_ref().take(count));
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn prefix_models_compute_what_their_definition_says(
        spec in specs().prop_map(prefix_model), seed: u64,
        lengths in prop::collection::vec((0usize..30, 0usize..6, 0usize..6), 1..4),
    ) {
        let mut random = Random(!seed);
        let mut sequence = |&(prefix, behind, generated): &(usize, usize, usize)| {
            let length = prefix + 1 + behind + generated;
            let mut tokens: Vec<u32> = (0..length).map(|_| random.below(spec.vocab) as u32).collect();
            // The first separator is the one behind the prefix.
            tokens[..prefix].iter_mut().filter(|token| **token == SEPARATOR).for_each(|token| *token = 0);
            tokens[prefix] = SEPARATOR;
            // The anchor is a mask of the prompt. The definition sees all tokens as a prompt.
            let is_mask = |token: &u32| (SEPARATOR + 1..SEPARATOR + 3).contains(token);
            tokens[prefix + 1 + behind..].iter_mut().filter(|t| is_mask(t)).for_each(|token| *token = 0);
            (tokens, prefix + 1 + behind)
        };
        let sequences: Vec<(Vec<u32>, usize)> = lengths.iter().map(&mut sequence).collect();
        let weights = MemoryWeights::random(&spec, seed);
        let found = generated(&Reference, &spec, &weights, &sequences);
        let on_cpu = generated(&cpu(1), &spec, &weights, &sequences);
        naive::take_closest_choice();
        for ((tokens, _), (found, on_cpu)) in sequences.iter().zip(found.iter().zip(&on_cpu)) {
            let expected = naive::logits(&spec, &weights, tokens);
            prop_assume!(naive::take_closest_choice() > 1e-4);
            for (row, ((found, on_cpu), expected)) in found.iter().zip(on_cpu).zip(&expected).enumerate() {
                let (exact, fast) = (row_error(found, expected), row_error(on_cpu, expected));
                prop_assert!(exact < 5e-5 && fast < TOLERANCE, "row {row}: {exact:e}, {fast:e}");
            }
        }
        // Neither threads nor the other sequences of a step change a bit.
        for (sequence, together) in sequences.iter().zip(&on_cpu) {
            let alone = generated(&cpu(2), &spec, &weights, std::slice::from_ref(sequence));
            prop_assert_eq!(&alone[0], together);
            // Nor does a recomputation with the generated tokens, as after a preemption.
            let all = (sequence.0.clone(), sequence.0.len());
            prop_assert_eq!(&generated(&cpu(1), &spec, &weights, &[all])[0], together);
        }
    }
}

fn folder() -> PathBuf {
    repository().join("integration-tests/golden-encoders")
}

/// A text of a checkpoint.
struct Text {
    ids: Vec<u32>,
    /// The index of the first token of the second type, if there are such tokens.
    second_type_start: Option<usize>,
    /// The states of transformers, `[tokens, hidden]`.
    states: Vec<f64>,
}

/// Returns the texts of a checkpoint.
fn texts(folder: &Path) -> Vec<Text> {
    let bytes = std::fs::read(folder.join("golden.safetensors")).unwrap();
    let golden = SafeTensors::deserialize(&bytes).unwrap();
    let words = |name: &str| -> Option<Vec<[u8; 4]>> {
        let data = golden.tensor(name).ok()?.data();
        Some(data.chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]).collect())
    };
    let text = |index: usize| {
        let ids = words(&format!("ids.{index}"))?.into_iter().map(u32::from_le_bytes).collect();
        let states = words(&format!("states.{index}")).unwrap();
        let states = states.into_iter().map(|word| f64::from(f32::from_le_bytes(word))).collect();
        let start = words(&format!("second_type_start.{index}"));
        let second_type_start = start.map(|start| u32::from_le_bytes(start[0]) as usize);
        Some(Text { ids, second_type_start, states })
    };
    (0..).map_while(text).collect()
}

fn load(folder: &Path) -> Model {
    let model = families::load(&Source::Directory(folder.to_owned()), &Overrides::default()).unwrap();
    assert!(model.spec.head.is_absent && model.spec.is_bidirectional(), "{}", folder.display());
    model
}

/// Limits for the longest text of a checkpoint.
fn long_limits() -> ShardLimits {
    ShardLimits { max_sequence_tokens: 128, ..limits(DType::F32) }
}

/// Compares the states of some texts, each in a step of its own, with those of transformers.
fn assert_states<B: Backend>(harness: &mut Harness<'_, B>, name: &str, texts: &[Text]) {
    let hidden = harness.decoder.spec().hidden;
    for (index, Text { ids, second_type_start, states }) in texts.iter().enumerate() {
        let blocks = [5, 0, 3, 1, 7, 2, 9, 4];
        harness.admit(blocks[0], ids);
        harness.set_second_type_start(blocks[0], *second_type_start);
        harness.forward(&[Chunk { tokens: ids, start: 0, blocks: &blocks }], &[0]);
        let found = harness.states(ids.len());
        let rows = found.chunks_exact(hidden).zip(states.chunks_exact(hidden));
        assert_eq!(rows.len(), ids.len(), "{name}");
        for (row, (found, expected)) in rows.enumerate() {
            let error = row_error(found, expected);
            assert!(error < TOLERANCE, "{name}.{index}, row {row}: relative error {error:e}");
        }
    }
}

/// Compares the states of one checkpoint with those of transformers. Returns the number of texts.
fn check(folder: &Path) -> usize {
    let (model, texts, cpu) = (load(folder), texts(folder), cpu(2));
    let mut harness = Harness::new(&cpu, &model.spec, &*model.weights, DType::F32, &long_limits());
    assert_states(&mut harness, &folder.display().to_string(), &texts);
    texts.len()
}

/// The folders of all checkpoints.
pub(crate) fn folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|folder| folder.join("config.json").exists())
        .collect();
    folders.sort();
    assert!(folders.len() >= 30, "{} checkpoints", folders.len());
    folders
}

#[test]
fn every_encoder_gives_the_states_of_transformers() {
    for folder in folders() {
        assert!(check(&folder) >= 2, "{}", folder.display());
    }
}

/// The package `gguf` has written the same weights under its names.
#[test]
fn gguf_files_give_the_states_of_transformers() {
    let files: Vec<PathBuf> = std::fs::read_dir(folder().join("../golden-gguf/encoders"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert!(files.len() >= 10, "{} files", files.len());
    for file in files {
        check_file(&folder().join(file.file_stem().unwrap()), &file);
    }
}

/// Computes the states of a checkpoint from a file with its weights.
pub(crate) fn check_file(checkpoint: &Path, file: &Path) {
    let model = families::load(&Source::File(file.to_owned()), &Overrides::default()).unwrap();
    let texts = texts(checkpoint);
    assert!(texts.len() >= 2, "{}", file.display());
    let (cpu, limits) = (cpu(2), long_limits());
    let mut harness = Harness::new(&cpu, &model.spec, &*model.weights, DType::F32, &limits);
    assert_states(&mut harness, &file.display().to_string(), &texts);
}

#[test]
fn two_shards_give_the_states_of_transformers() {
    let mut split = 0;
    for folder in folders() {
        if (Split { rank: 0, world_size: 2 }).spec(&load(&folder).spec).is_err() {
            continue;
        }
        split += 1;
        on_two_ranks(|rank, others| {
            let (share, cpu) = (rank.apply(load(&folder)).unwrap(), cpu(1));
            let (limits, others) = (limits(DType::F32), Some(Box::new(others) as _));
            let mut harness = Harness::among(&cpu, &share.spec, &*share.weights, DType::F32, &limits, others);
            assert_states(&mut harness, &folder.display().to_string(), &texts(&folder));
        });
    }
    assert!(split >= 27, "only {split} checkpoints were split");
}

/// The GPU under test computes in float32, so that the bound is that of the CPU.
#[cfg(feature = "cpu-sim")]
#[test]
fn a_gpu_gives_the_states_of_transformers() {
    use millrace_cuda::{Cuda, Device};

    let mut computed = 0;
    for folder in folders() {
        let (model, texts) = (load(&folder), texts(&folder));
        // `the_page_of_models` says the same of these models.
        if model.spec.cpu_only_part().is_some() {
            continue;
        }
        let gpu = Cuda::new(Device::under_test().unwrap(), DType::F32);
        let mut harness = Harness::new(&gpu, &model.spec, &*model.weights, DType::F32, &limits(DType::F32));
        assert_states(&mut harness, &folder.display().to_string(), &texts);
        computed += 1;
    }
    assert!(computed >= 12, "only {computed} checkpoints were computed");
}

/// Row 0 of the table of token types belongs to every position.
#[test]
fn positions_include_the_first_token_type() {
    let model = families::load(&Source::Directory(folder().join("bert")), &Overrides::default()).unwrap();
    let read = |slot| {
        let part = model.weights.parts(slot).unwrap().remove(0);
        let mut row = vec![0.0; part.tensor.cols];
        part.read_row(0, &mut row);
        row
    };
    let bytes = std::fs::read(folder().join("bert/model.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let first = |name: &str| -> Vec<f32> {
        let data = stored.tensor(name).unwrap().data();
        let floats = data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        floats.take(model.spec.hidden).collect()
    };
    let positions = first("embeddings.position_embeddings.weight");
    let types = first("embeddings.token_type_embeddings.weight");
    let sums: Vec<f32> = positions.iter().zip(&types).map(|(p, t)| p + t).collect();
    assert_eq!(read(WeightSlot::Positions), sums);
    let norms = [WeightSlot::EmbeddingNorm, WeightSlot::Layer(0, LayerSlot::MlpOutNormBias)];
    assert!(norms.iter().all(|slot| model.spec.slots().contains(slot)));
    assert!(!model.spec.slots().contains(&WeightSlot::FinalNorm));
}

/// Checkpoints that were converted from TensorFlow call scale and bias of a norm gamma and beta.
#[test]
fn norms_may_have_their_old_names() {
    for case in ["bert", "bert_masked", "xlm_roberta"] {
        let new = tempfile::tempdir().unwrap();
        let place = new.path().join(case);
        std::fs::create_dir(&place).unwrap();
        for file in ["config.json", "golden.safetensors"] {
            std::fs::copy(folder().join(case).join(file), place.join(file)).unwrap();
        }
        let bytes = std::fs::read(folder().join(case).join("model.safetensors")).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header = std::str::from_utf8(&bytes[8..8 + length]).unwrap();
        let renamed =
            header.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta");
        assert_ne!(renamed, header, "{case}");
        let all = [&(renamed.len() as u64).to_le_bytes(), renamed.as_bytes(), &bytes[8 + length..]].concat();
        std::fs::write(place.join("model.safetensors"), all).unwrap();
        assert!(check(&place) >= 2, "{case}");
    }
}
