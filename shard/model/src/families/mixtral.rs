//! Mixtral: Mistral with experts in all layers.

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::experts::{self, ExpertKeys};
use super::family::Family;
use super::names::{LLAMA, Names};
use crate::description::{DecoderSpec, FeatureBlock, LayerSlot, StoredTensors, WeightSlot};

pub(super) const FAMILY: Family =
    Family { model_type: "mixtral", architectures: &["MixtralForCausalLM"], spec, names: NAMES };

/// The names of Mixtral's tensors.
pub(super) const NAMES: Names = Names { tensors, ..LLAMA };

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Experts, Gate, Hidden, Up};
    match slot {
        WeightSlot::Layer(_, LayerSlot::Router) => &[("block_sparse_moe.gate", &[Experts])],
        WeightSlot::Layer(_, LayerSlot::ExpertGateUp) => {
            &[("block_sparse_moe.experts.*.w1", &[Gate]), ("block_sparse_moe.experts.*.w3", &[Up])]
        }
        WeightSlot::Layer(_, LayerSlot::ExpertDown) => &[("block_sparse_moe.experts.*.w2", &[Hidden])],
        other => other.usual_tensors(),
    }
}

const KEYS: ExpertKeys = ExpertKeys {
    experts: ("num_local_experts", 8),
    top_k: ("num_experts_per_tok", 2),
    width: ("intermediate_size", 14336),
};

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let mut spec = decoder::read(config, &Traits { kv_heads: Some(8), ..Traits::default() })?;
    let window = config.optional_size("sliding_window", usize::MAX)?;
    decoder::slide(config, &mut spec, window, 0)?;
    let of_layers = experts::read(config, &KEYS)?;
    experts::place(&mut spec, &of_layers, |_| true);
    Ok(spec)
}
