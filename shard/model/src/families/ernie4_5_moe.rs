//! ERNIE 4.5 with experts, which a softmax and a bias choose, beside shared ones.

use super::config::Config;
use super::decoder::{MAX_LAYERS, Traits};
use super::ernie4_5;
use super::error::ConfigError;
use super::experts::{self, ExpertKeys};
use super::family::Family;
use super::names::{LLAMA, Names};
use crate::description::{DecoderSpec, FeatureBlock, LayerSlot, StoredTensors, WeightSlot};

pub(super) const FAMILY: Family = Family {
    model_type: "ernie4_5_moe",
    architectures: &["Ernie4_5_MoeForCausalLM"],
    spec,
    names: Names { tensors, ..LLAMA },
};

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Experts, Gate, Hidden, Up};
    match slot {
        WeightSlot::Layer(_, LayerSlot::ChoiceBias) => {
            &[("mlp.moe_statics.e_score_correction_bias", &[Experts])]
        }
        WeightSlot::Layer(_, LayerSlot::SharedGateUp) => {
            &[("mlp.shared_experts.gate_proj", &[Gate]), ("mlp.shared_experts.up_proj", &[Up])]
        }
        WeightSlot::Layer(_, LayerSlot::SharedDown) => &[("mlp.shared_experts.down_proj", &[Hidden])],
        other => other.usual_tensors(),
    }
}

const KEYS: ExpertKeys = ExpertKeys {
    experts: ("moe_num_experts", 64),
    top_k: ("moe_k", 6),
    width: ("moe_intermediate_size", 1536),
};

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    config.insist("use_bias", false, "experts and the head have no biases")?;
    let mut spec = ernie4_5::read(config, Traits { kv_heads: Some(4), ..Traits::default() })?;
    let mut of_layers = experts::read(config, &KEYS)?;
    of_layers.choice_bias = true;
    of_layers.shared = experts::shared(config, "moe_num_shared_experts", 2, of_layers.width)?;
    let first = config.optional::<usize>("moe_layer_start_index")?.unwrap_or(1);
    // -1 stands for the last layer.
    let last = config.optional::<i64>("moe_layer_end_index")?.unwrap_or(-1);
    let interval = config.optional_size("moe_layer_interval", MAX_LAYERS)?.unwrap_or(1);
    experts::place(&mut spec, &of_layers, |index| {
        let is_before_end = last == -1 || i64::try_from(index).is_ok_and(|index| index <= last);
        index >= first && is_before_end && (index + 1).is_multiple_of(interval)
    });
    Ok(spec)
}
