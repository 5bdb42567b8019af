//! ChatGLM2, ChatGLM3 and GLM-4 in the layout of their own code. The family `glm` of transformers
//! is the same decoder. ChatGLM-6B, which has the same model type, is another one: see
//! [`chatglm_6b`](super::chatglm_6b).

use millrace_backend::RopeStyle;

use super::config::Config;
use super::decoder::{self, Keys, Traits};
use super::error::ConfigError;
use super::family::Family;
use super::names::{LLAMA, Names};
use crate::description::{DecoderSpec, FeatureBlock, LayerSlot, StoredTensors, WeightSlot};

pub(super) const FAMILY: Family = Family {
    model_type: "chatglm",
    architectures: &["ChatGLMModel", "ChatGLMForConditionalGeneration"],
    spec,
    names: Names { layers: "transformer.encoder.layers.", tensors, ..LLAMA },
};

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Gate, Hidden, Key, Query, Up, Value, Vocabulary};
    use LayerSlot::{Down, DownBias, GateUp, GateUpBias, Out, OutBias, Qkv, QkvBias};
    match slot {
        WeightSlot::Embedding => &[("transformer.embedding.word_embeddings", &[Vocabulary])],
        WeightSlot::FinalNorm => &[("transformer.encoder.final_layernorm", &[Hidden])],
        WeightSlot::Head => &[("transformer.output_layer", &[Vocabulary])],
        WeightSlot::Layer(_, Qkv | QkvBias) => &[("self_attention.query_key_value", &[Query, Key, Value])],
        WeightSlot::Layer(_, Out | OutBias) => &[("self_attention.dense", &[Hidden])],
        WeightSlot::Layer(_, GateUp | GateUpBias) => &[("mlp.dense_h_to_4h", &[Gate, Up])],
        WeightSlot::Layer(_, Down | DownBias) => &[("mlp.dense_4h_to_h", &[Hidden])],
        other => other.usual_tensors(),
    }
}

const KEYS: Keys = Keys {
    hidden: "hidden_size",
    layers: "num_layers",
    heads: "num_attention_heads",
    kv_heads: "multi_query_group_num",
    head_dim: "kv_channels",
    width: "ffn_hidden_size",
    vocab: "padded_vocab_size",
    positions: "seq_length",
    norm_eps: "layernorm_epsilon",
};

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    config.insist("rmsnorm", true, "layer norms")?;
    config.insist("post_layer_norm", true, "a decoder without a final norm")?;
    config.insist("apply_residual_connection_post_layernorm", false, "residuals of normalized states")?;
    config.insist("pre_seq_len", 0, "the prefix of p-tuning")?;
    if !config.flag("multi_query_attention", false)? {
        let reason = "heads that are stored one by one; multi_query_attention must be true";
        return Err(config.unsupported("multi_query_attention", reason));
    }
    let bias = config.flag("add_bias_linear", false)?;
    let traits = Traits {
        keys: KEYS,
        kv_heads: Some(1),
        head_dim: Some(128),
        partial_rotary: 0.5,
        rope: if config.flag("original_rope", true)? { RopeStyle::Interleaved } else { RopeStyle::Half },
        qkv_bias: bias || config.flag("add_qkv_bias", false)?,
        out_bias: bias,
        mlp_bias: bias,
        ..Traits::default()
    };
    let mut spec = decoder::read(config, &traits)?;
    let ratio = config.optional_number("rope_ratio", f64::MIN_POSITIVE)?.unwrap_or(1.0);
    spec.ropes.iter_mut().for_each(|rope| rope.theta *= ratio);
    Ok(spec)
}
