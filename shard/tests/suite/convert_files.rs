//! The logits of models that are written as files of FastLLM and llama2.c.

use std::path::{Path, PathBuf};

use crate::common::{Chunk, Harness, repository, row_error};
use millrace_backend::KvFormat;
use millrace_backend::reference::Reference;
use millrace_convert::convert::{ConvertTarget, FlmKind, convert};
use millrace_formats::Source;
use millrace_model::families::{self, Overrides};
use millrace_model::{AdapterLimits, ShardLimits, WeightStorage};
use millrace_numbers::DType;

const LIMITS: ShardLimits = ShardLimits {
    max_step_tokens: 32,
    max_sequences: 32,
    max_sequence_tokens: 32,
    block_size: 16,
    state_checkpoints: 0,
    max_drafts: 0,
    adapters: AdapterLimits::NONE,
    num_blocks: 2,
    kv_format: KvFormat::Dense(DType::F32),
};

const PROMPT: [u32; 13] = [3, 14, 15, 9, 26, 5, 35, 48, 9, 7, 51, 23, 8];

fn golden(name: &str) -> PathBuf {
    repository().join("integration-tests/golden").join(name)
}

fn folder(path: PathBuf) -> Source {
    Source::Directory(path)
}

fn write(from: &Source, to: &Path, target: ConvertTarget) -> Result<(), String> {
    convert(from, to, target, &mut |_, _| {}).map(|_| ()).map_err(|error| error.to_string())
}

/// Returns the logits of a prompt.
fn logits(source: &Source) -> Vec<Vec<f32>> {
    let model = families::load(source, &Overrides::default()).unwrap_or_else(|error| panic!("{error}"));
    let storage = WeightStorage::choose(DType::F32, None, &model, &Reference).unwrap();
    let mut harness = Harness::new(&Reference, &model.spec, &*model.weights, storage, &LIMITS);
    harness.step(&[Chunk { tokens: &PROMPT, start: 0, blocks: &[1, 0] }])
}

fn worst(found: &[Vec<f32>], expected: &[Vec<f32>]) -> f64 {
    let rows = found.iter().zip(expected).map(|(found, expected)| {
        row_error(found, &expected.iter().map(|&logit| f64::from(logit)).collect::<Vec<_>>())
    });
    rows.fold(0.0, f64::max)
}

#[test]
fn single_precision_computes_the_same() {
    let flm = || ConvertTarget::Flm { kind: FlmKind::F32 };
    let llama2c = |version| ConvertTarget::Llama2c { version };
    let mut cases: Vec<(&str, ConvertTarget)> = vec![
        ("llama_gqa", llama2c(0)),
        ("llama_gqa", llama2c(1)),
        ("llama_tied", llama2c(0)),
        ("llama_tied", llama2c(1)),
        ("llama_sharded", llama2c(1)),
    ];
    // A file of FastLLM can hold any family, as it has the whole configuration.
    for name in [
        "llama_gqa",
        "llama_tied",
        "llama_llama3",
        "llama_yarn",
        "qwen2_sliding",
        "qwen3",
        "qwen3_moe",
        "mistral_sliding",
        "gemma2",
        "gpt2",
        "bloom",
        "falcon_new",
        "baichuan_7b",
        "chatglm2",
        "phi3_long",
        "deepseek_v3",
        "granitemoe",
    ] {
        cases.push((name, flm()));
    }
    for (name, target) in cases {
        let case = format!("{name} as {target:?}");
        let new = tempfile::tempdir().unwrap();
        let (file, from) = (new.path().join("model"), folder(golden(name)));
        write(&from, &file, target).unwrap_or_else(|error| panic!("{case}: {error}"));
        let file = Source::File(file);
        // Only the order of a sum may differ, where heads are stored in pairs.
        let error = worst(&logits(&file), &logits(&from));
        assert!(error < 1e-5, "{case}: {error:e}");
    }
}

#[test]
fn logits_of_rounded_weights_stay_close() {
    let flm = |kind| ConvertTarget::Flm { kind };
    for (target, bound) in [
        (flm(FlmKind::F16), 1e-2),
        (flm(FlmKind::Int8), 0.2),
        (flm(FlmKind::Int4), 2.0),
        (ConvertTarget::Llama2c { version: 2 }, 0.2),
    ] {
        for name in ["llama_gqa", "llama_tied", "llama_bf16"] {
            let case = format!("{name} as {target:?}");
            let new = tempfile::tempdir().unwrap();
            let (file, from) = (new.path().join("model"), folder(golden(name)));
            write(&from, &file, target.clone()).unwrap_or_else(|error| panic!("{case}: {error}"));
            let error = worst(&logits(&Source::File(file)), &logits(&from));
            assert!(error > 0.0 && error < bound, "{case}: {error:e}");
        }
    }
}
