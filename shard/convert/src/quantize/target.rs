//! The formats of new checkpoints: their tensors, and their `quantization_config`.

use millrace_formats::{DType as StoredDType, NewTensor};
use millrace_numbers::DType;
use millrace_numbers::formats::nf4;
use serde_json::{Value, json};

/// Rows and columns of a block of [`Target::Fp8Block`].
pub(super) const BLOCK: usize = 128;

/// A format of quantized checkpoints that Millrace, vLLM and transformers read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// 8-bit integers with an f32 scale per row (compressed-tensors, int-quantized).
    Int8,
    /// 4-bit integers in groups of columns, each with an f16 scale (compressed-tensors,
    /// pack-quantized).
    Int4 {
        /// Columns of a group: 32, 64 or 128.
        group: usize,
        /// Whether the code of the weight 0 is 8 in all groups. Otherwise each has a zero point.
        symmetric: bool,
    },
    /// FP8 (e4m3) with an f32 scale per row (compressed-tensors, float-quantized).
    Fp8,
    /// FP8 (e4m3) with an f32 scale per block of 128 x 128 (`quant_method` fp8).
    Fp8Block,
    /// NF4 with an f32 factor per 64 weights (bitsandbytes).
    Nf4,
}

/// A tensor of a quantized module.
pub(super) struct ModuleTensor {
    /// Tensor of the new checkpoint.
    pub(super) tensor: NewTensor,
    /// The bytes of a tensor that does not depend on the weights. The others are made of rows.
    pub(super) constant: Option<Vec<u8>>,
}

impl Target {
    /// Returns the name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Target::Int8 => "int8",
            Target::Int4 { .. } => "int4",
            Target::Fp8 => "fp8",
            Target::Fp8Block => "fp8-block",
            Target::Nf4 => "nf4",
        }
    }

    /// Returns the reason why a matrix `[rows, cols]` is left dense, if it must be.
    pub(super) fn misfit(self, rows: usize, cols: usize) -> Option<String> {
        match self {
            Target::Int4 { group, .. } if !cols.is_multiple_of(group) => {
                Some(format!("{cols} columns are not a multiple of {group}"))
            }
            // vLLM refuses blocks that span two ranks or two parts of a fused matrix.
            Target::Fp8Block if !rows.is_multiple_of(BLOCK) || !cols.is_multiple_of(BLOCK) => {
                Some(format!("{rows} x {cols} is not a multiple of blocks of {BLOCK} x {BLOCK}"))
            }
            _ => None,
        }
    }

    /// Returns the tensors of the module `name` with a matrix `[rows, cols]`. Those that are made
    /// of rows come first, in the order of [`super::encode::Rows`]. `dtype` is the element type of
    /// the dense weights.
    pub(super) fn tensors(self, name: &str, rows: usize, cols: usize, dtype: DType) -> Vec<ModuleTensor> {
        let tensor = |suffix: &str, dtype: StoredDType, shape: &[usize]| ModuleTensor {
            tensor: NewTensor { name: format!("{name}.{suffix}"), dtype, shape: shape.to_vec() },
            constant: None,
        };
        let constant = |suffix: &str, dtype: StoredDType, shape: &[usize], bytes: Vec<u8>| ModuleTensor {
            constant: Some(bytes),
            ..tensor(suffix, dtype, shape)
        };
        match self {
            Target::Int8 => vec![
                tensor("weight", StoredDType::I8, &[rows, cols]),
                tensor("weight_scale", StoredDType::F32, &[rows, 1]),
            ],
            Target::Int4 { group, symmetric } => {
                let groups = cols / group;
                let shape = [rows as i64, cols as i64].iter().flat_map(|size| size.to_le_bytes()).collect();
                let mut tensors = vec![
                    tensor("weight_packed", StoredDType::I32, &[rows, cols / 8]),
                    tensor("weight_scale", StoredDType::F16, &[rows, groups]),
                    tensor("weight_zero_point", StoredDType::I32, &[rows.div_ceil(8), groups]),
                    constant("weight_shape", StoredDType::I64, &[2], shape),
                ];
                tensors.retain(|module| !symmetric || !module.tensor.name.ends_with("zero_point"));
                tensors
            }
            Target::Fp8 => vec![
                tensor("weight", StoredDType::F8_E4M3, &[rows, cols]),
                tensor("weight_scale", StoredDType::F32, &[rows, 1]),
            ],
            Target::Fp8Block => vec![
                tensor("weight", StoredDType::F8_E4M3, &[rows, cols]),
                tensor("weight_scale_inv", StoredDType::F32, &[rows / BLOCK, cols / BLOCK]),
            ],
            Target::Nf4 => {
                let all = rows * cols;
                let map = nf4::TABLE.iter().flat_map(|value| value.to_le_bytes()).collect();
                let state = json!({
                    "quant_type": "nf4", "blocksize": nf4::GROUP, "dtype": dtype.name(), "shape": [rows, cols],
                });
                let state = state.to_string().into_bytes();
                vec![
                    tensor("weight", StoredDType::U8, &[all.div_ceil(2), 1]),
                    tensor("weight.absmax", StoredDType::F32, &[all.div_ceil(nf4::GROUP)]),
                    constant("weight.quant_map", StoredDType::F32, &[nf4::TABLE.len()], map),
                    constant("weight.quant_state.bitsandbytes__nf4", StoredDType::U8, &[state.len()], state),
                ]
            }
        }
    }

    /// Returns the value of `quantization_config` in `config.json`. `dense` are the names of the
    /// modules that are not quantized.
    pub(super) fn config(self, dense: &[String], dtype: DType) -> Value {
        match self {
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
