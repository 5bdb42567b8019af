//! MiniMax-M3: norms of heads, partial rotation, clamped gates, and experts that are chosen by
//! sigmoids and a bias, beside a shared one.
//!
//! In most layers an indexer chooses blocks of keys for each query. The decoder attends to all
//! keys, so that the context ends where the indexer would begin to leave blocks out, and the
//! indexer's weights are not read.

use millrace_backend::{MlpKind, RouterScores};

use super::config::Config;
use super::decoder::{self, Keys, MAX_WIDTH, NormTrait, Traits, USUAL_KEYS};
use super::error::ConfigError;
use super::experts::{self, ExpertKeys};
use super::family::Family;
use super::names::Names;
use super::{delta, minimax_m2};
use crate::description::{
    DecoderSpec, FeatureBlock, GateClamp, HeadNormPlan, LayerSlot, SharedExpert, StoredTensors, WeightSlot,
};

pub(super) const FAMILY: Family = Family {
    model_type: "minimax_m3_vl_text",
    architectures: &["MiniMaxM3VLForCausalLM"],
    spec,
    names: Names { tensors, left_out: INDEXER, ..minimax_m2::FAMILY.names },
};

/// Parts of the names of the indexer's tensors.
const INDEXER: &[&str] = &[
    ".self_attn.index_q_proj.",
    ".self_attn.index_k_proj.",
    ".self_attn.index_q_norm.",
    ".self_attn.index_k_norm.",
];

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Gate, Hidden, Up};
    match slot {
        WeightSlot::Layer(_, LayerSlot::SharedGateUp) => &[
            ("block_sparse_moe.shared_experts.gate_proj", &[Gate]),
            ("block_sparse_moe.shared_experts.up_proj", &[Up]),
        ],
        WeightSlot::Layer(_, LayerSlot::SharedDown) => {
            &[("block_sparse_moe.shared_experts.down_proj", &[Hidden])]
        }
        other => (minimax_m2::FAMILY.names.tensors)(other),
    }
}

const KEYS: ExpertKeys = ExpertKeys {
    experts: ("num_local_experts", 128),
    top_k: ("num_experts_per_tok", 4),
    width: ("intermediate_size", 3072),
};

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    config.insist("use_qk_norm", true, "queries and keys without a norm")?;
    config.insist("use_gemma_norm", true, "norms whose scales are not stored minus 1")?;
    config.insist("use_routing_bias", true, "a router without a bias")?;
    config.insist("scoring_func", "sigmoid", "a router with other scores")?;
    config.insist("n_shared_experts", 1, "several shared experts")?;
    let config = &with_usual_activation(config)?;
    let size = |key, absent| Ok(config.optional_size(key, MAX_WIDTH)?.unwrap_or(absent));
    let head_dim = size("head_dim", 128)?;
    let traits = Traits {
        keys: Keys { width: "dense_intermediate_size", ..USUAL_KEYS },
        head_dim: Some(128),
        kv_heads: Some(4),
        theta: Some(5_000_000.0),
        norm: NormTrait::RmsPlusOne,
        norm_eps: Some(1e-6),
        partial_rotary: size("rotary_dim", 64)? as f64 / head_dim as f64,
        head_norm: HeadNormPlan::Shared,
        ..Traits::default()
    };
    let mut spec = decoder::read(config, &traits)?;
    let number = |key| config.optional_number(key, f64::from(f32::MIN_POSITIVE));
    let clamp = GateClamp {
        alpha: number("swiglu_alpha")?.unwrap_or(1.702) as f32,
        limit: number("swiglu_limit")?.unwrap_or(7.0) as f32,
    };
    spec.layers.iter_mut().filter_map(|layer| layer.mlp.dense_mut()).for_each(|mlp| mlp.clamp = Some(clamp));
    let mut of_layers = experts::read(config, &KEYS)?;
    of_layers.router.scores = RouterScores::Sigmoid;
    of_layers.router.factor = config.optional_number("routed_scaling_factor", 0.0)?.unwrap_or(2.0) as f32;
    of_layers.choice_bias = true;
    of_layers.kind = MlpKind::Gated(clamp.into());
    of_layers.shared = Some(SharedExpert { width: size("shared_intermediate_size", 3072)?, gated: false });
    experts::place_listed(config, &mut spec, &of_layers)?;
    if let Some(keys) = chosen_keys(config, spec.layers.len())? {
        decoder::limit_to_choice(&mut spec, keys);
    }
    Ok(spec)
}

/// Returns the keys with lists in place of frequencies, and a name of the gates' activation that
/// all families know.
fn with_usual_activation(config: &Config) -> Result<Config, ConfigError> {
    let mut config = config.clone();
    match config.optional::<String>("hidden_act")?.as_deref() {
        None | Some("silu" | "swigluoai") => config.replace("hidden_act", "silu".into()),
        Some(_) => return Err(config.unsupported("hidden_act", "gates must be clamped (swigluoai)")),
    }
    config.insert_absent("dense_intermediate_size", 12_288.into());
    if let Some(sparse) = config.optional::<Vec<u8>>("moe_layer_freq")? {
        let kinds: Vec<&str> =
            sparse.iter().map(|&kind| if kind == 0 { "dense" } else { "sparse" }).collect();
        config.insert_absent("mlp_layer_types", kinds.into());
    }
    // Without any key, all layers have experts.
    config.insert_absent("first_k_dense_replace", 0.into());
    Ok(config)
}

/// Returns the number of keys up to which the indexer chooses all, if some layer has one.
fn chosen_keys(config: &Config, layers: usize) -> Result<Option<usize>, ConfigError> {
    let sparse = config.object("sparse_attention_config")?;
    let is_listed = |kinds: Vec<u8>| kinds.iter().any(|&kind| kind != 0);
    let of_frequency = match &sparse {
        Some(sparse) => sparse.optional("sparse_attention_freq")?.is_some_and(is_listed),
        None => false,
    };
    let of_types = delta::layer_kinds(config, layers, &["minimax_m3_sparse"], |_| of_frequency)?;
    if !of_types.contains(&true) {
        return Ok(None);
    }
    let size = |old, new, absent| {
        let of_old = match &sparse {
            Some(sparse) => sparse.optional_size(old, MAX_WIDTH)?,
            None => None,
        };
        Ok(of_old.or(config.optional_size(new, MAX_WIDTH)?).unwrap_or(absent))
    };
    let block = size("sparse_block_size", "index_block_size", 128)?;
    Ok(Some(block * size("sparse_topk_blocks", "index_topk_blocks", 16)?))
}
