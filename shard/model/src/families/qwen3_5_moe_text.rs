//! The text part of Qwen3.5 with experts, beside which all tokens pass through a gated shared
//! expert.

use super::config::Config;
use super::decoder::{Keys, MAX_WIDTH, Traits, USUAL_KEYS};
use super::delta;
use super::error::ConfigError;
use super::experts::{self, ExpertKeys};
use super::family::Family;
use crate::description::{DecoderSpec, SharedExpert};

pub(super) const FAMILY: Family = Family {
    model_type: "qwen3_5_moe_text",
    architectures: &["Qwen3_5MoeForCausalLM"],
    spec,
    names: delta::NAMES,
};

const KEYS: ExpertKeys = ExpertKeys {
    experts: ("num_experts", 256),
    top_k: ("num_experts_per_tok", 8),
    width: ("moe_intermediate_size", 512),
};

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    // The weights of the chosen experts are always normalized.
    config.insist("norm_topk_prob", true, "weights of experts that are not normalized")?;
    // No layer has a dense MLP.
    let keys = Keys { width: KEYS.width.0, ..USUAL_KEYS };
    let mut spec = delta::read(config, Traits { keys, kv_heads: Some(2), ..Traits::default() })?;
    let mut of_layers = experts::read(config, &KEYS)?;
    let width = config.optional_size("shared_expert_intermediate_size", MAX_WIDTH)?.unwrap_or(512);
    of_layers.shared = Some(SharedExpert { width, gated: true });
    experts::place(&mut spec, &of_layers, |_| true);
    Ok(spec)
}
