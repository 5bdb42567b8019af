//! ChatGLM-6B: a decoder whose context attends in both directions, with positions on two axes and
//! residuals of normalized states.

use millrace_backend::Activation;

use super::config::Config;
use super::decoder::{self, Keys, NormTrait, Traits};
use super::error::ConfigError;
use super::family::Family;
use super::names::{LLAMA, Names};
use crate::description::{
    DecoderSpec, FeatureBlock, LayerSlot, PrefixRule, Residual, StoredTensors, WeightSlot,
};

/// The model type of this family. Configurations say `chatglm`, as those of ChatGLM2 do.
const MODEL_TYPE: &str = "chatglm_6b";

pub(super) const FAMILY: Family = Family {
    model_type: MODEL_TYPE,
    architectures: &["ChatGLMModel", "ChatGLMForConditionalGeneration"],
    spec,
    names: Names { layers: "transformer.layers.", tensors, grouped_qkv: true, ..LLAMA },
};

/// Gives the configuration of a ChatGLM-6B a model type of its own.
pub(super) fn distinguish(config: &mut Config) -> Result<(), ConfigError> {
    let model_type: Option<String> = config.optional("model_type")?;
    let is_first = ["inner_hidden_size", "position_encoding_2d"].iter().any(|key| config.mentions(key));
    if is_first && model_type.is_none_or(|name| name == "chatglm") {
        config.replace("model_type", MODEL_TYPE.into());
    }
    Ok(())
}

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Hidden, Key, Query, Up, Value, Vocabulary};
    use LayerSlot as Slot;
    match slot {
        WeightSlot::Embedding => &[("transformer.word_embeddings", &[Vocabulary])],
        WeightSlot::FinalNorm | WeightSlot::FinalNormBias => &[("transformer.final_layernorm", &[Hidden])],
        WeightSlot::Layer(_, Slot::Qkv | Slot::QkvBias) => {
            &[("attention.query_key_value", &[Query, Key, Value])]
        }
        WeightSlot::Layer(_, Slot::Out | Slot::OutBias) => &[("attention.dense", &[Hidden])],
        WeightSlot::Layer(_, Slot::Up | Slot::UpBias) => &[("mlp.dense_h_to_4h", &[Up])],
        WeightSlot::Layer(_, Slot::Down | Slot::DownBias) => &[("mlp.dense_4h_to_h", &[Hidden])],
        other => other.usual_tensors(),
    }
}

const KEYS: Keys = Keys {
    hidden: "hidden_size",
    layers: "num_layers",
    heads: "num_attention_heads",
    kv_heads: "num_key_value_heads",
    head_dim: "kv_channels",
    width: "inner_hidden_size",
    vocab: "vocab_size",
    positions: "max_sequence_length",
    norm_eps: "layernorm_epsilon",
};

/// Number of layers by which the published code computes the factor on normalized states. It does
/// so whatever the number of layers of the model is.
const FACTOR_LAYERS: f32 = 28.0;

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    config.insist("position_encoding_2d", true, "positions on one axis")?;
    config.insist("pre_seq_len", 0, "the prefix of p-tuning")?;
    let traits = Traits {
        keys: KEYS,
        positions: Some(2048),
        partial_rotary: 0.5,
        norm: NormTrait::Layer { bias: true },
        norm_eps: Some(1e-5),
        act: Activation::GeluTanh,
        gated: false,
        fourfold_width: true,
        qkv_bias: true,
        out_bias: true,
        mlp_bias: true,
        // Checkpoints store the head as well. It is equal to the embedding.
        tied_head: true,
        ..Traits::default()
    };
    let mut spec = decoder::read(config, &traits)?;
    spec.ropes.iter_mut().for_each(|rope| rope.two_axes = true);
    spec.residual = Residual::Normalized { factor: (2.0 * FACTOR_LAYERS).sqrt() };
    decoder::heads_mut(&mut spec).for_each(|heads| heads.bidirectional = true);
    let token =
        |key: &str, usual: u32| -> Result<u32, ConfigError> { Ok(config.optional(key)?.unwrap_or(usual)) };
    spec.prefix = PrefixRule::Before {
        separator: token("bos_token_id", 130_004)?,
        masks: [token("gmask_token_id", 130_001)?, token("mask_token_id", 130_000)?],
    };
    Ok(spec)
}
