//! Gemma: Llama with scales stored minus 1, a scaled embedding, and GELU.

use millrace_backend::Activation;

use super::config::Config;
use super::decoder::{self, NormTrait, Traits};
use super::error::ConfigError;
use super::family::Family;
use super::names;
use crate::description::DecoderSpec;

pub(super) const FAMILY: Family =
    Family { model_type: "gemma", architectures: &["GemmaForCausalLM"], spec, names: names::LLAMA };

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    insist_causal(config)?;
    let mut spec = read(config, Traits { kv_heads: Some(16), ..Traits::default() })?;
    // Files of the first release name the other form of GELU, which the model was not trained with.
    for layer in &mut spec.layers {
        if let Some(mlp) = layer.mlp.dense_mut() {
            mlp.act = Activation::GeluTanh;
        }
    }
    Ok(spec)
}

/// Refuses tokens that attend to later ones, which only Gemma 3 was trained with.
pub(super) fn insist_causal(config: &Config) -> Result<(), ConfigError> {
    config.insist("use_bidirectional_attention", false, "tokens that attend to later ones")
}

/// Reads what all versions of Gemma have in common.
pub(super) fn read(config: &Config, traits: Traits) -> Result<DecoderSpec, ConfigError> {
    let bias = config.flag("attention_bias", false)?;
    let traits = Traits {
        head_dim: Some(256),
        tied_head: true,
        norm: NormTrait::RmsPlusOne,
        norm_eps: Some(1e-6),
        act: Activation::GeluTanh,
        qkv_bias: bias,
        out_bias: bias,
        ..traits
    };
    let mut spec = decoder::read(config, &traits)?;
    spec.embedding.factor = (spec.hidden as f32).sqrt();
    Ok(spec)
}
