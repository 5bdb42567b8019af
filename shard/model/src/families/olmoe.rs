//! OLMoE: Llama with norms of all query heads and of all key heads together, and experts in every
//! layer.

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::experts::{self, ExpertKeys};
use super::family::Family;
use super::names;
use crate::description::{DecoderSpec, HeadNormPlan};

pub(super) const FAMILY: Family =
    Family { model_type: "olmoe", architectures: &["OlmoeForCausalLM"], spec, names: names::LLAMA };

const KEYS: ExpertKeys = ExpertKeys {
    experts: ("num_experts", 64),
    top_k: ("num_experts_per_tok", 8),
    width: ("intermediate_size", 2048),
};

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let bias = config.flag("attention_bias", false)?;
    let head_norm = HeadNormPlan::AllHeads;
    let traits =
        Traits { qkv_bias: bias, out_bias: bias, head_norm, norm_eps: Some(1e-5), ..Traits::default() };
    let mut spec = decoder::read(config, &traits)?;
    decoder::clip(config, &mut spec)?;
    let mut of_layers = experts::read(config, &KEYS)?;
    of_layers.router.normalize = config.flag("norm_topk_prob", false)?;
    experts::place(&mut spec, &of_layers, |_| true);
    Ok(spec)
}
