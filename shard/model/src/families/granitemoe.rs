//! Granite 3 with experts (Granite-3.0-1B-A400M and its relatives): factors on embedding, branches,
//! scores and logits, and the experts of a layer in one tensor.

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::experts::{self, ExpertKeys};
use super::family::Family;
use super::names::{LLAMA, Names};
use crate::description::{DecoderSpec, FeatureBlock, LayerSlot, StoredTensors, WeightSlot};

pub(super) const FAMILY: Family = Family {
    model_type: "granitemoe",
    architectures: &["GraniteMoeForCausalLM"],
    spec,
    names: Names { tensors, ..LLAMA },
};

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Experts, Gate, Hidden, Up};
    match slot {
        WeightSlot::Layer(_, LayerSlot::Router) => &[("block_sparse_moe.router.layer", &[Experts])],
        WeightSlot::Layer(_, LayerSlot::ExpertGateUp) => &[("block_sparse_moe.input_linear", &[Gate, Up])],
        WeightSlot::Layer(_, LayerSlot::ExpertDown) => &[("block_sparse_moe.output_linear", &[Hidden])],
        other => other.usual_tensors(),
    }
}

const KEYS: ExpertKeys = ExpertKeys {
    experts: ("num_local_experts", 8),
    top_k: ("num_experts_per_tok", 2),
    width: ("intermediate_size", 11008),
};

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let bias = config.flag("attention_bias", false)?;
    let traits = Traits { qkv_bias: bias, out_bias: bias, norm_eps: Some(1e-6), ..Traits::default() };
    let mut spec = decoder::read(config, &traits)?;
    let factor = |key| Ok(config.optional_number(key, f64::MIN_POSITIVE)?.unwrap_or(1.0));
    spec.embedding.factor = factor("embedding_multiplier")? as f32;
    spec.branch_factor = factor("residual_multiplier")? as f32;
    spec.head.factor = (1.0 / factor("logits_scaling")?) as f32;
    let score_scale = factor("attention_multiplier")? as f32;
    decoder::heads_mut(&mut spec).for_each(|heads| heads.score_scale = score_scale);
    let of_layers = experts::read(config, &KEYS)?;
    experts::place(&mut spec, &of_layers, |_| true);
    Ok(spec)
}
