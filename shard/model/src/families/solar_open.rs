//! Solar Open: Llama with experts as GLM-4.5 has them, in every layer.

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::experts::{self, ExpertKeys};
use super::family::Family;
use super::latent;
use crate::description::DecoderSpec;

pub(super) const FAMILY: Family =
    Family { model_type: "solar_open", architectures: &["SolarOpenForCausalLM"], spec, names: latent::NAMES };

const KEYS: ExpertKeys = ExpertKeys {
    experts: ("n_routed_experts", 128),
    top_k: ("num_experts_per_tok", 8),
    width: ("moe_intermediate_size", 1280),
};

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    // No layer is dense, so that the file need not have the width of MLPs.
    let mut config = config.clone();
    config.insert_absent("intermediate_size", 1.into());
    let traits = Traits {
        qkv_bias: config.flag("attention_bias", false)?,
        kv_heads: Some(8),
        head_dim: Some(128),
        theta: Some(1_000_000.0),
        norm_eps: Some(1e-5),
        ..Traits::default()
    };
    let mut spec = decoder::read(&config, &traits)?;
    let of_layers = experts::read_grouped(&config, &KEYS)?;
    experts::place(&mut spec, &of_layers, |_| true);
    Ok(spec)
}
