//! DeepSeek-V2 and V2-Lite: latent attention, and experts that are chosen by a softmax, beside
//! shared ones.

use millrace_backend::{GroupScore, RopeStyle};

use super::config::Config;
use super::decoder::Traits;
use super::error::ConfigError;
use super::experts::{self, ExpertKeys};
use super::family::Family;
use super::latent::{self, LatentSizes};
use crate::description::DecoderSpec;

pub(super) const FAMILY: Family = Family {
    model_type: "deepseek_v2",
    architectures: &["DeepseekV2ForCausalLM"],
    spec,
    names: latent::NAMES,
};

const KEYS: ExpertKeys = ExpertKeys {
    experts: ("n_routed_experts", 64),
    top_k: ("num_experts_per_tok", 6),
    width: ("moe_intermediate_size", 1407),
};

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let traits = Traits { rope: RopeStyle::Interleaved, norm_eps: Some(1e-6), ..Traits::default() };
    let mut spec = latent::read(config, &traits, &LatentSizes::DEEPSEEK)?;
    config.insist("moe_layer_freq", 1, "every layer after the first dense ones must have experts")?;
    config.insist("scoring_func", "softmax", "scores of experts must be a softmax")?;
    config.insist("norm_topk_prob", false, "weights of experts are not normalized")?;
    let method: String = config.optional("topk_method")?.unwrap_or_else(|| "greedy".to_owned());
    let groups = match method.as_str() {
        "greedy" => None,
        "group_limited_greedy" => {
            experts::require_groups(config)?;
            Some(GroupScore::Best)
        }
        _ => return Err(config.unsupported("topk_method", "it must be greedy or group_limited_greedy")),
    };
    let of_layers = experts::read_limited(config, &KEYS, (groups, 2))?;
    let dense = config.optional("first_k_dense_replace")?.unwrap_or(0);
    experts::place(&mut spec, &of_layers, |index| index >= dense);
    Ok(spec)
}
