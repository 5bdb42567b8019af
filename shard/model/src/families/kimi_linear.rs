//! Kimi Linear: Kimi Delta Attention in three of four layers, latent attention without positions in
//! the others, and experts that are chosen by sigmoids and a bias beside a shared one.

use millrace_backend::{Activation, KeySharing, RecurrentHeads};
use serde_json::{Value, json};

use super::config::Config;
use super::decoder::{self, MAX_HEAD_DIM, MAX_HEADS, MAX_WIDTH};
use super::delta::{self, MAX_TAPS};
use super::error::ConfigError;
use super::experts::{self, ExpertKeys};
use super::family::Family;
use super::latent::LatentSizes;
use super::names::Names;
use super::{deepseek_v3, minimax_m3_vl_text};
use crate::description::{
    Attention, DecoderSpec, FeatureBlock, LayerSlot, ProjectionFactors, RecurrentBlock, RecurrentLayer,
    RecurrentRule, RecurrentSlot, ResultPlan, RopeScaling, StoredTensors, WeightSlot,
};

pub(super) const FAMILY: Family = Family {
    model_type: "kimi_linear",
    architectures: &["KimiLinearForCausalLM"],
    spec,
    names: Names {
        tensors,
        left_out: &[],
        // transformers writes dense layers under the names of mixtures of experts.
        // The modules of transformers all have the first name, and the published tensors have both.
        aliases: &[(".mlp.", ".block_sparse_moe."), (".block_sparse_moe.", ".mlp.")],
        ..minimax_m3_vl_text::FAMILY.names
    },
};

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Hidden, Recurrent};
    use RecurrentBlock::{GroupedValue, Key, KeyTaps, Query, QueryTaps, Rate, Value, ValueDim, ValueTaps};
    match slot {
        WeightSlot::Recurrent(_, RecurrentSlot::In) => &[
            ("self_attn.q_proj", &[Recurrent(Query)]),
            ("self_attn.k_proj", &[Recurrent(Key)]),
            ("self_attn.v_proj", &[Recurrent(Value)]),
        ],
        WeightSlot::Recurrent(_, RecurrentSlot::Conv) => &[
            ("self_attn.q_conv1d.weight", &[Recurrent(QueryTaps)]),
            ("self_attn.k_conv1d.weight", &[Recurrent(KeyTaps)]),
            ("self_attn.v_conv1d.weight", &[Recurrent(ValueTaps)]),
        ],
        WeightSlot::Recurrent(_, RecurrentSlot::DecayLog) => &[("self_attn.A_log", &[Recurrent(Rate)])],
        WeightSlot::Recurrent(_, RecurrentSlot::Norm) => {
            &[("self_attn.o_norm", &[Recurrent(ValueDim), Recurrent(GroupedValue)])]
        }
        WeightSlot::Recurrent(_, RecurrentSlot::Out) => &[("self_attn.o_proj", &[Hidden])],
        WeightSlot::Recurrent(..) | WeightSlot::Layer(_, LayerSlot::GateUp | LayerSlot::Down) => {
            slot.usual_tensors()
        }
        WeightSlot::Layer(_, LayerSlot::ChoiceBias) => {
            &[("block_sparse_moe.gate.e_score_correction_bias", &[FeatureBlock::Experts])]
        }
        other => (minimax_m3_vl_text::FAMILY.names.tensors)(other),
    }
}

const KEYS: ExpertKeys = ExpertKeys {
    experts: ("num_experts", 256),
    top_k: ("num_experts_per_token", 8),
    width: ("moe_intermediate_size", 1024),
};

/// The keys of published files, and the usual names of the same numbers.
const RENAMED: [(&str, &str); 4] = [
    ("model_max_length", "max_position_embeddings"),
    ("moe_renormalize", "norm_topk_prob"),
    ("num_expert_group", "n_group"),
    ("num_shared_experts", "n_shared_experts"),
];

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    config.insist("mla_use_nope", true, "a rotation of latent attention")?;
    config.refuse("rope_scaling", "no feature is rotated, and positions need no scaling")?;
    config.insist("moe_router_activation_func", "sigmoid", "scores of experts must be sigmoids")?;
    config.insist("moe_layer_freq", 1, "every layer after the first dense ones must have experts")?;
    let mut config = config.clone();
    for (published, usual) in RENAMED {
        if let Some(value) = config.optional::<Value>(published)? {
            config.insert_absent(usual, value);
        }
    }
    let absent = [
        ("max_position_embeddings", json!(1_048_576)),
        ("routed_scaling_factor", json!(2.446)),
        ("rms_norm_eps", json!(1e-5)),
    ];
    absent.into_iter().for_each(|(key, value)| config.insert_absent(key, value));
    if !config.mentions("q_lora_rank") {
        config.replace("q_lora_rank", Value::Null);
    }
    let mut spec = deepseek_v3::decoder(&config, &LatentSizes::DEEPSEEK)?;
    // All angles are 0, so that the part of the keys that others rotate stays as it is.
    spec.ropes.iter_mut().for_each(|rope| {
        rope.scaling = RopeScaling::Proportional { pairs: 0, factor: 1.0 };
    });
    let recurrent = recurrent(&config)?;
    let is_recurrent = recurrent_layers(&config, spec.layers.len())?;
    for (layer, _) in spec.layers.iter_mut().zip(is_recurrent).filter(|(_, is_recurrent)| *is_recurrent) {
        layer.attention = Attention::Recurrent(recurrent.clone());
    }
    let of_layers = experts::read_grouped(&config, &KEYS)?;
    experts::place_listed(&config, &mut spec, &of_layers)?;
    Ok(spec)
}

/// Reads a size of recurrent layers, which transformers writes with a name of its own as well.
fn size(config: &Config, keys: (&str, &str), max: usize, absent: usize) -> Result<usize, ConfigError> {
    let nested = match config.object("linear_attn_config")? {
        Some(nested) => nested.optional_size(keys.0, max)?,
        None => None,
    };
    Ok(nested.or(config.optional_size(keys.1, max)?).unwrap_or(absent))
}

fn recurrent(config: &Config) -> Result<RecurrentLayer, ConfigError> {
    let heads = size(config, ("num_heads", "linear_num_heads"), MAX_HEADS, 32)?;
    let dim = size(config, ("head_dim", "linear_head_dim"), MAX_HEAD_DIM, 128)?;
    let heads = RecurrentHeads {
        key_heads: heads,
        heads,
        key_dim: dim,
        value_dim: dim,
        sharing: KeySharing::Neighbors,
    };
    if heads.cols() > MAX_WIDTH {
        let reason = format!("has {} heads, too many for {dim} features each", heads.heads);
        return Err(config.invalid("linear_attn_config", reason));
    }
    let act = decoder::activation(config, Activation::Silu)?;
    let eps = config.number("rms_norm_eps", 0.0)? as f32;
    Ok(RecurrentLayer {
        heads,
        rule: RecurrentRule::ChannelDelta { act, rank: dim },
        taps: size(config, ("short_conv_kernel_size", "linear_conv_kernel_dim"), MAX_TAPS, 4)?,
        conv_bias: false,
        in_bias: false,
        result: ResultPlan::Normed { eps, gated: true },
        out_bias: false,
        factors: ProjectionFactors::NONE,
    })
}

/// Returns for each layer whether it is recurrent. `linear_attn_config` counts layers from 1, and
/// `layer_types` comes before it, as in transformers.
fn recurrent_layers(config: &Config, count: usize) -> Result<Vec<bool>, ConfigError> {
    let usual = |index: usize| index == 0 || !index.is_multiple_of(4);
    let nested = config.object("linear_attn_config")?.filter(|_| !config.mentions("layer_types"));
    let Some(nested) = nested.filter(|nested| nested.mentions("kda_layers")) else {
        return delta::layer_kinds(config, count, &["linear_attention"], usual);
    };
    let read = |key| Ok::<_, ConfigError>(nested.optional::<Vec<usize>>(key)?.unwrap_or_default());
    let (recurrent, full) = (read("kda_layers")?, read("full_attn_layers")?);
    let is_listed_once = |layer: usize| recurrent.contains(&layer) != full.contains(&layer);
    if let Some(layer) = (1..=count).find(|&layer| !is_listed_once(layer)) {
        let reason = format!("must name layer {layer}, or full_attn_layers, but not both");
        return Err(nested.invalid("kda_layers", reason));
    }
    Ok((1..=count).map(|layer| recurrent.contains(&layer)).collect())
}
