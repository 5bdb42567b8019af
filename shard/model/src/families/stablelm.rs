//! StableLM: Llama with layer norms, and rotation of a quarter of each head.

use super::config::Config;
use super::decoder::{self, Keys, NormTrait, Traits, USUAL_KEYS};
use super::error::ConfigError;
use super::family::Family;
use super::names;
use crate::description::{DecoderSpec, Residual};

pub(super) const FAMILY: Family =
    Family { model_type: "stablelm", architectures: &["StableLmForCausalLM"], spec, names: names::LLAMA };

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    config.insist("qk_layernorm", false, "norms of heads that are stored one by one")?;
    let traits = Traits {
        keys: Keys { norm_eps: "layer_norm_eps", ..USUAL_KEYS },
        kv_heads: Some(32),
        partial_rotary: 0.25,
        norm: NormTrait::Layer { bias: true },
        norm_eps: Some(1e-5),
        qkv_bias: config.flag("use_qkv_bias", false)?,
        ..Traits::default()
    };
    let mut spec = decoder::read(config, &traits)?;
    if config.flag("use_parallel_residual", false)? {
        spec.residual = Residual::Parallel { has_mlp_norm: false };
    }
    Ok(spec)
}
