//! Qwen3 MoE: Qwen3 with experts.

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::experts::{self, ExpertKeys};
use super::family::Family;
use super::{names, qwen3};
use crate::description::DecoderSpec;

pub(super) const FAMILY: Family =
    Family { model_type: "qwen3_moe", architectures: &["Qwen3MoeForCausalLM"], spec, names: names::LLAMA };

const KEYS: ExpertKeys = ExpertKeys {
    experts: ("num_experts", 128),
    top_k: ("num_experts_per_tok", 8),
    width: ("moe_intermediate_size", 768),
};

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let mut spec = decoder::read(config, &Traits { kv_heads: Some(4), ..qwen3::traits(config)? })?;
    // Unlike in Qwen3, the window is that of all layers.
    let on = config.flag("use_sliding_window", false)?;
    let window = if on { decoder::window(config, 4096)? } else { None };
    decoder::slide(config, &mut spec, window, 0)?;
    let mut of_layers = experts::read(config, &KEYS)?;
    of_layers.router.normalize = config.flag("norm_topk_prob", false)?;
    experts::place_sparsely(config, &mut spec, &of_layers)?;
    Ok(spec)
}
