//! OPT: learned positions, layer norms, biases, and a plain MLP with ReLU. The norms of OPT-350M
//! come after the sums, and its embeddings are narrower than its layers.

use millrace_backend::Activation;

use super::config::Config;
use super::decoder::{self, Keys, NormTrait, Traits, USUAL_KEYS};
use super::error::ConfigError;
use super::family::Family;
use super::names::{LLAMA, Names};
use crate::description::{
    DecoderSpec, FeatureBlock, LayerSlot, LearnedPositions, NormPlace, StoredTensors, WeightSlot,
};

/// Rows of the table of positions before that of position 0.
const FIRST_POSITION: usize = 2;

pub(super) const FAMILY: Family = Family {
    model_type: "opt",
    architectures: &["OPTForCausalLM"],
    spec,
    names: Names {
        layers: "model.decoder.layers.",
        tensors,
        tensors_after_sums: Some(tensors_after_sums),
        ..LLAMA
    },
};

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Embedding, Hidden, Positions, Vocabulary};
    use LayerSlot::{AttentionNorm, AttentionNormBias, Down, DownBias, MlpNorm, MlpNormBias};
    use LayerSlot::{Out, OutBias, Up, UpBias};
    match slot {
        WeightSlot::Embedding => &[("model.decoder.embed_tokens", &[Vocabulary])],
        WeightSlot::EmbeddingProjection => &[("model.decoder.project_in", &[Hidden])],
        WeightSlot::HeadProjection => &[("model.decoder.project_out", &[Embedding])],
        WeightSlot::Positions => &[("model.decoder.embed_positions", &[Positions])],
        WeightSlot::FinalNorm | WeightSlot::FinalNormBias => &[("model.decoder.final_layer_norm", &[Hidden])],
        WeightSlot::Layer(_, AttentionNorm | AttentionNormBias) => &[("self_attn_layer_norm", &[Hidden])],
        WeightSlot::Layer(_, MlpNorm | MlpNormBias) => &[("final_layer_norm", &[Hidden])],
        WeightSlot::Layer(_, Out | OutBias) => &[("self_attn.out_proj", &[Hidden])],
        WeightSlot::Layer(_, Up | UpBias) => &[("fc1", &[FeatureBlock::Up])],
        WeightSlot::Layer(_, Down | DownBias) => &[("fc2", &[Hidden])],
        other => other.usual_tensors(),
    }
}

/// The same norms come after the sums.
fn tensors_after_sums(slot: WeightSlot) -> StoredTensors {
    use LayerSlot::{MlpNorm, MlpNormBias, MlpOutNorm, MlpOutNormBias};
    match slot {
        WeightSlot::Layer(_, MlpNorm | MlpNormBias) => &[("self_attn_layer_norm", &[FeatureBlock::Hidden])],
        WeightSlot::Layer(_, MlpOutNorm | MlpOutNormBias) => &[("final_layer_norm", &[FeatureBlock::Hidden])],
        other => tensors(other),
    }
}

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let norms_before = config.flag("do_layer_norm_before", true)?;
    if norms_before {
        config.insist("_remove_final_layer_norm", false, "a decoder without a final norm")?;
    }
    config.insist("layer_norm_elementwise_affine", true, "norms without weights")?;
    let bias = config.flag("enable_bias", true)?;
    let traits = Traits {
        keys: Keys { width: "ffn_dim", norm_eps: "layer_norm_eps", ..USUAL_KEYS },
        rotary: false,
        tied_head: true,
        norm: NormTrait::Layer { bias: true },
        norm_eps: Some(1e-5),
        act: Activation::Relu,
        gated: false,
        qkv_bias: bias,
        out_bias: bias,
        mlp_bias: bias,
        ..Traits::default()
    };
    let mut spec = decoder::read(config, &traits)?;
    let rows = spec.max_positions + FIRST_POSITION;
    spec.embedding.positions = Some(LearnedPositions { rows, first: FIRST_POSITION });
    let width = config.optional_size("word_embed_proj_dim", decoder::MAX_WIDTH)?;
    spec.embedding.width = width.filter(|&width| width != spec.hidden);
    if !norms_before {
        spec.norm.place = NormPlace::AfterSums;
    }
    Ok(spec)
}
