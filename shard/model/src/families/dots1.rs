//! dots.llm1: the attention of Qwen3, and experts as DeepSeek-V3 has them.

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::experts::{self, ExpertKeys};
use super::family::Family;
use super::latent;
use crate::description::{DecoderSpec, HeadNormPlan};

pub(super) const FAMILY: Family =
    Family { model_type: "dots1", architectures: &["Dots1ForCausalLM"], spec, names: latent::NAMES };

const KEYS: ExpertKeys = ExpertKeys {
    experts: ("n_routed_experts", 128),
    top_k: ("num_experts_per_tok", 6),
    width: ("moe_intermediate_size", 1408),
};

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    // No default of transformers is that of the published model.
    for key in [KEYS.experts.0, KEYS.top_k.0, "n_shared_experts"] {
        if !config.mentions(key) {
            return Err(config.missing(key));
        }
    }
    let bias = config.flag("attention_bias", false)?;
    let head_norm = HeadNormPlan::Shared;
    let traits =
        Traits { qkv_bias: bias, out_bias: bias, head_norm, norm_eps: Some(1e-6), ..Traits::default() };
    let mut spec = decoder::read(config, &traits)?;
    let first = config.optional::<usize>("max_window_layers")?.unwrap_or(62);
    let window = decoder::window(config, 4096)?;
    decoder::slide(config, &mut spec, window, first)?;
    let mut of_layers = experts::read_grouped(config, &KEYS)?;
    of_layers.router.normalize = config.flag("norm_topk_prob", false)?;
    let dense = config.optional("first_k_dense_replace")?.unwrap_or(0);
    experts::place(&mut spec, &of_layers, |index| index >= dense);
    Ok(spec)
}
