//! Compares logits and greedy continuations with those of transformers, for every checkpoint in
//! `integration-tests/golden`.
//!
//! The README there describes the numbers. The shard rotates the token at position p as in a
//! sequence of `max(p + 1, original)` tokens, and never rotates it again. In the case with dynamic
//! NTK, transformers does the same only for tokens that it generates one by one
//! (`cached_continuation`) after a prompt of at most the original length. It rotates a longer
//! prompt as a whole, with the base for its full length. Only the numbers to which the shard's rule
//! applies are compared.

use std::path::PathBuf;

use crate::common::{Chunk, Harness, on_two_ranks, repository, row_error};
use millrace_backend::{Activation, Backend, KvFormat, MlpKind};
use millrace_cpu::{Activations, Cpu, CpuOptions, Isa};
use millrace_formats::Source;
use millrace_model::AdapterLimits;
use millrace_model::families::{self, Overrides};
use millrace_model::split::{Indivisible, Split};
use millrace_model::{
    AttentionHeads, DecoderSpec, ExpertsSpec, HeadNormPlan, LayerSlot, Mlp, Model, NormPlace,
    PerLayerEmbedding, RopeScaling, ShardLimits, WeightSlot, WeightStorage,
};
use millrace_numbers::codes::{CodeType, StoredCodes};
use millrace_numbers::{DType, WeightFormat};
use safetensors::SafeTensors;

/// Bound on the largest difference in a row of logits, relative to its largest element.
const TOLERANCE: f64 = 1e-4;
/// The bound where a CPU with BF16 rounds the inputs of products by bf16 weights, which have a
/// relative error of 2^-9 then. The expected numbers were computed in single precision.
const ROUNDED_TOLERANCE: f64 = 0.05;

pub(crate) const LIMITS: ShardLimits = ShardLimits {
    max_step_tokens: 96,
    max_sequences: 96,
    max_sequence_tokens: 96,
    block_size: 16,
    state_checkpoints: 0,
    max_drafts: 0,
    adapters: AdapterLimits::NONE,
    num_blocks: 6,
    kv_format: KvFormat::Dense(DType::F32),
};

fn folder() -> PathBuf {
    repository().join("integration-tests/golden")
}

/// The file with the expected numbers of a checkpoint.
pub(crate) struct Golden<'a>(pub(crate) SafeTensors<'a>);

impl Golden<'_> {
    fn words(&self, name: &str) -> Option<Vec<[u8; 4]>> {
        let tensor = self.0.tensor(name).ok()?;
        Some(tensor.data().chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]).collect())
    }

    pub(crate) fn ids(&self, name: &str) -> Option<Vec<u32>> {
        Some(self.words(name)?.into_iter().map(u32::from_le_bytes).collect())
    }

    /// The rows of a matrix.
    pub(crate) fn rows(&self, name: &str) -> Vec<Vec<f64>> {
        let cols = self.0.tensor(name).unwrap().shape()[1];
        let values: Vec<f64> =
            self.words(name).unwrap().into_iter().map(|word| f64::from(f32::from_le_bytes(word))).collect();
        values.chunks_exact(cols).map(<[f64]>::to_vec).collect()
    }
}

/// A greedy generation in the shard.
pub(crate) struct Generation {
    /// Logits of every position of the prompt.
    pub(crate) prompt: Vec<Vec<f32>>,
    pub(crate) ids: Vec<u32>,
    /// The logits that each of `ids` was chosen from.
    pub(crate) chosen_from: Vec<Vec<f32>>,
}

pub(crate) fn generate<B: Backend>(harness: &mut Harness<'_, B>, prompt: &[u32], count: usize) -> Generation {
    let blocks = [5, 0, 3, 1, 4, 2];
    // A GPU keeps the tokens of a sequence, to which those are added here that it has not sampled.
    let mut sequence = prompt.to_vec();
    harness.admit(blocks[0], &sequence);
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
        sequence.extend(token);
        harness.admit(blocks[0], &sequence);
        let step = harness.step(&[Chunk { tokens: &token, start, blocks: &blocks }]);
        generation.chosen_from.extend(step);
    }
}

#[track_caller]
pub(crate) fn assert_rows(case: &str, found: &[Vec<f32>], expected: &[Vec<f64>]) {
    assert_eq!(found.len(), expected.len(), "{case}");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = row_error(found, expected);
        assert!(error < TOLERANCE, "{case}, row {i}: relative error {error:e}");
    }
}

/// Compares one checkpoint, whose weights are in `source`, and returns how many prompts it has.
pub(crate) fn check(name: &str, source: &Source) -> usize {
    let folder = folder().join(name);
    let model =
        families::load(source, &Overrides::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
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

/// A CPU that rounds no activations.
pub(crate) fn cpu_exact() -> Cpu {
    cpu(Activations::Exact, None)
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
    let codes = |cols| WeightFormat::Codes(StoredCodes { codes: CodeType::FourBits, cols, by_row: false });
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

/// A change of a specification.
type Change = fn(&mut DecoderSpec);

/// Changes the heads of all layers.
fn change_heads(spec: &mut DecoderSpec, change: fn(&mut AttentionHeads)) {
    spec.layers.iter_mut().filter_map(|layer| layer.attention.heads_mut()).for_each(change);
}

/// Changes the experts of all layers.
fn change_experts(spec: &mut DecoderSpec, change: fn(&mut ExpertsSpec)) {
    for layer in &mut spec.layers {
        if let Mlp::Experts(experts) = &mut layer.mlp {
            change(experts);
        }
    }
}

/// The expected numbers are worth nothing if a mistake in a switch does not change them.
#[test]
fn every_switch_of_gemma_4_changes_the_logits() {
    let dense: [(&str, Change); 11] = [
        ("embedding factor", |spec| spec.embedding.factor = 1.0),
        ("value norms", |spec| change_heads(spec, |heads| heads.value_norm = false)),
        ("head norms", |spec| change_heads(spec, |heads| heads.head_norm = HeadNormPlan::Unscaled)),
        ("score scale", |spec| change_heads(spec, |heads| heads.score_scale = 0.9)),
        ("layer scalars", |spec| spec.layer_scalars = false),
        ("norm place", |spec| spec.norm.place = NormPlace::BeforeBranches),
        ("soft cap", |spec| spec.head.soft_cap = None),
        ("pairs", |spec| spec.ropes[0].scaling = RopeScaling::Proportional { pairs: 3, factor: 1.0 }),
        ("frequencies", |spec| spec.ropes[0].rotary_dim = 8),
        ("base of windows", |spec| spec.ropes[1].theta = 500.0),
        ("window", |spec| spec.layers[0].attention.slide(10)),
    ];
    let experts: [(&str, Change); 4] = [
        ("scales", |spec| change_experts(spec, |experts| experts.scales = false)),
        ("own norms", |spec| change_experts(spec, |experts| experts.own_norms = false)),
        ("gating", |spec| {
            change_experts(spec, |experts| experts.kind = MlpKind::Gated(Activation::Silu.into()))
        }),
        ("shared expert", |spec| change_experts(spec, |experts| experts.shared = None)),
    ];
    let small: [(&str, Change); 3] = [
        ("cache that is read", |spec| spec.layers[3].attention.heads_mut().unwrap().kv_source = Some(0)),
        ("per-layer embeddings", |spec| spec.per_layer = None),
        ("gates of per-layer embeddings", |spec| {
            spec.per_layer = spec.per_layer.map(|table| PerLayerEmbedding { act: Activation::Silu, ..table });
        }),
    ];
    let cpu = cpu(Activations::Exact, None);
    let cases = [("gemma4_text", &dense[..]), ("gemma4_experts", &experts[..]), ("gemma4_e2b", &small[..])];
    for (case, changes) in cases {
        let (prompt, model) = (first_prompt(case), load(case));
        let bytes = std::fs::read(folder().join(case).join("golden.safetensors")).unwrap();
        let expected = Golden(SafeTensors::deserialize(&bytes).unwrap()).rows("logits.0");
        for (name, change) in changes {
            let mut spec = model.spec.clone();
            change(&mut spec);
            assert_ne!(spec, model.spec, "{case}, {name}");
            let mut harness = Harness::new(&cpu, &spec, &*model.weights, model.dtype, &LIMITS);
            let found = generate(&mut harness, &prompt, 1).prompt;
            let errors = found.iter().zip(&expected).map(|(found, expected)| row_error(found, expected));
            let worst = errors.fold(0.0, f64::max);
            assert!(worst > 10.0 * TOLERANCE, "{case}, {name}: {worst:e}");
        }
    }
}

/// The names of all checkpoints.
fn cases() -> Vec<String> {
    let mut cases: Vec<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().join("config.json").exists())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    cases.sort();
    assert!(cases.len() >= 32, "{} cases", cases.len());
    cases
}

#[test]
fn every_checkpoint_gives_the_logits_of_transformers() {
    for case in cases() {
        let prompts = check(&case, &Source::Directory(folder().join(&case)));
        assert!(prompts >= 2, "{case} has {prompts} prompts");
    }
}

/// The package `gguf` has written the same weights under its names.
#[test]
fn gguf_files_give_the_logits_of_transformers() {
    let files: Vec<PathBuf> = std::fs::read_dir(folder().join("../golden-gguf"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "gguf"))
        .collect();
    assert!(files.len() >= 59, "{} files", files.len());
    for file in files {
        let case = file.file_stem().unwrap().to_string_lossy().into_owned();
        let prompts = check(&case, &Source::File(file));
        assert!(prompts >= 2, "{case} has {prompts} prompts");
    }
}

/// The package has written the weights of a Llama as a file of InternLM2, and those of a Qwen2 as
/// one of the first Qwen. Both families compute the same under other names.
#[test]
fn gguf_files_of_renamed_families_give_the_logits_of_transformers() {
    for (architecture, case) in [("internlm2", "llama_gqa"), ("qwen", "qwen2")] {
        let file = folder().join(format!("../golden-gguf/{architecture}/{case}.gguf"));
        assert!(check(case, &Source::File(file)) >= 2, "{architecture}");
    }
}

/// Tokens that are generated where a checkpoint is computed once more in another way.
const FEW: usize = 3;

/// Compares the first prompt of a checkpoint, and the begin of its continuation. The first prompt
/// of every case is one that the shard rotates as transformers does.
fn assert_begin(case: &str, found: &Generation) {
    let bytes = std::fs::read(folder().join(case).join("golden.safetensors")).unwrap();
    let golden = Golden(SafeTensors::deserialize(&bytes).unwrap());
    let rule = match golden.ids("cached_continuation_ids.0") {
        Some(_) => "cached_continuation",
        None => "continuation",
    };
    assert_rows(case, &found.prompt, &golden.rows("logits.0"));
    assert_eq!(found.ids, golden.ids(&format!("{rule}_ids.0")).unwrap()[..FEW], "{case}");
    assert_rows(case, &found.chosen_from, &golden.rows(&format!("{rule}_logits.0"))[..FEW]);
}

fn first_prompt(case: &str) -> Vec<u32> {
    let bytes = std::fs::read(folder().join(case).join("golden.safetensors")).unwrap();
    Golden(SafeTensors::deserialize(&bytes).unwrap()).ids("prompt_ids.0").unwrap()
}

fn load(case: &str) -> Model {
    let mut model = families::load(&Source::Directory(folder().join(case)), &Overrides::default()).unwrap();
    model.spec.max_positions = 96;
    model
}

/// Generates on each of two shards. Returns the reason if the model cannot be split.
fn by_two(case: &str, prompt: &[u32]) -> Result<Vec<Generation>, Indivisible> {
    Split { rank: 0, world_size: 2 }.spec(&load(case).spec)?;
    Ok(on_two_ranks(|rank, others| {
        let share = rank.apply(load(case)).unwrap();
        let cpu = cpu(Activations::Exact, None);
        let storage = WeightStorage::choose(share.dtype, None, &share, &cpu).unwrap();
        let Model { spec, weights, .. } = share;
        let others = Some(Box::new(others) as _);
        let mut harness = Harness::among(&cpu, &spec, &*weights, storage, &LIMITS, others);
        generate(&mut harness, prompt, FEW)
    }))
}

#[test]
fn two_shards_give_the_logits_of_transformers() {
    let mut split = 0;
    for case in cases() {
        let Ok(found) = by_two(&case, &first_prompt(&case)) else { continue };
        split += 1;
        found.iter().for_each(|found| assert_begin(&case, found));
    }
    assert!(split >= 120, "only {split} checkpoints were split");
}

/// The GPU under test computes in float32, so that the bound is that of the CPU.
#[cfg(feature = "cpu-sim")]
#[test]
fn a_gpu_gives_the_logits_of_transformers() {
    use millrace_cuda::{Cuda, Device};

    let mut computed = 0;
    for case in cases() {
        let model = load(&case);
        let gpu = Cuda::new(Device::under_test().unwrap(), DType::F32);
        // `the_page_of_models` says the same of these models.
        let lacks_kernels = |mlp: &Mlp| match mlp {
            Mlp::Experts(ExpertsSpec { router, .. }) => {
                router.groups.is_some() || router.weighs_inputs && router.top_k > 1
            }
            Mlp::Gated(_) | Mlp::Plain(_) | Mlp::None => false,
        };
        let layers = &model.spec.layers;
        if model.spec.cpu_only_part().is_some() || layers.iter().any(|layer| lacks_kernels(&layer.mlp)) {
            continue;
        }
        let storage = WeightStorage::choose(DType::F32, None, &model, &gpu).unwrap();
        let mut harness = Harness::new(&gpu, &model.spec, &*model.weights, storage, &LIMITS);
        assert_begin(&case, &generate(&mut harness, &first_prompt(&case), FEW));
        computed += 1;
    }
    assert!(computed >= 120, "only {computed} checkpoints were computed");
}
