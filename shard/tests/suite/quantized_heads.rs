//! Heads that are quantized, in a file or while they are loaded.
//! Their logits are compared with those of the reference, or of the same numbers in single
//! precision.

use crate::common::{
    Chunk, Harness, SMALL_LIMITS as LIMITS, SMALL_PROMPT as PROMPT, on_two_ranks, repository, row_error,
};
use millrace_backend::Backend;
use millrace_backend::reference::Reference;
use millrace_convert::convert::{ConvertTarget, GgufKind, convert};
use millrace_cpu::{Activations, Cpu, CpuOptions};
use millrace_formats::Source;
use millrace_model::families::{self, Overrides};
use millrace_model::memory_plan::{UnpaddedDevice, weight_bytes};
use millrace_model::{Model, Quantize, QuantizeRequest, WeightStorage};
use millrace_numbers::{DType, IntFormat, WeightFormat};

/// Golden checkpoints with an embedding that is the head, of 32 columns.
const TIED: [&str; 6] = ["llama_tied", "gemma2", "gemma3_text", "cohere", "ernie4_5_tied", "bloom"];

const DENSE: QuantizeRequest = QuantizeRequest { layers: None, dense_head: true };

fn golden(name: &str) -> Source {
    Source::Directory(repository().join("integration-tests/golden").join(name))
}

fn load(source: &Source) -> Model {
    families::load(source, &Overrides::default()).unwrap()
}

fn cpu() -> Cpu {
    let exact = CpuOptions { activations: Activations::Exact, threads: Some(2), ..CpuOptions::default() };
    Cpu::new(exact).unwrap()
}

fn storage(request: QuantizeRequest, model: &Model, device: &impl Backend) -> WeightStorage {
    WeightStorage::choose(DType::F32, request, model, device).unwrap()
}

fn step<B: Backend>(harness: &mut Harness<'_, B>, vocab: usize) -> Vec<Vec<f32>> {
    let tokens = PROMPT.map(|token| token % vocab as u32);
    harness.step(&[Chunk { tokens: &tokens, start: 0, blocks: &[0] }])
}

fn logits<B: Backend>(device: &B, model: &Model, storage: &WeightStorage) -> Vec<Vec<f32>> {
    let mut harness = Harness::new(device, &model.spec, &*model.weights, storage.clone(), &LIMITS);
    step(&mut harness, model.spec.vocab)
}

fn worst(found: &[Vec<f32>], expected: &[Vec<f32>]) -> f64 {
    let wide = |row: &Vec<f32>| row.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
    found.iter().zip(expected).map(|(found, expected)| row_error(found, &wide(expected))).fold(0.0, f64::max)
}

/// The file has the embedding in blocks. The head is these blocks, and without them it has the same
/// numbers in single precision.
#[test]
fn a_head_that_is_stored_in_blocks_is_kept() {
    let cpu = cpu();
    for case in TIED {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.gguf");
        let target = ConvertTarget::Gguf { kind: GgufKind::Q8_0 };
        convert(&golden(case), &file, target, &mut |_, _| {}).unwrap();
        let source = Source::File(file);
        let model = load(&source);
        assert!(model.spec.tied_head, "{case}");
        let kept = storage(QuantizeRequest::default(), &model, &cpu);
        let dense = storage(DENSE, &model, &cpu);
        let names = [&kept, &dense].map(|storage| storage.head_quantization(&model.spec));
        assert_eq!(names, [Some("q8_0"), None], "{case}");
        let converted = |storage: &WeightStorage| {
            storage.warnings(&model.spec).iter().any(|warning| warning.contains("are converted to float32"))
        };
        assert!(converted(&dense), "{case}: the head is one of the quantized matrices");
        assert!(!converted(&kept), "{case}");

        let expected = logits(&cpu, &model, &dense);
        for found in [logits(&cpu, &model, &kept), logits(&Reference, &model, &kept)] {
            let error = worst(&found, &expected);
            assert!(error < 1e-5, "{case}: {error:e} from the numbers in single precision");
        }
        let of_ranks = on_two_ranks(|split, ranks| {
            let share = split.apply(load(&source)).unwrap();
            let cpu = self::cpu();
            let kept = storage(QuantizeRequest::default(), &share, &cpu);
            // The last rows of an odd vocabulary are padding, which is no block.
            let has_padding = split.rank == 1 && model.spec.vocab % 2 == 1;
            assert_eq!(kept.head_quantization(&share.spec), (!has_padding).then_some("q8_0"), "{case}");
            let ranks = Some(Box::new(ranks) as _);
            let mut harness = Harness::among(&cpu, &share.spec, &*share.weights, kept, &LIMITS, ranks);
            step(&mut harness, model.spec.vocab)
        });
        let error = worst(&of_ranks[0], &expected);
        assert!(error < 1e-5, "{case}: {error:e} with two ranks");
    }
}

/// Integers of the layers bring a head of 8 bits, whose embedding keeps its numbers.
#[test]
fn a_head_is_quantized_while_it_is_loaded() {
    let cpu = cpu();
    let integers = [
        Quantize::Int8,
        Quantize::Q8_0,
        Quantize::Q4_0,
        Quantize::Int4,
        Quantize::Q4K,
        Quantize::Q5K,
        Quantize::Q6K,
    ];
    for case in TIED.into_iter().chain(["arcee", "baichuan_7b"]) {
        let model = load(&golden(case));
        for layers in integers {
            let request = QuantizeRequest::from(Some(layers));
            let of_both = storage(request, &model, &cpu);
            let of_layers = storage(QuantizeRequest { dense_head: true, ..request }, &model, &cpu);
            assert_eq!(of_both.head_quantization(&model.spec), Some("q8_0"), "{case}");
            assert_eq!(of_layers.head_quantization(&model.spec), None, "{case}");
            let format = WeightFormat::Int(IntFormat::Q8_0);
            let saved = model.spec.vocab * 32 * 4 - format.bytes(model.spec.vocab, 32);
            let bytes = |storage| weight_bytes(&model.spec, storage, &UnpaddedDevice);
            assert_eq!(bytes(&of_layers) - bytes(&of_both), saved, "{case}");

            let rounded = logits(&Reference, &model, &of_both);
            let error = worst(&rounded, &logits(&Reference, &model, &of_layers));
            assert!(error > 0.0 && error < 0.02, "{case}, {layers:?}: {error:e} from a dense head");
            let between = worst(&logits(&cpu, &model, &of_both), &rounded);
            assert!(between < 1e-4, "{case}, {layers:?}: {between:e} between CPU and reference");
        }
        for layers in [None, Some(Quantize::Fp8), Some(Quantize::Nf4)] {
            let found = storage(layers.into(), &model, &cpu);
            assert_eq!(found.head_quantization(&model.spec), None, "{case}, {layers:?}");
        }
    }
}
