//! Tests that a configuration alone takes the memory of its quantized checkpoint. The small
//! checkpoints are seeds of the fuzzer.

use std::path::{Path, PathBuf};

use millrace_formats::Source;
use serde_json::json;

use super::{changed, config_only, golden, llama, load_dummy};
use crate::description::{LayerSlot, WeightSlot};
use crate::families::Overrides;
use crate::inspect::Inspection;

/// The files of the fuzzer with quantized checkpoints of one layer, and the names of their formats.
const SEEDS: [(&str, &str); 8] = [
    ("gptq", "gptq"),
    ("awq", "awq"),
    ("fp8", "fp8"),
    ("compressed-packed", "compressed-tensors"),
    ("compressed-int8", "compressed-tensors"),
    ("compressed-fp8", "compressed-tensors"),
    ("bnb-int8", "bitsandbytes"),
    ("bnb-nf4", "bitsandbytes-nf4"),
];

fn inspect(folder: &Path) -> Inspection {
    let source = Source::Directory(folder.to_owned());
    Inspection::new(&source, None, None, None, &Overrides::default()).unwrap()
}

/// Inspects `config` alone, and with the weights beside it if there are any.
fn both(config: &[u8], weights: &[u8]) -> (Inspection, Inspection) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    let planned = inspect(folder.path());
    std::fs::write(folder.path().join("model.safetensors"), weights).unwrap();
    (planned, inspect(folder.path()))
}

/// Inspects a seed, whose configuration ends with a NUL byte.
fn both_of_seed(name: &str) -> (Inspection, Inspection) {
    let seeds = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/models");
    let seed = std::fs::read(seeds.join(name)).unwrap();
    let end = seed.iter().position(|&byte| byte == 0).unwrap();
    both(&seed[..end], &seed[end + 1..])
}

#[test]
fn a_configuration_takes_the_memory_of_its_quantized_checkpoint() {
    let (dense, _) = both_of_seed("dense");
    for (seed, format) in SEEDS {
        let (planned, stored) = both_of_seed(seed);
        assert_eq!(planned.weight_bytes(), stored.weight_bytes(), "{seed}");
        assert!(planned.weight_bytes() < dense.weight_bytes(), "{seed}");
        let kept = format!("matrices of layers as {format}\n");
        assert!(planned.to_string().contains(&kept), "{seed}: {planned}");
    }
    // The experts of gpt-oss are the only quantized weights.
    for name in ["gpt_oss_mxfp4", "gpt_oss_mxfp4_wide"] {
        let folder = golden(name);
        let config = std::fs::read(folder.join("config.json")).unwrap();
        let weights = std::fs::read(folder.join("model.safetensors")).unwrap();
        let (planned, stored) = both(&config, &weights);
        assert_eq!(planned.weight_bytes(), stored.weight_bytes(), "{name}");
    }
}

/// A configuration of matrices that are larger than the buffers that dummy weights are cut from.
fn large(quantization: &serde_json::Value) -> serde_json::Value {
    let sizes = json!({
        "hidden_size": 8192, "intermediate_size": 28_672, "num_attention_heads": 64, "num_key_value_heads": 8,
        "vocab_size": 128, "dtype": "bfloat16", "quantization_config": quantization,
    });
    changed(llama(), &sizes)
}

#[test]
fn large_matrices_are_several_parts() {
    for quantization in [
        json!({"quant_method": "gptq", "bits": 4, "group_size": 128}),
        json!({"quant_method": "gptq", "bits": 3, "group_size": -1}),
        json!({"quant_method": "awq", "bits": 4, "group_size": 128}),
        json!({"quant_method": "fp8", "weight_block_size": [128, 128]}),
        json!({"quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "nf4"}),
    ] {
        let model = load_dummy(&config_only(&large(&quantization))).unwrap();
        let slot = WeightSlot::Layer(0, LayerSlot::Down);
        let (rows, cols) = model.spec.shape(slot);
        let parts = model.weights.parts(slot).unwrap();
        assert!(parts.len() > 1, "{quantization}");
        assert_eq!(parts.iter().map(|part| part.rows.len()).sum::<usize>(), rows, "{quantization}");
        let mut row = vec![0.0; cols];
        for part in &parts {
            part.read_row(part.rows.len() - 1, &mut row);
            assert!(row.iter().all(|value| value.is_finite() && value.abs() < 10.0), "{quantization}");
        }
    }
}

#[test]
fn modules_that_are_left_dense_are_dense() {
    let is_dense = |quantization: serde_json::Value, slot: LayerSlot| {
        let model = load_dummy(&config_only(&large(&quantization))).unwrap();
        let parts = model.weights.parts(WeightSlot::Layer(0, slot)).unwrap();
        parts.iter().all(|part| part.tensor.encoding.dense().is_some())
    };
    let awq =
        |dense| json!({"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": dense});
    let gptq = |dynamic| json!({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": dynamic});
    for (quantization, expected) in [
        (awq(json!(["down_proj"])), true),
        (awq(json!(["lm_head", "gate"])), false),
        (gptq(json!({"-:.*\\.down_proj$": {}})), true),
        (gptq(json!({"-:down_proj": {}})), false),
    ] {
        assert_eq!(is_dense(quantization.clone(), LayerSlot::Down), expected, "{quantization}");
        assert!(!is_dense(quantization, LayerSlot::Out));
    }
    let wrong = large(&gptq(json!({"-:(": {}})));
    let error = load_dummy(&config_only(&wrong)).err().unwrap().to_string();
    assert!(error.contains("dynamic has an expression that cannot be read"), "{error}");
}
