//! Granite 4: Mamba-2 layers between layers of attention, and experts beside a shared one, or dense
//! MLPs.

use super::config::Config;
use super::decoder::{self, Keys, MAX_WIDTH, Traits, USUAL_KEYS};
use super::delta::layer_kinds;
use super::error::ConfigError;
use super::experts::{self, ExpertKeys};
use super::family::Family;
use super::names::{LLAMA, Names};
use super::{granite, mamba};
use crate::description::{
    Attention, DecoderSpec, FeatureBlock, LayerSlot, NormKind, SharedExpert, StoredTensors, WeightSlot,
};

pub(super) const FAMILY: Family = Family {
    model_type: "granitemoehybrid",
    architectures: &["GraniteMoeHybridForCausalLM"],
    spec,
    names: Names { tensors, ..LLAMA },
};

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Experts, Gate, Hidden, Up};
    match slot {
        WeightSlot::Layer(_, LayerSlot::GateUp | LayerSlot::SharedGateUp) => {
            &[("shared_mlp.input_linear", &[Gate, Up])]
        }
        WeightSlot::Layer(_, LayerSlot::Down | LayerSlot::SharedDown) => {
            &[("shared_mlp.output_linear", &[Hidden])]
        }
        WeightSlot::Layer(_, LayerSlot::Router) => &[("block_sparse_moe.router.layer", &[Experts])],
        WeightSlot::Layer(_, LayerSlot::ExpertGateUp) => &[("block_sparse_moe.input_linear", &[Gate, Up])],
        WeightSlot::Layer(_, LayerSlot::ExpertDown) => &[("block_sparse_moe.output_linear", &[Hidden])],
        WeightSlot::Recurrent(_, slot) => mamba::tensors(slot),
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
    let rotary = match config.optional::<String>("position_embedding_type")?.as_deref() {
        None | Some("nope") => false,
        Some("rope") => true,
        Some(_) => return Err(config.unsupported("position_embedding_type", "it must be rope or absent")),
    };
    let keys = Keys { width: "shared_intermediate_size", ..USUAL_KEYS };
    let traits =
        Traits { keys, qkv_bias: bias, out_bias: bias, rotary, norm_eps: Some(1e-6), ..Traits::default() };
    let mut spec = decoder::read(config, &traits)?;
    granite::set_factors(config, &mut spec)?;
    let NormKind::Rms { eps, .. } = spec.norm.kind else {
        unreachable!("the traits ask for RMS norms; this is a bug")
    };
    let width = mamba::expanded(config, spec.hidden)?;
    let recurrent = mamba::read(config, &mamba::USUAL_KEYS, width, eps)?;
    let names = ["mamba", "linear_attention"];
    let is_recurrent = layer_kinds(config, spec.layers.len(), &names, |_| true)?;
    for (layer, _) in spec.layers.iter_mut().zip(is_recurrent).filter(|(_, is_recurrent)| *is_recurrent) {
        layer.attention = Attention::Recurrent(recurrent.clone());
    }
    if config.optional::<usize>("num_local_experts")? != Some(0) {
        let mut of_layers = experts::read(config, &KEYS)?;
        let width = config.size("shared_intermediate_size", MAX_WIDTH)?;
        of_layers.shared = Some(SharedExpert { width, gated: false });
        experts::place(&mut spec, &of_layers, |_| true);
    }
    Ok(spec)
}
