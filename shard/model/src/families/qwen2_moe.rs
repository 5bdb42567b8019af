//! Qwen2 MoE (Qwen1.5-MoE, Qwen2-57B-A14B): Qwen2 with experts, beside which all tokens pass
//! through a gated shared expert.

use super::config::Config;
use super::decoder::{self, MAX_WIDTH, Traits};
use super::error::ConfigError;
use super::experts::{self, ExpertKeys};
use super::family::Family;
use super::names;
use crate::description::{DecoderSpec, SharedExpert};

pub(super) const FAMILY: Family =
    Family { model_type: "qwen2_moe", architectures: &["Qwen2MoeForCausalLM"], spec, names: names::LLAMA };

const KEYS: ExpertKeys = ExpertKeys {
    experts: ("num_experts", 60),
    top_k: ("num_experts_per_tok", 4),
    width: ("moe_intermediate_size", 1408),
};

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let qkv_bias = config.flag("qkv_bias", true)?;
    let traits = Traits { qkv_bias, kv_heads: Some(16), ..Traits::default() };
    let mut spec = decoder::read(config, &traits)?;
    slide(config, &mut spec)?;
    let mut of_layers = experts::read(config, &KEYS)?;
    of_layers.router.normalize = config.flag("norm_topk_prob", false)?;
    let width = config.optional_size("shared_expert_intermediate_size", MAX_WIDTH)?.unwrap_or(5632);
    of_layers.shared = Some(SharedExpert { width, gated: true });
    experts::place_sparsely(config, &mut spec, &of_layers)?;
    Ok(spec)
}

/// Sets the sliding windows: `layer_types` names the layers, or every second one below
/// `max_window_layers` has a window.
fn slide(config: &Config, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    let on = config.flag("use_sliding_window", false)?;
    let window = if on { decoder::window(config, 4096)? } else { None };
    let end = config.optional("max_window_layers")?.unwrap_or(28);
    match window {
        Some(size) if !config.mentions("layer_types") => {
            let windowed = spec.layers.iter_mut().take(end).step_by(2);
            windowed.for_each(|layer| layer.attention.slide(size));
            Ok(())
        }
        window => decoder::slide(config, spec, window, 0),
    }
}
