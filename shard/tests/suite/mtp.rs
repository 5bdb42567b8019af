//! Compares heads that predict further tokens with the layers of transformers, for every checkpoint
//! in `integration-tests/golden-mtp`. The README there describes the numbers.

use std::path::PathBuf;

use millrace_backend::{ModelLoading, TransferOps};
use millrace_cpu::Cpu;
use millrace_formats::Source;
use millrace_model::Model;
use millrace_model::families::{self, Overrides};
use millrace_numbers::DType;
use millrace_shard::decoder::{Decoder, Weights};
use safetensors::SafeTensors;

use crate::common::{Chunk, Harness, repository};
use crate::golden::{Golden, LIMITS, assert_rows, cpu_exact};

const BLOCKS: [u32; 6] = [5, 0, 3, 1, 4, 2];

fn folder() -> PathBuf {
    repository().join("integration-tests/golden-mtp")
}

/// Returns the folder of a model with a head, and the GGUF file with the same weights.
fn sources(name: &str) -> [Source; 2] {
    let file = folder().join(format!("../golden-gguf/mtp/{name}.gguf"));
    [Source::Directory(folder().join(name)), Source::File(file)]
}

/// Opens a model and its head.
fn open<'b>(backend: &'b Cpu, source: &Source) -> (Harness<'b, Cpu>, Harness<'b, Cpu>) {
    let overrides = Overrides::default();
    let (model, head) =
        (families::load(source, &overrides).unwrap(), families::load_mtp(source, &overrides).unwrap());
    let positions = LIMITS.max_sequence_tokens;
    let load = |model: &Model| {
        let mut ignore = |_| Ok(());
        Weights::load(backend, &model.spec, &*model.weights, DType::F32, positions, &mut ignore).unwrap()
    };
    let (of_model, of_head) = (load(&model), load(&head));
    let of_head = of_head.with_ends(of_model.ends());
    let harness = |model: Model, weights| {
        Harness::of(backend, Decoder::new(backend, model.spec, weights, &LIMITS, None).unwrap(), &LIMITS)
    };
    (harness(model, of_model), harness(head, of_head))
}

fn best(logits: &[f32]) -> u32 {
    (0..logits.len()).reduce(|a, b| if logits[b] > logits[a] { b } else { a }).unwrap() as u32
}

#[test]
fn every_head_gives_the_logits_and_guesses_of_transformers_layers() {
    let mut cases = 0;
    for entry in std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap()) {
        let name = entry.file_name().into_string().unwrap();
        let Ok(bytes) = std::fs::read(entry.path().join("golden.safetensors")) else { continue };
        let golden = Golden(SafeTensors::deserialize(&bytes).unwrap());
        for source in sources(&name) {
            cases += 1;
            check(&name, &golden, &source);
        }
    }
    assert_eq!(cases, 10);
}

/// Compares a model and its head with the numbers of both prompts.
fn check(name: &str, golden: &Golden<'_>, source: &Source) {
    let cpu = cpu_exact();
    let (mut model, mut head) = open(&cpu, source);
    for i in 0..2 {
        let prompt = golden.ids(&format!("prompt_ids.{i}")).unwrap();
        let continuation = golden.ids(&format!("continuation_ids.{i}")).unwrap();
        let n = prompt.len();
        let logits = model.step(&[Chunk { tokens: &prompt, start: 0, blocks: &BLOCKS }]);
        assert_rows(name, &logits, &golden.rows(&format!("logits.{i}")));
        // The head reads each state with the token after it.
        head.decoder.set_states(&cpu, (model.decoder.last_states(), 0), n, 0).unwrap();
        let guessed = head.step(&[Chunk { tokens: &prompt[1..], start: 0, blocks: &BLOCKS }]);
        assert_rows(name, &guessed, &golden.rows(&format!("mtp_logits.{i}")));
        // In another step it reads the state before the first token that was generated. After that,
        // its own last state takes the place of the model's.
        head.decoder.set_states(&cpu, (model.decoder.last_states(), n - 1), 1, 0).unwrap();
        let (mut token, mut chain, mut rows) = (continuation[0], Vec::new(), Vec::new());
        let wanted = golden.ids(&format!("chain_ids.{i}")).unwrap();
        for position in n - 1..n - 1 + wanted.len() {
            let logits = head.step(&[Chunk { tokens: &[token], start: position, blocks: &BLOCKS }]);
            token = best(&logits[0]);
            chain.push(token);
            rows.extend(logits);
            let state = head.states(1);
            let mut states = cpu.buf(1, state.len()).unwrap();
            cpu.upload(1, &state, &mut Vec::new(), &mut states).unwrap();
            head.decoder.set_states(&cpu, (&states, 0), 1, 0).unwrap();
        }
        assert_rows(name, &rows, &golden.rows(&format!("chain_logits.{i}")));
        assert_eq!(chain, wanted, "{name}.{i}");
    }
}

#[test]
fn models_without_a_head_are_refused_by_name() {
    for (name, reason) in [
        ("llama_gqa", "its heads for the prediction of further tokens are not supported"),
        ("deepseek_v2", "num_nextn_predict_layers is missing"),
        ("deepseek_v3", "are not in this checkpoint, which has no model.layers.2.enorm.weight"),
        ("qwen3_5_text", "which has no mtp.pre_fc_norm_embedding.weight"),
    ] {
        let source = Source::Directory(repository().join("integration-tests/golden").join(name));
        let error = families::load_mtp(&source, &Overrides::default()).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(reason), "{name}: {error}");
    }
    // The file says that it has a head, and has a tensor of its layer.
    for (name, reason) in [
        ("qwen3_5_text", "which has no mtp.pre_fc_norm_embedding.weight"),
        ("qwen3_5", "which has no model.layers.2.enorm.weight"),
        ("deepseek_v3", "num_nextn_predict_layers is missing"),
    ] {
        let file = repository().join(format!("integration-tests/golden-gguf/{name}.gguf"));
        let error = families::load_mtp(&Source::File(file), &Overrides::default()).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains(reason), "{name}: {error}");
    }
}
