//! gpt-oss: attention sinks, windows in turns with full attention, and experts with biases and
//! clamped gates.

use millrace_backend::{Gating, MlpKind};

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::experts::{self, ExpertKeys};
use super::family::Family;
use super::names::{LLAMA, Names, StackedExperts};
use crate::description::{DecoderSpec, FeatureBlock, LayerSlot, StoredTensors, WeightSlot};

pub(super) const FAMILY: Family = Family {
    model_type: "gpt_oss",
    architectures: &["GptOssForCausalLM"],
    spec,
    names: Names { tensors, experts: StackedExperts::InTurns, ..LLAMA },
};

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Experts, Gate, Hidden, Up};
    use LayerSlot::{ExpertDown, ExpertDownBias, ExpertGateUp, ExpertGateUpBias, Router, RouterBias};
    match slot {
        WeightSlot::Layer(_, Router | RouterBias) => &[("mlp.router", &[Experts])],
        WeightSlot::Layer(_, ExpertGateUp) => &[("mlp.experts.gate_up_proj", &[Gate, Up])],
        WeightSlot::Layer(_, ExpertGateUpBias) => &[("mlp.experts.gate_up_proj_bias", &[Gate, Up])],
        WeightSlot::Layer(_, ExpertDown) => &[("mlp.experts.down_proj", &[Hidden])],
        WeightSlot::Layer(_, ExpertDownBias) => &[("mlp.experts.down_proj_bias", &[Hidden])],
        other => other.usual_tensors(),
    }
}

const KEYS: ExpertKeys = ExpertKeys {
    experts: ("num_local_experts", 128),
    top_k: ("num_experts_per_tok", 4),
    width: ("intermediate_size", 2880),
};

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let bias = config.flag("attention_bias", true)?;
    let traits = Traits {
        qkv_bias: bias,
        out_bias: bias,
        head_dim: Some(64),
        kv_heads: Some(8),
        theta: Some(150_000.0),
        norm_eps: Some(1e-5),
        ..Traits::default()
    };
    let mut spec = decoder::read(config, &traits)?;
    decoder::slide_by_pattern(config, &mut spec, decoder::window(config, 128)?, 2)?;
    decoder::heads_mut(&mut spec).for_each(|heads| heads.sinks = true);
    let mut of_layers = experts::read(config, &KEYS)?;
    let number = |key| config.optional_number(key, f64::from(f32::MIN_POSITIVE));
    let alpha = number("swiglu_alpha")?.unwrap_or(1.702) as f32;
    let limit = number("swiglu_limit")?.unwrap_or(7.0) as f32;
    config.insist("hidden_act", "silu", "the gates of gpt-oss have no other activation")?;
    of_layers.kind = MlpKind::Gated(Gating::Clamped { alpha, limit });
    (of_layers.router_bias, of_layers.up_bias, of_layers.down_bias) = (true, true, true);
    experts::place(&mut spec, &of_layers, |_| true);
    Ok(spec)
}
