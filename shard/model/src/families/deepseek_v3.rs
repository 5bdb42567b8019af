//! DeepSeek-V3, V3.1 and R1: latent attention, and experts that are chosen by sigmoids and a bias,
//! beside a shared one.

use millrace_backend::RopeStyle;

use super::config::Config;
use super::decoder::Traits;
use super::error::ConfigError;
use super::experts::{self, ExpertKeys};
use super::family::Family;
use super::latent::{self, LatentSizes};
use crate::description::DecoderSpec;

pub(super) const FAMILY: Family = Family {
    model_type: "deepseek_v3",
    architectures: &["DeepseekV3ForCausalLM"],
    spec,
    names: latent::NAMES,
};

const KEYS: ExpertKeys = ExpertKeys {
    experts: ("n_routed_experts", 256),
    top_k: ("num_experts_per_tok", 8),
    width: ("moe_intermediate_size", 2048),
};

/// Reads the specification, also of Kimi K2.
pub(super) fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let mut spec = decoder(config, &LatentSizes::DEEPSEEK)?;
    config.insist("moe_layer_freq", 1, "every layer after the first dense ones must have experts")?;
    config.insist("scoring_func", "sigmoid", "scores of experts must be sigmoids")?;
    config.insist("topk_method", "noaux_tc", "experts must be chosen with the help of a bias")?;
    experts::require_groups(config)?;
    let of_layers = experts::read_grouped(config, &KEYS)?;
    let dense = config.optional("first_k_dense_replace")?.unwrap_or(3);
    experts::place(&mut spec, &of_layers, |index| index >= dense);
    Ok(spec)
}

/// Reads a decoder with the attention of DeepSeek-V3 and dense MLPs. `absent` are the sizes of
/// absent keys.
pub(super) fn decoder(config: &Config, absent: &LatentSizes) -> Result<DecoderSpec, ConfigError> {
    let interleaved = config.flag("rope_interleave", true)?;
    let rope = if interleaved { RopeStyle::Interleaved } else { RopeStyle::Half };
    latent::read(config, &Traits { rope, norm_eps: Some(1e-6), ..Traits::default() }, absent)
}
