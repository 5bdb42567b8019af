//! Falcon-H1: attention and a Mamba-2 layer beside each other in every layer, and factors on the
//! projections of both and of the MLP.

use super::config::Config;
use super::decoder::{self, MAX_WIDTH, Traits};
use super::error::ConfigError;
use super::family::Family;
use super::mamba;
use super::names::{LLAMA, Names};
use crate::description::{
    Attention, DecoderSpec, FeatureBlock, LayerSlot, NormKind, ProjectionFactors, RecurrentLayer, ResultPlan,
    StoredTensors, WeightSlot,
};

pub(super) const FAMILY: Family = Family {
    model_type: "falcon_h1",
    architectures: &["FalconH1ForCausalLM"],
    spec,
    names: Names { tensors, ..LLAMA },
};

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Gate, Hidden, Up};
    match slot {
        WeightSlot::FinalNorm => &[("model.final_layernorm", &[Hidden])],
        WeightSlot::Layer(_, LayerSlot::MlpNorm) => &[("pre_ff_layernorm", &[Hidden])],
        WeightSlot::Layer(_, LayerSlot::GateUp | LayerSlot::GateUpBias) => {
            &[("feed_forward.gate_proj", &[Gate]), ("feed_forward.up_proj", &[Up])]
        }
        WeightSlot::Layer(_, LayerSlot::Down | LayerSlot::DownBias) => {
            &[("feed_forward.down_proj", &[Hidden])]
        }
        WeightSlot::Recurrent(_, slot) => mamba::tensors(slot),
        other => other.usual_tensors(),
    }
}

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let bias = config.flag("attention_bias", false)?;
    let traits = Traits {
        kv_heads: Some(8),
        positions: Some(8192),
        norm_eps: Some(1e-5),
        qkv_bias: bias,
        out_bias: bias,
        mlp_bias: config.flag("mlp_bias", false)?,
        ..Traits::default()
    };
    let mut spec = decoder::read(config, &traits)?;
    spec.embedding.factor = factor(config, "embedding_multiplier")?;
    spec.head.factor = factor(config, "lm_head_multiplier")?;
    set_attention_factors(config, &mut spec)?;
    set_mlp_factors(config, &mut spec)?;
    let recurrent = recurrence(config, &spec)?;
    for layer in &mut spec.layers {
        if let Some(heads) = layer.attention.heads().cloned() {
            layer.attention = Attention::Hybrid { heads, recurrent: recurrent.clone() };
        }
    }
    Ok(spec)
}

/// Reads a factor, which must be above 0.
fn factor(config: &Config, key: &'static str) -> Result<f32, ConfigError> {
    Ok(config.optional_number(key, f64::MIN_POSITIVE)?.unwrap_or(1.0) as f32)
}

/// Reads a list of factors.
fn factors<const N: usize>(config: &Config, key: &'static str) -> Result<[f32; N], ConfigError> {
    let Some(list) = config.optional::<Vec<f64>>(key)? else { return Ok([1.0; N]) };
    let list: Vec<f32> = list.into_iter().map(|factor| factor as f32).collect();
    match <[f32; N]>::try_from(list) {
        Ok(factors) if factors.iter().all(|factor| *factor > 0.0 && factor.is_finite()) => Ok(factors),
        _ => Err(config.invalid(key, format!("must be {N} numbers above 0"))),
    }
}

/// Sets the factors of attention. A factor on its input is one on queries, keys and values. Those
/// on queries and keys are factors on their products, and that on values is one on the output.
fn set_attention_factors(config: &Config, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    let (input, key) = (factor(config, "attention_in_multiplier")?, factor(config, "key_multiplier")?);
    let out = factor(config, "attention_out_multiplier")?;
    for heads in decoder::heads_mut(spec) {
        if input != 1.0 && (heads.qkv_bias || heads.out_bias) {
            let why = "it must be 1 if attention_bias is true";
            return Err(config.unsupported("attention_in_multiplier", why));
        }
        heads.score_scale *= input * input * key;
        heads.out_factor = input * out;
    }
    Ok(())
}

/// Sets the factors of the MLP. A factor on the gate is one on both gate and up if the output is
/// divided by it.
fn set_mlp_factors(config: &Config, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    let key = "mlp_multipliers";
    let [gate, down] = factors(config, key)?;
    for mlp in spec.layers.iter_mut().filter_map(|layer| layer.mlp.dense_mut()) {
        if gate != 1.0 && mlp.down_bias {
            return Err(config.unsupported(key, "the first one must be 1 if mlp_bias is true"));
        }
        (mlp.up_factor, mlp.out_factor) = (gate, down / gate);
    }
    Ok(())
}

/// Reads the Mamba-2 layer of every layer.
fn recurrence(config: &Config, spec: &DecoderSpec) -> Result<RecurrentLayer, ConfigError> {
    let NormKind::Rms { eps, .. } = spec.norm.kind else {
        unreachable!("the traits ask for RMS norms; this is a bug")
    };
    let width = match config.optional_size("mamba_d_ssm", MAX_WIDTH)? {
        Some(width) => width,
        None if config.mentions("mamba_d_ssm") => mamba::expanded(config, spec.hidden)?,
        None => 1024,
    };
    let mut layer = mamba::read(config, &mamba::USUAL_KEYS, width, eps)?;
    layer.out_bias = config.flag("projectors_bias", false)?;
    layer.result = match config.flag("mamba_rms_norm", false)? {
        false => ResultPlan::Gated,
        true if config.flag("mamba_norm_before_gate", true)? => ResultPlan::NormedGroups { eps },
        true => ResultPlan::GatedGroups { eps },
    };
    let input = factor(config, "ssm_in_multiplier")?;
    let [gate, value, key, query, rate] = factors(config, "ssm_multipliers")?.map(|factor| input * factor);
    let out = factor(config, "ssm_out_multiplier")?;
    layer.factors = ProjectionFactors { query, key, value, gate, rate, out };
    Ok(layer)
}
