//! Compares one-layer models with the outputs of the code that their families were published with.
//!
//! The files are not part of the repository. `MILLRACE_TEST_DATA` names the folder that contains
//! `remote-code`.

use std::path::PathBuf;

use crate::common::{Chunk, Harness, limits, row_error};
use millrace_cpu::{Cpu, CpuOptions};
use millrace_formats::Source;
use millrace_model::Model;
use millrace_model::families::{self, Overrides};
use millrace_numbers::DType;
use safetensors::tensor::TensorView;

const VOCAB: usize = 5;
const HIDDEN: usize = 32;

/// A file of numbers that is read from front to back.
struct Numbers(Vec<[u8; 4]>);

impl Numbers {
    fn open(name: &str) -> Numbers {
        let folder = std::env::var_os("MILLRACE_TEST_DATA")
            .expect("MILLRACE_TEST_DATA names the folder of the test data");
        let bytes = std::fs::read(PathBuf::from(folder).join("remote-code").join(name)).unwrap();
        assert_eq!(bytes.len() % 4, 0);
        Numbers(bytes.chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]).collect())
    }

    fn take(&mut self, n: usize) -> Vec<[u8; 4]> {
        self.0.drain(..n).collect()
    }

    fn floats(&mut self, n: usize) -> Vec<f32> {
        self.take(n).into_iter().map(f32::from_le_bytes).collect()
    }

    /// Reads tensors of these names and shapes, in this order.
    fn tensors<const N: usize>(
        &mut self,
        in_file: [(&'static str, Vec<usize>); N],
    ) -> Vec<(&'static str, Vec<usize>, Vec<f32>)> {
        let tensor = |(name, shape): (_, Vec<usize>)| {
            let values = self.floats(shape.iter().product());
            (name, shape, values)
        };
        in_file.into_iter().map(tensor).collect()
    }

    fn tokens(&mut self, n: usize) -> Vec<u32> {
        self.take(n).into_iter().map(u32::from_le_bytes).collect()
    }
}

/// Loads a checkpoint from memory, with the names of the family's published weights. It has no
/// head, because the test compares states. A missing head counts as tied.
fn load(config: &str, tensors: Vec<(&str, Vec<usize>, Vec<f32>)>) -> Model {
    let tensors: Vec<(&str, Vec<usize>, Vec<u8>)> = tensors
        .into_iter()
        .map(|(name, shape, values)| (name, shape, values.into_iter().flat_map(f32::to_le_bytes).collect()))
        .collect();
    let views = tensors.iter().map(|(name, shape, bytes)| {
        (*name, TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap())
    });
    let weights: &'static [u8] = safetensors::serialize(views, None).unwrap().leak();
    let config: &'static [u8] = config.as_bytes().to_vec().leak();
    let files = Box::leak(Box::new([("config.json", config), ("model.safetensors", weights)]));
    families::load(&Source::Memory(files), &Overrides::default()).unwrap()
}

/// Runs a prompt of three tokens and then two single tokens, and compares the states after the
/// final norm with those of the file.
fn check(model: Model, mut numbers: Numbers, tolerance: f64) {
    let Model { spec, dtype, weights, .. } = model;
    let cpu = Cpu::new(CpuOptions { threads: Some(2), ..CpuOptions::default() }).unwrap();
    let mut harness = Harness::new(&cpu, &spec, &*weights, dtype, &limits(DType::F32));
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

/// Checks ChatGLM2, ChatGLM3 or GLM-4 against their published code.
fn chatglm(file: &str, norm_eps: &str, tolerance: f64) {
    let mut numbers = Numbers::open(file);
    let config = format!(
        r#"{{
            "model_type": "chatglm", "architectures": ["ChatGLMModel"], "torch_dtype": "float32",
            "padded_vocab_size": {VOCAB}, "hidden_size": {HIDDEN}, "ffn_hidden_size": 48, "kv_channels": 4,
            "multi_query_attention": true, "multi_query_group_num": 2, "num_attention_heads": 8, "num_layers": 1,
            "seq_length": 64, "layernorm_epsilon": {norm_eps}, "rmsnorm": true, "add_bias_linear": false,
            "add_qkv_bias": true, "post_layer_norm": true, "original_rope": true
        }}"#
    );
    let in_file = [
        ("transformer.embedding.word_embeddings.weight", vec![VOCAB, HIDDEN]),
        ("transformer.encoder.layers.0.input_layernorm.weight", vec![HIDDEN]),
        ("transformer.encoder.layers.0.self_attention.query_key_value.weight", vec![48, HIDDEN]),
        ("transformer.encoder.layers.0.self_attention.query_key_value.bias", vec![48]),
        ("transformer.encoder.layers.0.self_attention.dense.weight", vec![HIDDEN, HIDDEN]),
        ("transformer.encoder.layers.0.post_attention_layernorm.weight", vec![HIDDEN]),
        ("transformer.encoder.layers.0.mlp.dense_h_to_4h.weight", vec![2 * 48, HIDDEN]),
        ("transformer.encoder.layers.0.mlp.dense_4h_to_h.weight", vec![HIDDEN, 48]),
        ("transformer.encoder.final_layernorm.weight", vec![HIDDEN]),
    ];
    let model = load(&config, numbers.tensors(in_file));
    check(model, numbers, tolerance);
}

#[test]
#[ignore = "needs the published outputs of MILLRACE_TEST_DATA"]
fn published_outputs_of_chatglm2() {
    chatglm("glm2_model.data", "1e-5", 1e-5);
}

/// Two of the three tokens of the prompt attend to each other. The file has no ids of special
/// tokens, so that the test takes one of the five ids for the one behind the prefix.
#[test]
#[ignore = "needs the published outputs of MILLRACE_TEST_DATA"]
fn published_outputs_of_chatglm_6b() {
    let mut numbers = Numbers::open("glm_model.data");
    let in_file = [
        ("transformer.word_embeddings.weight", vec![VOCAB, HIDDEN]),
        ("transformer.layers.0.input_layernorm.weight", vec![HIDDEN]),
        ("transformer.layers.0.input_layernorm.bias", vec![HIDDEN]),
        ("transformer.layers.0.attention.query_key_value.weight", vec![3 * HIDDEN, HIDDEN]),
        ("transformer.layers.0.attention.query_key_value.bias", vec![3 * HIDDEN]),
        ("transformer.layers.0.attention.dense.weight", vec![HIDDEN, HIDDEN]),
        ("transformer.layers.0.attention.dense.bias", vec![HIDDEN]),
        ("transformer.layers.0.post_attention_layernorm.weight", vec![HIDDEN]),
        ("transformer.layers.0.post_attention_layernorm.bias", vec![HIDDEN]),
        ("transformer.layers.0.mlp.dense_h_to_4h.weight", vec![4 * HIDDEN, HIDDEN]),
        ("transformer.layers.0.mlp.dense_h_to_4h.bias", vec![4 * HIDDEN]),
        ("transformer.layers.0.mlp.dense_4h_to_h.weight", vec![HIDDEN, 4 * HIDDEN]),
        ("transformer.layers.0.mlp.dense_4h_to_h.bias", vec![HIDDEN]),
        ("transformer.final_layernorm.weight", vec![HIDDEN]),
        ("transformer.final_layernorm.bias", vec![HIDDEN]),
    ];
    let tensors = numbers.tensors(in_file);
    let prompt: Vec<u32> = numbers.0[..3].iter().map(|word| u32::from_le_bytes(*word)).collect();
    assert!(!prompt[..2].contains(&prompt[2]), "the token behind the prefix occurs once");
    let (separator, mask) = (prompt[2], prompt[1]);
    let config = format!(
        r#"{{
            "model_type": "chatglm", "architectures": ["ChatGLMModel"], "torch_dtype": "float32",
            "vocab_size": {VOCAB}, "hidden_size": {HIDDEN}, "inner_hidden_size": 128, "num_layers": 1,
            "num_attention_heads": 8, "max_sequence_length": 64, "layernorm_epsilon": 1e-5,
            "position_encoding_2d": true, "bos_token_id": {separator}, "gmask_token_id": {mask},
            "mask_token_id": {VOCAB}, "eos_token_id": 4
        }}"#
    );
    check(load(&config, tensors), numbers, 1e-5);
}

#[test]
#[ignore = "needs the published outputs of MILLRACE_TEST_DATA"]
fn published_outputs_of_glm4() {
    // A wrong epsilon errs by only 4e-5.
    chatglm("glm4_model.data", "1.5625e-7", 1e-6);
}

#[test]
#[ignore = "needs the published outputs of MILLRACE_TEST_DATA"]
fn published_outputs_of_baichuan_7b() {
    let mut numbers = Numbers::open("baichuan7b_model.data");
    let config = format!(
        r#"{{
            "model_type": "baichuan", "architectures": ["BaiChuanForCausalLM"], "torch_dtype": "float32",
            "vocab_size": {VOCAB}, "hidden_size": {HIDDEN}, "intermediate_size": 96, "num_hidden_layers": 1,
            "num_attention_heads": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "hidden_act": "silu",
            "tie_word_embeddings": true
        }}"#
    );
    let in_file = [
        ("model.embed_tokens.weight", vec![VOCAB, HIDDEN]),
        ("model.layers.0.input_layernorm.weight", vec![HIDDEN]),
        ("model.layers.0.self_attn.W_pack.weight", vec![3 * HIDDEN, HIDDEN]),
        ("model.layers.0.self_attn.o_proj.weight", vec![HIDDEN, HIDDEN]),
        ("model.layers.0.post_attention_layernorm.weight", vec![HIDDEN]),
        ("model.layers.0.mlp.gate_proj.weight", vec![96, HIDDEN]),
        ("model.layers.0.mlp.down_proj.weight", vec![HIDDEN, 96]),
        ("model.layers.0.mlp.up_proj.weight", vec![96, HIDDEN]),
        ("model.norm.weight", vec![HIDDEN]),
    ];
    let model = load(&config, numbers.tensors(in_file));
    check(model, numbers, 1e-5);
}
