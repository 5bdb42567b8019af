//! Quantizes published architectures while they are loaded, and compares their logits with those of
//! the dense weights.

use crate::common::{Chunk, Harness, SMALL_LIMITS as LIMITS, SMALL_PROMPT as PROMPT, repository, row_error};
#[cfg(feature = "cpu-sim")]
use crate::common::{MemoryWeights, wide_spec};
use millrace_backend::Backend;
use millrace_backend::reference::Reference;
use millrace_cpu::{Activations, Cpu, CpuOptions};
use millrace_formats::Source;
use millrace_model::families::{self, Overrides};
use millrace_model::{DecoderSpec, LayerSlot, Model, Quantize, WeightSlot, WeightSource, WeightStorage};
use millrace_numbers::DType;

fn load(name: &str) -> Model {
    let folder = repository().join("integration-tests/golden").join(name);
    families::load(&Source::Directory(folder), &Overrides::default()).unwrap()
}

fn logits<B: Backend>(device: &B, model: &Model, storage: &WeightStorage) -> Vec<Vec<f32>> {
    logits_of(device, &model.spec, &*model.weights, storage)
}

fn logits_of<B: Backend>(
    device: &B,
    spec: &DecoderSpec,
    weights: &dyn WeightSource,
    storage: &WeightStorage,
) -> Vec<Vec<f32>> {
    let mut harness = Harness::new(device, spec, weights, storage.clone(), &LIMITS);
    let tokens = PROMPT.map(|token| token % spec.vocab as u32);
    // A GPU keeps the tokens of a sequence.
    harness.admit(0, &tokens);
    harness.step(&[Chunk { tokens: &tokens, start: 0, blocks: &[0] }])
}

fn worst(found: &[Vec<f32>], expected: &[Vec<f32>]) -> f64 {
    let wide = |row: &Vec<f32>| row.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
    found.iter().zip(expected).map(|(found, expected)| row_error(found, &wide(expected))).fold(0.0, f64::max)
}

/// The MLP of this model has 44 columns, which no group of integers divides, and its hidden size is
/// 32, which no super-block divides.
#[test]
fn matrices_that_do_not_fit_a_format_are_loaded_in_another() {
    let model = load("mistral_sliding");
    let dense = "2 of 8 matrices are kept as float32, because 44 columns are not a multiple of 32";
    let cases = [
        (Quantize::Int8, None, 0.1),
        (Quantize::Fp8, None, 0.3),
        (Quantize::Nf4, None, 1.0),
        (Quantize::Q8_0, Some(format!("--quantize q8_0: {dense}")), 0.1),
        (Quantize::Q4_0, Some(format!("--quantize q4_0: {dense}")), 1.0),
        (Quantize::Int4, Some(format!("--quantize int4: {dense}")), 1.0),
        (
            Quantize::Q4K,
            Some(format!(
                "--quantize q4_k: {dense}; 6 of 8 matrices are kept as q4_0, because 32 columns are not a multiple \
                 of 256"
            )),
            1.0,
        ),
        (
            Quantize::Q5K,
            Some(format!(
                "--quantize q5_k: {dense}; 6 of 8 matrices are kept as q8_0, because 32 columns are not a multiple \
                 of 256"
            )),
            0.1,
        ),
        (
            Quantize::Q6K,
            Some(format!(
                "--quantize q6_k: {dense}; 6 of 8 matrices are kept as q8_0, because 32 columns are not a multiple \
                 of 256"
            )),
            0.1,
        ),
    ];
    let cpu =
        Cpu::new(CpuOptions { threads: Some(2), activations: Activations::Exact, ..CpuOptions::default() })
            .unwrap();
    // The weights of this model are random, so that 4 bits change its logits by half.
    let exact = logits(&Reference, &model, &WeightStorage::from(DType::F32));
    for (quantize, warning, bound) in cases {
        let storage = WeightStorage::choose(DType::F32, Some(quantize), &model, &cpu).unwrap();
        assert_eq!(storage.warnings(&model.spec), Vec::from_iter(warning), "{quantize:?}");
        let rounded = logits(&Reference, &model, &storage);
        let error = worst(&rounded, &exact);
        assert!(error > 0.0 && error < bound, "{quantize:?}: {error:e} from dense weights");
        // The CPU rounds activations to 8 bits where it multiplies by integers.
        let between = worst(&logits(&cpu, &model, &storage), &rounded);
        println!("{quantize:?}: {error:.2e} from dense weights, {between:.2e} between CPU and reference");
        assert!(between < 0.1, "{quantize:?}: {between:e} between CPU and reference");
    }
}

/// The GPU under test quantizes to the same numbers as the reference, and multiplies by them in
/// single precision.
#[cfg(feature = "cpu-sim")]
#[test]
fn a_gpu_multiplies_by_quantized_weights() {
    use millrace_cuda::{Cuda, Device};

    for (name, formats) in [
        ("mistral_sliding", &[Quantize::Int8, Quantize::Q8_0, Quantize::Q4_0, Quantize::Int4][..]),
        // With experts.
        ("qwen3_moe", &[Quantize::Fp8, Quantize::Int8, Quantize::Q8_0, Quantize::Int4]),
    ] {
        let model = load(name);
        for &quantize in formats {
            let gpu = Cuda::new(Device::under_test().unwrap(), DType::F32);
            let storage = WeightStorage::choose(DType::F32, Some(quantize), &model, &gpu).unwrap();
            let error = worst(&logits(&gpu, &model, &storage), &logits(&Reference, &model, &storage));
            assert!(error < 1e-4, "{name}, {quantize:?}: {error:e} between GPU and reference");
        }
    }
}

/// All rows of this model are whole super-blocks.
#[cfg(feature = "cpu-sim")]
#[test]
fn a_gpu_multiplies_by_super_blocks() {
    use millrace_cuda::{Cuda, Device};

    let spec = wide_spec();
    let weights = MemoryWeights::random(&spec, 3);
    let exact = logits_of(&Reference, &spec, &weights, &WeightStorage::from(DType::F32));
    // A GPU rounds the scales and zero points of q4_k.
    for (quantize, bound) in [(Quantize::Q4K, 5e-3), (Quantize::Q5K, 2e-3), (Quantize::Q6K, 1e-4)] {
        let storage = WeightStorage::new(DType::F32, Some(quantize));
        assert!(storage.warnings(&spec).is_empty(), "{:?}", storage.warnings(&spec));
        let want = logits_of(&Reference, &spec, &weights, &storage);
        assert!(worst(&want, &exact) > 2.0 * bound, "{quantize:?} changes logits");
        let gpu = Cuda::new(Device::under_test().unwrap(), DType::F32);
        let error = worst(&logits_of(&gpu, &spec, &weights, &storage), &want);
        println!("{quantize:?}: {error:.2e} between GPU and reference");
        assert!(error < bound, "{quantize:?}: {error:e} between GPU and reference");
    }
}

/// Experts are quantized like other matrices, the router is not.
#[test]
fn experts_are_quantized() {
    let model = load("qwen3_moe");
    let cpu =
        Cpu::new(CpuOptions { threads: Some(2), activations: Activations::Exact, ..CpuOptions::default() })
            .unwrap();
    // A rounded weight may change the choice of experts, and thereby the logits by much.
    let exact = logits(&Reference, &model, &WeightStorage::from(DType::F32));
    for (quantize, bound) in [(Quantize::Int8, 1.0), (Quantize::Fp8, 1.5), (Quantize::Nf4, 2.0)] {
        let storage = WeightStorage::choose(DType::F32, Some(quantize), &model, &cpu).unwrap();
        let at = |slot| WeightSlot::Layer(0, slot);
        let format = |slot| storage.matrix(at(slot), model.spec.shape(at(slot)).1);
        assert_eq!(format(LayerSlot::Router), DType::F32.into());
        assert_ne!(format(LayerSlot::ExpertGateUp), DType::F32.into(), "{quantize:?}");
        let rounded = logits(&Reference, &model, &storage);
        let error = worst(&rounded, &exact);
        assert!(error > 0.0 && error < bound, "{quantize:?}: {error:e} from dense weights");
        let between = worst(&logits(&cpu, &model, &storage), &rounded);
        assert!(between < 1e-4, "{quantize:?}: {between:e} between CPU and reference");
    }
}

/// The rows of keys that are also those of values are quantized in both places.
#[test]
fn keys_that_are_values_are_quantized() {
    let cpu =
        Cpu::new(CpuOptions { threads: Some(2), activations: Activations::Exact, ..CpuOptions::default() })
            .unwrap();
    for case in ["gemma4_text", "gemma4_experts"] {
        let model = load(case);
        let exact = logits(&Reference, &model, &WeightStorage::from(DType::F32));
        for (quantize, bound) in [(Quantize::Int8, 0.3), (Quantize::Fp8, 1.0)] {
            let storage = WeightStorage::choose(DType::F32, Some(quantize), &model, &cpu).unwrap();
            let full = WeightSlot::Layer(model.spec.layers.len() - 1, LayerSlot::Qkv);
            let format = storage.matrix(full, model.spec.shape(full).1);
            assert_ne!(format, DType::F32.into(), "{case}, {quantize:?}");
            let rounded = logits(&Reference, &model, &storage);
            let error = worst(&rounded, &exact);
            assert!(error > 0.0 && error < bound, "{case}, {quantize:?}: {error:e} from dense weights");
            let between = worst(&logits(&cpu, &model, &storage), &rounded);
            assert!(between < 1e-3, "{case}, {quantize:?}: {between:e} between CPU and reference");
        }
    }
}
