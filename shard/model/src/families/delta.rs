//! Reads gated delta nets between layers of gated attention, as Qwen3-Next and Qwen3.5 have them.

use millrace_backend::{Activation, KeySharing, RecurrentHeads};

use super::config::Config;
use super::decoder::{self, MAX_HEAD_DIM, MAX_WIDTH, NormTrait, Traits};
use super::error::ConfigError;
use super::mtp_place::MtpPlace;
use super::names::{LLAMA, Names, QUERY_WITH_GATE};
use crate::description::{
    Attention, DecoderSpec, FeatureBlock, HeadNormPlan, LayerSlot, ProjectionFactors, RecurrentLayer,
    RecurrentRule, ResultPlan, StoredTensors, WeightSlot,
};

/// Larger numbers of heads are typing errors or attacks.
const MAX_HEADS: usize = 1 << 14;
/// The same for the tokens that a convolution sees.
pub(super) const MAX_TAPS: usize = 1 << 6;

/// The names of Qwen3.5's tensors.
pub(super) const NAMES: Names = Names { tensors, mtp: Some(MtpPlace::Module), ..LLAMA };

pub(super) fn tensors(slot: WeightSlot) -> StoredTensors {
    match slot {
        WeightSlot::Layer(_, LayerSlot::Qkv) => &[
            ("self_attn.q_proj", QUERY_WITH_GATE),
            ("self_attn.k_proj", &[FeatureBlock::Key]),
            ("self_attn.v_proj", &[FeatureBlock::Value]),
        ],
        WeightSlot::Layer(_, LayerSlot::OutGate) => &[("self_attn.q_proj", QUERY_WITH_GATE)],
        other => other.usual_tensors(),
    }
}

/// Reads a decoder whose layers are gated delta nets or gated attention, with dense MLPs.
pub(super) fn read(config: &Config, traits: Traits) -> Result<DecoderSpec, ConfigError> {
    config.insist("attention_bias", false, "attention with gates has no biases")?;
    config.insist("attn_output_gate", true, "the results of attention are gated")?;
    let traits = Traits {
        head_dim: Some(256),
        partial_rotary: 0.25,
        positions: Some(32_768),
        norm: NormTrait::RmsPlusOne,
        norm_eps: Some(1e-6),
        head_norm: HeadNormPlan::Shared,
        ..traits
    };
    let mut spec = decoder::read(config, &traits)?;
    let eps = config.optional_number(traits.keys.norm_eps, 0.0)?.or(traits.norm_eps).unwrap_or(1e-6);
    let recurrent = RecurrentLayer {
        heads: heads(config)?,
        rule: RecurrentRule::Delta(decoder::activation(config, Activation::Silu)?),
        taps: config.optional_size("linear_conv_kernel_dim", MAX_TAPS)?.unwrap_or(4),
        conv_bias: false,
        in_bias: false,
        result: ResultPlan::Normed { eps: eps as f32, gated: true },
        out_bias: false,
        factors: ProjectionFactors::NONE,
    };
    let interval = config.optional_size("full_attention_interval", usize::MAX)?.unwrap_or(4);
    let is_recurrent = layer_kinds(config, spec.layers.len(), &["linear_attention"], |index| {
        !(index + 1).is_multiple_of(interval)
    })?;
    for (layer, is_recurrent) in spec.layers.iter_mut().zip(is_recurrent) {
        if is_recurrent {
            layer.attention = Attention::Recurrent(recurrent.clone());
        } else if let Some(heads) = layer.attention.heads_mut() {
            heads.out_gate = true;
        }
    }
    Ok(spec)
}

/// Returns for each of `count` layers whether it is recurrent: those of one of `names` in
/// `layer_types`, or if that is absent, those for which `usual` returns true. All others have full
/// attention.
pub(super) fn layer_kinds(
    config: &Config,
    count: usize,
    names: &[&str],
    usual: impl Fn(usize) -> bool,
) -> Result<Vec<bool>, ConfigError> {
    let key = "layer_types";
    let Some(kinds) = config.optional::<Vec<String>>(key)? else {
        return Ok((0..count).map(usual).collect());
    };
    if kinds.len() != count {
        let reason = format!("has {} entries for {count} layers", kinds.len());
        return Err(config.invalid(key, reason));
    }
    let is_recurrent = |name: &String| match name.as_str() {
        "full_attention" | "attention" => Ok(false),
        name if names.contains(&name) => Ok(true),
        other => Err(config.invalid(key, format!("has {other}, which is not supported"))),
    };
    kinds.iter().map(is_recurrent).collect()
}

fn heads(config: &Config) -> Result<RecurrentHeads, ConfigError> {
    let size = |key, default, max| Ok(config.optional_size(key, max)?.unwrap_or(default));
    let heads = RecurrentHeads {
        key_heads: size("linear_num_key_heads", 16, MAX_HEADS)?,
        heads: size("linear_num_value_heads", 32, MAX_HEADS)?,
        key_dim: size("linear_key_head_dim", 128, MAX_HEAD_DIM)?,
        value_dim: size("linear_value_head_dim", 128, MAX_HEAD_DIM)?,
        sharing: key_sharing(config)?,
    };
    if !heads.heads.is_multiple_of(heads.key_heads) {
        let reason =
            format!("is {}, which does not divide linear_num_value_heads = {}", heads.key_heads, heads.heads);
        return Err(config.invalid("linear_num_key_heads", reason));
    }
    if heads.cols() > MAX_WIDTH {
        let reason = format!("is {}, too many for {} features each", heads.heads, heads.value_dim);
        return Err(config.invalid("linear_num_value_heads", reason));
    }
    Ok(heads)
}

/// Returns the value heads that share a key head: neighbors, unless a converter has reordered them.
/// The readers of model files say so in an object of its own.
fn key_sharing(config: &Config) -> Result<KeySharing, ConfigError> {
    let strided = match config.object("millrace")? {
        Some(changes) => changes.flag("strided_value_heads", false)?,
        None => false,
    };
    Ok(if strided { KeySharing::Strided } else { KeySharing::Neighbors })
}
