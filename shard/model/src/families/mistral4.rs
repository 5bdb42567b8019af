//! Mistral 4: latent attention with factors on queries, and experts that are chosen by a softmax,
//! beside shared ones.

use millrace_backend::GroupScore;

use super::config::Config;
use super::error::ConfigError;
use super::experts::{self, ExpertKeys};
use super::family::Family;
use super::latent::{self, LatentSizes};
use super::{decoder, deepseek_v3, rope};
use crate::description::DecoderSpec;

pub(super) const FAMILY: Family =
    Family { model_type: "mistral4", architectures: &["Mistral4ForCausalLM"], spec, names: latent::NAMES };

const KEYS: ExpertKeys = ExpertKeys {
    experts: ("n_routed_experts", 128),
    top_k: ("num_experts_per_tok", 4),
    width: ("moe_intermediate_size", 2048),
};
const SIZES: LatentSizes =
    LatentSizes { query_rank: 1024, rank: 256, plain_dim: 64, rotary_dim: 64, value_dim: Some(128) };

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    if !config.mentions("rope_parameters") && !config.mentions("rope_scaling") {
        // transformers would use YaRN with parameters of its own.
        return Err(config.missing("rope_parameters"));
    }
    // The share of the rotated features is that of a whole head, and follows from the sizes.
    let mut of_rotated = config.clone();
    for place in ["rope_parameters", "rope_scaling"] {
        of_rotated.remove_nested(place, "partial_rotary_factor");
    }
    let mut spec = deepseek_v3::decoder(&of_rotated, &SIZES)?;
    decoder::scale_queries(&mut spec, rope::query_scale(config)?);
    let mut of_layers = experts::read_limited(config, &KEYS, (Some(GroupScore::TwoBest), 1))?;
    of_layers.router.normalize = config.flag("norm_topk_prob", true)?;
    let dense = config.optional("first_k_dense_replace")?.unwrap_or(0);
    experts::place(&mut spec, &of_layers, |index| index >= dense);
    Ok(spec)
}
