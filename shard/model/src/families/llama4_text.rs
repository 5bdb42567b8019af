//! The text part of Llama 4: chunked attention in the layers that are rotated, scaled queries in
//! the others, and experts whose inputs are weighted.

use millrace_backend::{RopeStyle, RouterScores};
use serde_json::Value;

use super::config::Config;
use super::decoder::{self, Keys, MAX_WIDTH, Traits, USUAL_KEYS};
use super::error::ConfigError;
use super::experts::{self, ExpertKeys};
use super::family::Family;
use super::names::{LLAMA, Names, StackedExperts};
use crate::description::{
    DecoderSpec, FeatureBlock, HeadNormPlan, LayerSlot, Positions, QueryScale, SharedExpert, StoredTensors,
    WeightSlot,
};

pub(super) const FAMILY: Family = Family {
    model_type: "llama4_text",
    architectures: &["Llama4ForCausalLM"],
    spec,
    names: Names { tensors, experts: StackedExperts::ByInput, ..LLAMA },
};

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Experts, Gate, Hidden, Up};
    use LayerSlot as Slot;
    match slot {
        WeightSlot::Layer(_, Slot::GateUp) => {
            &[("feed_forward.gate_proj", &[Gate]), ("feed_forward.up_proj", &[Up])]
        }
        WeightSlot::Layer(_, Slot::Down) => &[("feed_forward.down_proj", &[Hidden])],
        WeightSlot::Layer(_, Slot::Router) => &[("feed_forward.router", &[Experts])],
        WeightSlot::Layer(_, Slot::ExpertGateUp) => &[("feed_forward.experts.gate_up_proj", &[Gate, Up])],
        WeightSlot::Layer(_, Slot::ExpertDown) => &[("feed_forward.experts.down_proj", &[Hidden])],
        WeightSlot::Layer(_, Slot::SharedGateUp) => &[
            ("feed_forward.shared_expert.gate_proj", &[Gate]),
            ("feed_forward.shared_expert.up_proj", &[Up]),
        ],
        WeightSlot::Layer(_, Slot::SharedDown) => &[("feed_forward.shared_expert.down_proj", &[Hidden])],
        other => other.usual_tensors(),
    }
}

const EXPERT_KEYS: ExpertKeys = ExpertKeys {
    experts: ("num_local_experts", 16),
    top_k: ("num_experts_per_tok", 1),
    width: ("intermediate_size", 8192),
};

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let bias = config.flag("attention_bias", false)?;
    let traits = Traits {
        keys: Keys { width: "intermediate_size_mlp", ..USUAL_KEYS },
        kv_heads: Some(8),
        head_dim: Some(128),
        rope: RopeStyle::Interleaved,
        theta: Some(500_000.0),
        positions: Some(131_072),
        norm_eps: Some(1e-5),
        qkv_bias: bias,
        out_bias: bias,
        ..Traits::default()
    };
    let mut spec = decoder::read(config, &traits)?;
    place_attention(config, &mut spec)?;
    let mut of_layers = experts::read(config, &EXPERT_KEYS)?;
    of_layers.router.scores = RouterScores::Sigmoid;
    of_layers.router.normalize = false;
    of_layers.router.weighs_inputs = true;
    of_layers.shared = Some(SharedExpert { width: of_layers.width, gated: false });
    let listed: Option<Vec<usize>> = config.optional("moe_layers")?;
    let step = config.optional_size("interleave_moe_layer_step", MAX_WIDTH)?.unwrap_or(1);
    experts::place(&mut spec, &of_layers, |index| match &listed {
        Some(layers) => layers.contains(&index),
        None => (index + 1).is_multiple_of(step),
    });
    Ok(spec)
}

/// Sets the chunks, the norms of heads and the factors on queries of each layer.
fn place_attention(config: &Config, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    let rotated = decoder::rotated_layers(config, spec.layers.len())?;
    let is_chunked = match config.optional::<Vec<String>>("layer_types")? {
        Some(kinds) => chunked_layers(config, &kinds, spec.layers.len())?,
        None => rotated.clone(),
    };
    let chunk = config.optional_size("attention_chunk_size", usize::MAX)?;
    let chunk = if config.mentions("attention_chunk_size") { chunk } else { Some(8192) };
    let normed = config.flag("use_qk_norm", true)?;
    if normed && spec.ropes[0].changes_lengths() {
        // The norm is computed before the rotation, which must not change the lengths of heads.
        return Err(config.unsupported("use_qk_norm", "a rotation that scales heads"));
    }
    let is_scaled = match config.optional::<Value>("attn_temperature_tuning")? {
        Some(Value::Bool(on)) => on,
        // The first published configurations have a number.
        Some(Value::Number(number)) => number.as_f64() != Some(0.0),
        Some(_) => return Err(config.unsupported("attn_temperature_tuning", "it must be true or false")),
        None => true,
    };
    if is_scaled {
        let beta = config.optional_number("attn_scale", 0.0)?.unwrap_or(0.1);
        let interval = config.optional_number("floor_scale", 1.0)?.unwrap_or(8192.0);
        spec.query_scale = Some(QueryScale { beta, interval, offset: 1 });
    }
    for ((layer, rotates), is_chunked) in spec.layers.iter_mut().zip(rotated).zip(is_chunked) {
        match (is_chunked, chunk) {
            (false, _) => {}
            (true, Some(size)) => layer.attention.chunk(size),
            (true, None) => return Err(config.missing("attention_chunk_size")),
        }
        let Some(heads) = layer.attention.heads_mut() else { continue };
        if rotates {
            heads.head_norm = if normed { HeadNormPlan::Unscaled } else { HeadNormPlan::None };
        } else {
            heads.positions = Positions::None;
            heads.scales_queries = is_scaled;
        }
    }
    Ok(())
}

/// Returns which layers have chunked attention by their kinds.
fn chunked_layers(config: &Config, kinds: &[String], count: usize) -> Result<Vec<bool>, ConfigError> {
    let key = "layer_types";
    if kinds.len() != count {
        return Err(config.invalid(key, format!("has {} entries for {count} layers", kinds.len())));
    }
    let is_chunked = |kind: &String| match kind.as_str() {
        "chunked_attention" => Ok(true),
        "full_attention" => Ok(false),
        other => Err(config.invalid(key, format!("has {other}, which is not supported"))),
    };
    kinds.iter().map(is_chunked).collect()
}
