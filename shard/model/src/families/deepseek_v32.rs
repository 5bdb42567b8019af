//! DeepSeek-V3.2: DeepSeek-V3 with an indexer that chooses the keys of each query.
//!
//! The decoder attends to all keys. Up to `index_topk` tokens the indexer chooses all of them, so
//! that the context ends there and the indexer's weights are not read.

use serde_json::{Value, json};

use super::config::Config;
use super::error::ConfigError;
use super::experts::{self, ExpertKeys};
use super::family::Family;
use super::latent::{self, LatentSizes};
use super::names::Names;
use super::{decoder, deepseek_v3};
use crate::description::DecoderSpec;

pub(super) const FAMILY: Family =
    Family { model_type: "deepseek_v32", architectures: &["DeepseekV32ForCausalLM"], spec, names: NAMES };

/// The names of the tensors, without those of indexers.
pub(super) const NAMES: Names = Names { left_out: &[".self_attn.indexer."], ..latent::NAMES };

const KEYS: ExpertKeys = ExpertKeys {
    experts: ("n_routed_experts", 256),
    top_k: ("num_experts_per_tok", 8),
    width: ("moe_intermediate_size", 2048),
};

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let absent = [("n_group", json!(8)), ("topk_group", json!(4))];
    read(config, &LatentSizes::DEEPSEEK, &KEYS, absent)
}

/// Reads a decoder with the layers of DeepSeek-V3 and an indexer. `absent` has the values of absent
/// keys that differ between families.
pub(super) fn read(
    config: &Config,
    sizes: &LatentSizes,
    keys: &ExpertKeys,
    absent: impl IntoIterator<Item = (&'static str, Value)>,
) -> Result<DecoderSpec, ConfigError> {
    config.insist("rope_interleave", true, "neighbors must be rotated")?;
    config.insist("scoring_func", "sigmoid", "scores of experts must be sigmoids")?;
    config.insist("topk_method", "noaux_tc", "experts must be chosen with the help of a bias")?;
    config.insist("moe_layer_freq", 1, "every layer after the first dense ones must have experts")?;
    let mut config = config.clone();
    let usual = [("first_k_dense_replace", json!(3)), ("routed_scaling_factor", json!(2.5))];
    usual.into_iter().chain(absent).for_each(|(key, value)| config.insert_absent(key, value));
    let mut spec = deepseek_v3::decoder(&config, sizes)?;
    let of_layers = experts::read_grouped(&config, keys)?;
    experts::place_listed(&config, &mut spec, &of_layers)?;
    let chosen = config.optional_size("index_topk", usize::MAX)?.unwrap_or(2048);
    decoder::limit_to_choice(&mut spec, chosen);
    Ok(spec)
}
