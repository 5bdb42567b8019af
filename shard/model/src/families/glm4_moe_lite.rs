//! GLM-4.7-Flash: DeepSeek-V3 with other sizes.

use super::config::Config;
use super::deepseek_v3;
use super::error::ConfigError;
use super::experts::{self, ExpertKeys};
use super::family::Family;
use super::latent::{self, LatentSizes};
use crate::description::DecoderSpec;

pub(super) const FAMILY: Family = Family {
    model_type: "glm4_moe_lite",
    architectures: &["Glm4MoeLiteForCausalLM"],
    spec,
    names: latent::NAMES,
};

const KEYS: ExpertKeys = ExpertKeys {
    experts: ("n_routed_experts", 64),
    top_k: ("num_experts_per_tok", 4),
    width: ("moe_intermediate_size", 1536),
};
const SIZES: LatentSizes =
    LatentSizes { query_rank: 768, rank: 512, plain_dim: 192, rotary_dim: 64, value_dim: Some(256) };

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let mut spec = deepseek_v3::decoder(config, &SIZES)?;
    let mut of_layers = experts::read_grouped(config, &KEYS)?;
    of_layers.router.factor = config.optional_number("routed_scaling_factor", 0.0)?.unwrap_or(1.8) as f32;
    experts::place_listed(config, &mut spec, &of_layers)?;
    Ok(spec)
}
