//! Hunyuan V1 with experts in every layer, beside a shared one of the same width.

use super::config::Config;
use super::error::ConfigError;
use super::experts::{self, ExpertKeys};
use super::family::Family;
use super::hunyuan_v1_dense;
use super::names::{LLAMA, Names};
use crate::description::{DecoderSpec, FeatureBlock, LayerSlot, SharedExpert, StoredTensors, WeightSlot};

pub(super) const FAMILY: Family = Family {
    model_type: "hunyuan_v1_moe",
    architectures: &["HunYuanMoEV1ForCausalLM"],
    spec,
    names: Names { tensors, ..LLAMA },
};

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Experts, Gate, Hidden, Up};
    match slot {
        WeightSlot::Layer(_, LayerSlot::Router) => &[("mlp.gate.wg", &[Experts])],
        WeightSlot::Layer(_, LayerSlot::SharedGateUp) => {
            &[("mlp.shared_mlp.gate_proj", &[Gate]), ("mlp.shared_mlp.up_proj", &[Up])]
        }
        WeightSlot::Layer(_, LayerSlot::SharedDown) => &[("mlp.shared_mlp.down_proj", &[Hidden])],
        other => hunyuan_v1_dense::tensors(other),
    }
}

const KEYS: ExpertKeys =
    ExpertKeys { experts: ("num_experts", 1), top_k: ("moe_topk", 1), width: ("intermediate_size", 11008) };

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let mut spec = hunyuan_v1_dense::spec(config)?;
    for index in 0..spec.layers.len() {
        // Numbers may be lists with an entry for each layer.
        let of_layer = config.of_layer(index, &["num_experts", "moe_topk"])?;
        let mut experts = experts::read(&of_layer, &KEYS)?;
        experts.shared = Some(SharedExpert { width: experts.width, gated: false });
        experts::place(&mut spec, &experts, |other| other == index);
    }
    Ok(spec)
}
