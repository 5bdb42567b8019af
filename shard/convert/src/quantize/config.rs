//! The `quantization_config` of new checkpoints.

use millrace_numbers::DType;
use millrace_numbers::formats::Target;
use millrace_numbers::formats::fp8::BLOCK;
use serde_json::{Value, json};

/// Returns the value of `quantization_config` in `config.json`. `dense` are the names of the
/// modules that are not quantized.
pub(super) fn config(target: Target, dense: &[String], dtype: DType) -> Value {
    match target {
        Target::Int8 => {
            let weights = weights("int", 8, "channel", true, None);
            compressed("int-quantized", &weights, &dynamic_activations("int"), dense)
        }
        Target::Int4 { group, symmetric } => {
            let weights = weights("int", 4, "group", symmetric, Some(group));
            compressed("pack-quantized", &weights, &Value::Null, dense)
        }
        Target::Fp8 => {
            let weights = weights("float", 8, "channel", true, None);
            compressed("float-quantized", &weights, &dynamic_activations("float"), dense)
        }
        Target::Fp8Block => json!({
            "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
            // transformers reads the first name, and older versions of vLLM the second one.
            "modules_to_not_convert": dense, "ignored_layers": dense,
        }),
        Target::Nf4 => json!({
            "quant_method": "bitsandbytes", "load_in_4bit": true, "load_in_8bit": false,
            "_load_in_4bit": true, "_load_in_8bit": false,
            "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": false,
            "bnb_4bit_compute_dtype": dtype.name(), "bnb_4bit_quant_storage": "uint8",
            "llm_int8_skip_modules": dense, "llm_int8_threshold": 6.0,
            "llm_int8_enable_fp32_cpu_offload": false, "llm_int8_has_fp16_weight": false,
        }),
    }
}

fn weights(kind: &str, bits: usize, strategy: &str, symmetric: bool, group: Option<usize>) -> Value {
    json!({
        "type": kind, "num_bits": bits, "strategy": strategy, "symmetric": symmetric, "group_size": group,
        "dynamic": false, "observer": "minmax", "actorder": null, "block_structure": null,
    })
}

/// Returns activations of 8 bits with a scale per token that is computed in each step.
fn dynamic_activations(kind: &str) -> Value {
    json!({
        "type": kind, "num_bits": 8, "strategy": "token", "symmetric": true, "group_size": null,
        "dynamic": true, "observer": null, "actorder": null, "block_structure": null,
    })
}

fn compressed(format: &str, weights: &Value, activations: &Value, dense: &[String]) -> Value {
    json!({
        "quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed",
        "config_groups": {"group_0": {
            "targets": ["Linear"], "weights": weights, "input_activations": activations,
            "output_activations": null,
        }},
        "ignore": dense, "kv_cache_scheme": null, "global_compression_ratio": null,
    })
}
