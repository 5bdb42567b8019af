//! Hy3: the attention of Qwen3, and experts that are chosen by sigmoids and a bias, beside a shared
//! one.

use millrace_backend::RouterScores;

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::experts::{self, ExpertKeys};
use super::family::Family;
use super::names::{LLAMA, Names};
use crate::description::{DecoderSpec, FeatureBlock, HeadNormPlan, LayerSlot, StoredTensors, WeightSlot};

pub(super) const FAMILY: Family = Family {
    model_type: "hy_v3",
    architectures: &["HYV3ForCausalLM"],
    spec,
    names: Names {
        tensors,
        has_later_layers: true,
        // The module of transformers has another name than the published tensors.
        aliases: &[(".mlp.shared_mlp.", ".mlp.shared_experts.")],
        ..LLAMA
    },
};

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Experts, Gate, Hidden, Up};
    match slot {
        WeightSlot::Layer(_, LayerSlot::Router) => &[("mlp.router.gate", &[Experts])],
        WeightSlot::Layer(_, LayerSlot::ChoiceBias) => &[("mlp.expert_bias", &[Experts])],
        WeightSlot::Layer(_, LayerSlot::SharedGateUp) => {
            &[("mlp.shared_mlp.gate_proj", &[Gate]), ("mlp.shared_mlp.up_proj", &[Up])]
        }
        WeightSlot::Layer(_, LayerSlot::SharedDown) => &[("mlp.shared_mlp.down_proj", &[Hidden])],
        other => other.usual_tensors(),
    }
}

const KEYS: ExpertKeys = ExpertKeys {
    experts: ("num_experts", 192),
    top_k: ("num_experts_per_tok", 8),
    width: ("moe_intermediate_size", 1536),
};

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    config.insist("mlp_bias", false, "MLPs have no biases")?;
    let bias = config.flag("attention_bias", false)?;
    let traits = Traits {
        kv_heads: Some(8),
        head_dim: Some(128),
        theta: Some(11_158_840.0),
        norm_eps: Some(1e-5),
        qkv_bias: bias,
        out_bias: bias,
        head_norm: HeadNormPlan::Shared,
        ..Traits::default()
    };
    let mut spec = decoder::read(config, &traits)?;
    let mut of_layers = experts::read(config, &KEYS)?;
    of_layers.router.scores = RouterScores::Sigmoid;
    of_layers.router.factor = config.optional_number("router_scaling_factor", 0.0)?.unwrap_or(2.826) as f32;
    of_layers.choice_bias = true;
    of_layers.shared = experts::shared(config, "num_shared_experts", 1, of_layers.width)?;
    experts::place_listed(config, &mut spec, &of_layers)?;
    Ok(spec)
}
