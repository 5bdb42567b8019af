//! One-layer models with the outputs of the code that their families were published with.
//!
//! The files are not part of the repository; `MILLRACE_TEST_DATA` names the folder that holds `remote-code`.

#![allow(clippy::unwrap_used, reason = "a test's helpers fail as tests do")]

mod common;

use std::path::PathBuf;

use common::{Chunk, Harness, MemoryWeights, limits, row_error};
use millrace_kernels::cpu::{Cpu, CpuOptions};
use millrace_kernels::{Activation, DType, QkvLayout, RopeStyle};
use millrace_shard::model::{DecoderSpec, LayerSlot, LayerSpec, MlpSpec, RopeScaling, RopeTable, Slot};

const VOCAB: usize = 5;
const HIDDEN: usize = 32;
const HEADS: usize = 8;
const HEAD_DIM: usize = HIDDEN / HEADS;

/// A file of numbers, read from front to back.
struct Numbers(Vec<[u8; 4]>);

impl Numbers {
    /// `None` (with a note) if the data is not on this machine.
    fn open(name: &str) -> Option<Numbers> {
        let Some(folder) = std::env::var_os("MILLRACE_TEST_DATA") else {
            eprintln!("skipped: MILLRACE_TEST_DATA is not set");
            return None;
        };
        let bytes = std::fs::read(PathBuf::from(folder).join("remote-code").join(name)).unwrap();
        assert_eq!(bytes.len() % 4, 0);
        Some(Numbers(bytes.chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]).collect()))
    }

    fn take(&mut self, n: usize) -> Vec<[u8; 4]> {
        self.0.drain(..n).collect()
    }

    fn floats(&mut self, n: usize) -> Vec<f32> {
        self.take(n).into_iter().map(f32::from_le_bytes).collect()
    }

    fn tokens(&mut self, n: usize) -> Vec<u32> {
        self.take(n).into_iter().map(u32::from_le_bytes).collect()
    }
}

fn spec(kv_heads: usize, qkv_bias: bool, width: usize, norm_eps: f32, rope: RopeTable) -> DecoderSpec {
    let layer = LayerSpec {
        qkv: QkvLayout { heads: HEADS, kv_heads, head_dim: HEAD_DIM },
        qkv_bias,
        head_norm: false,
        rope: Some(0),
        score_scale: 1.0 / (HEAD_DIM as f32).sqrt(),
        window: None,
        out_bias: false,
        mlp: MlpSpec { width, act: Activation::Silu, up_bias: false, down_bias: false },
    };
    DecoderSpec {
        model_type: "remote code".into(),
        vocab: VOCAB,
        hidden: HIDDEN,
        max_positions: 64,
        norm_eps,
        ropes: vec![rope],
        layers: vec![layer],
        // There is no head; the states are compared.
        tied_head: true,
    }
}

/// A prompt of three tokens, then two single ones; the states after the final norm must be those of the file.
fn check(spec: &DecoderSpec, weights: &MemoryWeights, mut numbers: Numbers, tolerance: f64) {
    let cpu = Cpu::new(CpuOptions { threads: Some(2), isa: None }).unwrap();
    let mut harness = Harness::new(&cpu, spec, weights, DType::F32, &limits(DType::F32));
    let mut start = 0;
    for count in [3, 1, 1] {
        let tokens = numbers.tokens(count);
        harness.step(&[Chunk { tokens: &tokens, start, blocks: &[7] }]);
        let states = harness.states(count);
        for (t, found) in states.chunks_exact(HIDDEN).enumerate() {
            let expected: Vec<f64> = numbers.floats(HIDDEN).into_iter().map(f64::from).collect();
            let error = row_error(found, &expected);
            assert!(error < tolerance, "relative error {error:e} at position {}", start + t);
        }
        start += count;
    }
    assert!(numbers.0.is_empty(), "{} numbers are left", numbers.0.len());
}

/// ChatGLM2, ChatGLM3 and GLM-4 with their published code.
fn chatglm(file: &str, norm_eps: f32, tolerance: f64) {
    let Some(mut numbers) = Numbers::open(file) else { return };
    let rope = RopeTable {
        style: RopeStyle::Interleaved,
        rotary_dim: HEAD_DIM / 2,
        theta: 1e4,
        scaling: RopeScaling::Default,
    };
    let spec = spec(2, true, 48, norm_eps, rope);
    let in_file = [
        Slot::Embedding,
        Slot::Layer(0, LayerSlot::AttentionNorm),
        Slot::Layer(0, LayerSlot::Qkv),
        Slot::Layer(0, LayerSlot::QkvBias),
        Slot::Layer(0, LayerSlot::Out),
        Slot::Layer(0, LayerSlot::MlpNorm),
        Slot::Layer(0, LayerSlot::GateUp),
        Slot::Layer(0, LayerSlot::Down),
        Slot::FinalNorm,
    ];
    let mut weights = MemoryWeights::default();
    for slot in in_file {
        let (rows, cols) = spec.shape(slot);
        weights.set(slot, rows, cols, &numbers.floats(rows * cols));
    }
    check(&spec, &weights, numbers, tolerance);
}

#[test]
fn chatglm2() {
    chatglm("glm2_model.data", 1e-5, 1e-5);
}

#[test]
fn glm4() {
    // A wrong epsilon errs by only 4e-5.
    chatglm("glm4_model.data", 1.5625e-7, 1e-6);
}

#[test]
fn baichuan_7b() {
    let Some(mut numbers) = Numbers::open("baichuan7b_model.data") else { return };
    let rope =
        RopeTable { style: RopeStyle::Half, rotary_dim: HEAD_DIM, theta: 1e4, scaling: RopeScaling::Default };
    let width = 96;
    let spec = spec(HEADS, false, width, 1e-6, rope);
    let mut weights = MemoryWeights::default();
    let mut set = |slot, values: &[f32]| {
        let (rows, cols) = spec.shape(slot);
        weights.set(slot, rows, cols, values);
    };
    set(Slot::Embedding, &numbers.floats(VOCAB * HIDDEN));
    set(Slot::Layer(0, LayerSlot::AttentionNorm), &numbers.floats(HIDDEN));
    set(Slot::Layer(0, LayerSlot::Qkv), &numbers.floats(3 * HIDDEN * HIDDEN));
    set(Slot::Layer(0, LayerSlot::Out), &numbers.floats(HIDDEN * HIDDEN));
    set(Slot::Layer(0, LayerSlot::MlpNorm), &numbers.floats(HIDDEN));
    // Stored in the order gate, down, up.
    let gate = numbers.floats(width * HIDDEN);
    set(Slot::Layer(0, LayerSlot::Down), &numbers.floats(HIDDEN * width));
    let up = numbers.floats(width * HIDDEN);
    set(Slot::Layer(0, LayerSlot::GateUp), &[gate, up].concat());
    set(Slot::FinalNorm, &numbers.floats(HIDDEN));
    check(&spec, &weights, numbers, 1e-5);
}
