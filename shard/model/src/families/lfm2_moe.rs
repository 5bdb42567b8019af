//! LFM2 with experts after a few dense layers, chosen by sigmoids and a bias.

use millrace_backend::RouterScores;

use super::config::Config;
use super::decoder::USUAL_KEYS;
use super::error::ConfigError;
use super::experts::{self, ExpertKeys};
use super::family::Family;
use super::lfm2;
use super::names::{LLAMA, Names};
use crate::description::{DecoderSpec, FeatureBlock, LayerSlot, StoredTensors, WeightSlot};

pub(super) const FAMILY: Family = Family {
    model_type: "lfm2_moe",
    architectures: &["Lfm2MoeForCausalLM"],
    spec,
    names: Names { tensors, ..LLAMA },
};

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Experts, Gate, Hidden, Up};
    match slot {
        WeightSlot::Layer(_, LayerSlot::Router) => &[("feed_forward.gate", &[Experts])],
        WeightSlot::Layer(_, LayerSlot::ChoiceBias) => &[("feed_forward.expert_bias", &[Experts])],
        WeightSlot::Layer(_, LayerSlot::ExpertGateUp) => {
            &[("feed_forward.experts.*.w1", &[Gate]), ("feed_forward.experts.*.w3", &[Up])]
        }
        WeightSlot::Layer(_, LayerSlot::ExpertDown) => &[("feed_forward.experts.*.w2", &[Hidden])],
        other => lfm2::tensors(other),
    }
}

const KEYS: ExpertKeys = ExpertKeys {
    experts: ("num_experts", 32),
    top_k: ("num_experts_per_tok", 4),
    width: ("moe_intermediate_size", 1792),
};

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let mut spec = lfm2::read(config, USUAL_KEYS.width)?;
    let mut of_layers = experts::read(config, &KEYS)?;
    of_layers.router.scores = RouterScores::Sigmoid;
    of_layers.router.normalize = config.flag("norm_topk_prob", true)?;
    of_layers.router.factor = config.optional_number("routed_scaling_factor", 0.0)?.unwrap_or(1.0) as f32;
    of_layers.choice_bias = config.flag("use_expert_bias", true)?;
    let dense = config.optional("num_dense_layers")?.unwrap_or(2);
    experts::place(&mut spec, &of_layers, |index| index >= dense);
    Ok(spec)
}
