//! K-EXAONE: the attention of EXAONE 4 after norms, and experts as DeepSeek-V3 has them.

use super::config::Config;
use super::error::ConfigError;
use super::experts::{self, ExpertKeys};
use super::family::Family;
use super::names::Names;
use super::{exaone4, latent};
use crate::description::{DecoderSpec, FeatureBlock, LayerSlot, StoredTensors, WeightSlot};

pub(super) const FAMILY: Family = Family {
    model_type: "exaone_moe",
    architectures: &["ExaoneMoeForCausalLM"],
    spec,
    names: Names { tensors, ..latent::NAMES },
};

fn tensors(slot: WeightSlot) -> StoredTensors {
    match slot {
        WeightSlot::Layer(_, LayerSlot::ChoiceBias) => {
            &[("mlp.e_score_correction_bias", &[FeatureBlock::Experts])]
        }
        other => (latent::NAMES.tensors)(other),
    }
}

const KEYS: ExpertKeys = ExpertKeys {
    experts: ("num_experts", 64),
    top_k: ("num_experts_per_tok", 8),
    width: ("moe_intermediate_size", 1024),
};

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let mut spec = exaone4::read(config)?;
    let mut of_layers = experts::read_grouped(config, &KEYS)?;
    of_layers.router.factor = config.optional_number("routed_scaling_factor", 0.0)?.unwrap_or(2.5) as f32;
    of_layers.shared = experts::shared(config, "num_shared_experts", 1, of_layers.width)?;
    experts::place_listed(config, &mut spec, &of_layers)?;
    Ok(spec)
}
