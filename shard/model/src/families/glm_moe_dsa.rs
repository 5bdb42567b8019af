//! GLM-5: DeepSeek-V3.2 with other sizes. Some layers use the keys that an earlier one has chosen,
//! which makes no difference while all keys are chosen.

use serde_json::json;

use super::config::Config;
use super::deepseek_v32;
use super::error::ConfigError;
use super::experts::ExpertKeys;
use super::family::Family;
use super::latent::LatentSizes;
use crate::description::DecoderSpec;

pub(super) const FAMILY: Family = Family {
    model_type: "glm_moe_dsa",
    architectures: &["GlmMoeDsaForCausalLM"],
    spec,
    names: deepseek_v32::NAMES,
};

const KEYS: ExpertKeys = ExpertKeys {
    experts: ("n_routed_experts", 256),
    top_k: ("num_experts_per_tok", 8),
    width: ("moe_intermediate_size", 2048),
};
const SIZES: LatentSizes =
    LatentSizes { query_rank: 2048, rank: 512, plain_dim: 192, rotary_dim: 64, value_dim: Some(256) };

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    deepseek_v32::read(config, &SIZES, &KEYS, [("rms_norm_eps", json!(1e-5))])
}
