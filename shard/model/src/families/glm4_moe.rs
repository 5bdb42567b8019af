//! GLM-4.5 to GLM-4.7: partial rotation, optional norms of heads, and experts as DeepSeek-V3 has
//! them after a few dense layers.

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::experts::{self, ExpertKeys};
use super::family::Family;
use super::mtp_place::MtpPlace;
use super::names::{LLAMA, Names};
use crate::description::{DecoderSpec, FeatureBlock, HeadNormPlan, LayerSlot, StoredTensors, WeightSlot};

pub(super) const FAMILY: Family = Family {
    model_type: "glm4_moe",
    architectures: &["Glm4MoeForCausalLM"],
    spec,
    names: Names { tensors, has_later_layers: true, mtp: Some(MtpPlace::LaterLayer), ..LLAMA },
};

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Gate, Hidden, Up};
    match slot {
        WeightSlot::Layer(_, LayerSlot::SharedGateUp) => {
            &[("mlp.shared_experts.gate_proj", &[Gate]), ("mlp.shared_experts.up_proj", &[Up])]
        }
        WeightSlot::Layer(_, LayerSlot::SharedDown) => &[("mlp.shared_experts.down_proj", &[Hidden])],
        other => other.usual_tensors(),
    }
}

const KEYS: ExpertKeys = ExpertKeys {
    experts: ("n_routed_experts", 128),
    top_k: ("num_experts_per_tok", 8),
    width: ("moe_intermediate_size", 1408),
};

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let traits = Traits {
        qkv_bias: config.flag("attention_bias", false)?,
        head_norm: if config.flag("use_qk_norm", false)? { HeadNormPlan::Shared } else { HeadNormPlan::None },
        kv_heads: Some(8),
        partial_rotary: 0.5,
        ..Traits::default()
    };
    let mut spec = decoder::read(config, &traits)?;
    let of_layers = experts::read_grouped(config, &KEYS)?;
    let dense = config.optional("first_k_dense_replace")?.unwrap_or(1);
    experts::place(&mut spec, &of_layers, |index| index >= dense);
    Ok(spec)
}
