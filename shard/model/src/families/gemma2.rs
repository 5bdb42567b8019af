//! Gemma 2: Gemma with norms around both branches, soft caps, and windows in every second layer.

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::family::Family;
use super::gemma;
use super::names::{LLAMA, Names};
use crate::description::{DecoderSpec, FeatureBlock, LayerSlot, NormPlace, StoredTensors, WeightSlot};

pub(super) const FAMILY: Family = Family {
    model_type: "gemma2",
    architectures: &["Gemma2ForCausalLM"],
    spec,
    names: Names { tensors, ..LLAMA },
};

/// The norm after attention has the name that Llama gives to the norm before the MLP.
pub(super) fn tensors(slot: WeightSlot) -> StoredTensors {
    match slot {
        WeightSlot::Layer(_, LayerSlot::MlpNorm) => &[("pre_feedforward_layernorm", &[FeatureBlock::Hidden])],
        other => other.usual_tensors(),
    }
}

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    gemma::insist_causal(config)?;
    let mut spec = gemma::read(config, Traits { kv_heads: Some(4), ..Traits::default() })?;
    norms_and_caps(config, &mut spec, Caps { scores: Some(50.0), logits: Some(30.0) })?;
    let window = decoder::window(config, 4096)?;
    decoder::slide_by_pattern(config, &mut spec, window, 2)?;
    Ok(spec)
}

/// The soft caps of files that do not mention them.
pub(super) struct Caps {
    pub(super) scores: Option<f32>,
    pub(super) logits: Option<f32>,
}

/// Sets the norms around the branches, the scale of scores, and the soft caps.
pub(super) fn norms_and_caps(
    config: &Config,
    spec: &mut DecoderSpec,
    absent: Caps,
) -> Result<(), ConfigError> {
    spec.norm.place = NormPlace::AroundBranches;
    let cap = |key, absent| match config.mentions(key) {
        true => Ok(config.optional_number(key, f64::MIN_POSITIVE)?.map(|cap| cap as f32)),
        false => Ok(absent),
    };
    spec.head.soft_cap = cap("final_logit_softcapping", absent.logits)?;
    let score_cap = cap("attn_logit_softcapping", absent.scores)?;
    let scalar = config.optional_number("query_pre_attn_scalar", f64::MIN_POSITIVE)?.unwrap_or(256.0);
    for heads in decoder::heads_mut(spec) {
        heads.score_scale = scalar.sqrt().recip() as f32;
        heads.score_cap = score_cap;
    }
    Ok(())
}
