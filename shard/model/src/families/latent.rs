//! Reads multi-head latent attention, which all DeepSeek models from V2 on have.

use super::config::Config;
use super::decoder::{self, Keys, MAX_HEAD_DIM, MAX_HEADS, MAX_WIDTH, Traits, USUAL_KEYS};
use super::error::ConfigError;
use super::mtp_place::MtpPlace;
use super::names::{LLAMA, Names};
use crate::description::{DecoderSpec, FeatureBlock, LatentPlan, LayerSlot, StoredTensors, WeightSlot};

/// Epsilon of the norms of latents. No key has it.
const NORM_EPS: f32 = 1e-6;

/// The names of DeepSeek's tensors.
pub(super) const NAMES: Names =
    Names { tensors, has_later_layers: true, mtp: Some(MtpPlace::LaterLayer), ..LLAMA };

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Gate, Hidden, Up};
    match slot {
        WeightSlot::Layer(_, LayerSlot::SharedGateUp) => {
            &[("mlp.shared_experts.gate_proj", &[Gate]), ("mlp.shared_experts.up_proj", &[Up])]
        }
        WeightSlot::Layer(_, LayerSlot::SharedDown) => &[("mlp.shared_experts.down_proj", &[Hidden])],
        other => other.usual_tensors(),
    }
}

/// The sizes of a family's latent attention if the keys are absent.
#[derive(Debug, Clone, Copy)]
pub(super) struct LatentSizes {
    pub(super) query_rank: usize,
    pub(super) rank: usize,
    pub(super) plain_dim: usize,
    pub(super) rotary_dim: usize,
    /// If this is `None`, the width is divided among the heads.
    pub(super) value_dim: Option<usize>,
}

impl LatentSizes {
    /// The sizes of DeepSeek-V2 and V3.
    pub(super) const DEEPSEEK: LatentSizes =
        LatentSizes { query_rank: 1536, rank: 512, plain_dim: 128, rotary_dim: 64, value_dim: Some(128) };
}

/// Reads a decoder of equal layers with latent attention and dense MLPs.
pub(super) fn read(
    config: &Config,
    traits: &Traits,
    absent: &LatentSizes,
) -> Result<DecoderSpec, ConfigError> {
    config.insist("attention_bias", false, "latent attention has no biases")?;
    config.insist("mlp_bias", false, "MLPs have no biases")?;
    // The rotary table is that of the rotated features of a head.
    let keys = Keys { head_dim: "qk_rope_head_dim", ..USUAL_KEYS };
    let traits = Traits { keys, head_dim: Some(absent.rotary_dim), ..*traits };
    let mut spec = decoder::read(config, &traits)?;
    let size = |key, default| Ok(config.optional_size(key, MAX_HEAD_DIM)?.unwrap_or(default));
    // An absent rank has a default, but `null` stands for queries from the residual stream.
    let query_rank = match config.optional_size("q_lora_rank", MAX_WIDTH)? {
        None if !config.mentions("q_lora_rank") => Some(absent.query_rank),
        rank => rank,
    };
    let plain_dim = size("qk_nope_head_dim", absent.plain_dim)?;
    let rank = size("kv_lora_rank", absent.rank)?;
    let value_dim = absent.value_dim.unwrap_or(spec.hidden / config.size(keys.heads, MAX_HEADS)?);
    let value_dim = size("v_head_dim", value_dim)?;
    let factor = score_factor(config)?;
    for heads in decoder::heads_mut(&mut spec) {
        let rotary_dim = heads.layout.head_dim;
        let plan = LatentPlan { query_rank, plain_dim, rotary_dim, rank, value_dim, norm_eps: NORM_EPS };
        let widest = plan.query_dim().max(plan.row_dim()).max(plain_dim + value_dim);
        if heads.layout.heads * widest > MAX_WIDTH {
            let reason = format!("is {}, too many for {widest} features each", heads.layout.heads);
            return Err(config.invalid(keys.heads, reason));
        }
        (heads.layout.kv_heads, heads.layout.head_dim) = (1, plan.row_dim());
        heads.score_scale = factor / (plan.query_dim() as f32).sqrt();
        heads.latent = Some(plan);
    }
    Ok(spec)
}

/// Returns the factor on scores by which YaRN makes the softmax sharper.
fn score_factor(config: &Config) -> Result<f32, ConfigError> {
    let nested = match config.object("rope_scaling")? {
        None => config.object("rope_parameters")?,
        scaling => scaling,
    };
    let Some(rope) = nested else { return Ok(1.0) };
    let kind = match rope.optional::<String>("rope_type")? {
        None => rope.optional::<String>("type")?,
        kind => kind,
    };
    let factor = rope.optional_number("factor", 1.0)?.unwrap_or(1.0);
    let scale = rope.optional_number("mscale_all_dim", 0.0)?.unwrap_or(0.0);
    if kind.is_none_or(|kind| kind == "default") || factor <= 1.0 {
        return Ok(1.0);
    }
    Ok((0.1 * scale * factor.ln() + 1.0).powi(2) as f32)
}
