//! MiniMax-M2: norms of all heads together, partial rotation, and experts that are chosen by
//! sigmoids and a bias.

use millrace_backend::RouterScores;

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::experts::{self, ExpertKeys};
use super::family::Family;
use super::names::{LLAMA, Names};
use crate::description::{DecoderSpec, FeatureBlock, HeadNormPlan, LayerSlot, StoredTensors, WeightSlot};

pub(super) const FAMILY: Family = Family {
    model_type: "minimax_m2",
    architectures: &["MiniMaxM2ForCausalLM"],
    spec,
    names: Names { tensors, has_later_layers: true, ..LLAMA },
};

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Experts, Gate, Hidden, Up};
    match slot {
        WeightSlot::Layer(_, LayerSlot::Router) => &[("block_sparse_moe.gate", &[Experts])],
        WeightSlot::Layer(_, LayerSlot::ChoiceBias) => {
            &[("block_sparse_moe.e_score_correction_bias", &[Experts])]
        }
        WeightSlot::Layer(_, LayerSlot::ExpertGateUp) => {
            &[("block_sparse_moe.experts.*.w1", &[Gate]), ("block_sparse_moe.experts.*.w3", &[Up])]
        }
        WeightSlot::Layer(_, LayerSlot::ExpertDown) => &[("block_sparse_moe.experts.*.w2", &[Hidden])],
        other => other.usual_tensors(),
    }
}

const KEYS: ExpertKeys = ExpertKeys {
    experts: ("num_local_experts", 256),
    top_k: ("num_experts_per_tok", 8),
    width: ("intermediate_size", 1536),
};

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    config.insist("use_qk_norm", true, "queries and keys without a norm")?;
    config.insist("qk_norm_type", "per_layer", "norms of single heads")?;
    config.insist("use_routing_bias", true, "a router without a bias")?;
    config.insist("scoring_func", "sigmoid", "a router with other scores")?;
    config.insist("shared_intermediate_size", 0, "a shared expert")?;
    if let Some(kinds) = config.optional::<Vec<usize>>("attn_type_list")?
        && kinds.iter().any(|kind| *kind != 1)
    {
        return Err(config.unsupported("attn_type_list", "all layers must have softmax attention (1)"));
    }
    let head_dim = config.optional_size("head_dim", decoder::MAX_WIDTH)?.unwrap_or(128);
    let rotary_dim = config.optional_size("rotary_dim", decoder::MAX_WIDTH)?.unwrap_or(head_dim);
    let traits = Traits {
        head_dim: Some(128),
        kv_heads: Some(8),
        theta: Some(5_000_000.0),
        norm_eps: Some(1e-6),
        partial_rotary: rotary_dim as f64 / head_dim as f64,
        head_norm: HeadNormPlan::AllHeads,
        ..Traits::default()
    };
    let mut spec = decoder::read(config, &traits)?;
    let mut of_layers = experts::read(config, &KEYS)?;
    of_layers.router.scores = RouterScores::Sigmoid;
    of_layers.choice_bias = true;
    experts::place(&mut spec, &of_layers, |_| true);
    Ok(spec)
}
