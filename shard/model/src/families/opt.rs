//! OPT: learned positions, layer norms, biases, and a plain MLP with ReLU.

use millrace_backend::Activation;

use super::config::Config;
use super::decoder::{self, Keys, NormTrait, Traits, USUAL_KEYS};
use super::error::ConfigError;
use super::family::Family;
use super::names::{LLAMA, Names};
use crate::description::{DecoderSpec, FeatureBlock, LayerSlot, LearnedPositions, StoredTensors, WeightSlot};

/// Rows of the table of positions before that of position 0.
const FIRST_POSITION: usize = 2;

pub(super) const FAMILY: Family = Family {
    model_type: "opt",
    architectures: &["OPTForCausalLM"],
    spec,
    names: Names { layers: "model.decoder.layers.", tensors, ..LLAMA },
};

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Hidden, Positions, Vocabulary};
    use LayerSlot::{AttentionNorm, AttentionNormBias, Down, DownBias, MlpNorm, MlpNormBias};
    use LayerSlot::{Out, OutBias, Up, UpBias};
    match slot {
        WeightSlot::Embedding => &[("model.decoder.embed_tokens", &[Vocabulary])],
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

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    config.insist("do_layer_norm_before", true, "norms after each sum (opt-350m)")?;
    config.insist("_remove_final_layer_norm", false, "a decoder without a final norm")?;
    config.insist("layer_norm_elementwise_affine", true, "norms without weights")?;
    let hidden: Option<usize> = config.optional("hidden_size")?;
    if config.optional::<usize>("word_embed_proj_dim")?.is_some_and(|width| Some(width) != hidden) {
        let reason = "projections after the embedding and before the head";
        return Err(config.unsupported("word_embed_proj_dim", reason));
    }
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
    Ok(spec)
}
