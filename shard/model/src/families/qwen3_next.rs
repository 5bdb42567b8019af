//! Qwen3-Next: gated delta nets in three of four layers, experts, and a gated shared expert.

use super::config::Config;
use super::decoder::{MAX_WIDTH, Traits};
use super::delta;
use super::error::ConfigError;
use super::experts::{self, ExpertKeys};
use super::family::Family;
use super::names::Names;
use crate::description::{
    DecoderSpec, FeatureBlock, RecurrentBlock, RecurrentSlot, SharedExpert, StoredTensors, WeightSlot,
};

pub(super) const FAMILY: Family = Family {
    model_type: "qwen3_next",
    architectures: &["Qwen3NextForCausalLM"],
    spec,
    names: Names { tensors, grouped_recurrent: true, ..delta::NAMES },
};

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::Recurrent;
    use RecurrentBlock::{Gate, Key, Query, Rate, Strength, Value};
    match slot {
        WeightSlot::Recurrent(_, RecurrentSlot::In) => &[(
            "linear_attn.in_proj_qkvz",
            &[Recurrent(Query), Recurrent(Key), Recurrent(Value), Recurrent(Gate)],
        )],
        WeightSlot::Recurrent(_, RecurrentSlot::Rates) => {
            &[("linear_attn.in_proj_ba", &[Recurrent(Strength), Recurrent(Rate)])]
        }
        other => delta::tensors(other),
    }
}

const KEYS: ExpertKeys = ExpertKeys {
    experts: ("num_experts", 512),
    top_k: ("num_experts_per_tok", 10),
    width: ("moe_intermediate_size", 512),
};

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let mut spec = delta::read(config, Traits { kv_heads: Some(2), ..Traits::default() })?;
    let mut of_layers = experts::read(config, &KEYS)?;
    of_layers.router.normalize = config.flag("norm_topk_prob", true)?;
    let width = config.optional_size("shared_expert_intermediate_size", MAX_WIDTH)?.unwrap_or(512);
    of_layers.shared = Some(SharedExpert { width, gated: true });
    experts::place_sparsely(config, &mut spec, &of_layers)?;
    Ok(spec)
}
