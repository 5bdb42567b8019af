//! BLOOM: linear biases instead of positions, and a layer norm after the embedding.

use millrace_backend::Activation;

use super::config::Config;
use super::decoder::{self, Keys, NormTrait, Traits};
use super::error::ConfigError;
use super::family::Family;
use super::gpt2;
use super::names::{LLAMA, Names};
use crate::description::{DecoderSpec, FeatureBlock, LayerSlot, SlopeRule, StoredTensors, WeightSlot};

pub(super) const FAMILY: Family = Family {
    model_type: "bloom",
    architectures: &["BloomForCausalLM"],
    spec,
    names: Names { layers: "transformer.h.", tensors, grouped_qkv: true, ..LLAMA },
};

/// The names of BLOOM, which Falcon uses as well.
pub(super) fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Hidden, Key, Query, Up, Value, Vocabulary};
    use LayerSlot as Slot;
    match slot {
        WeightSlot::Embedding => &[("transformer.word_embeddings", &[Vocabulary])],
        WeightSlot::EmbeddingNorm | WeightSlot::EmbeddingNormBias => {
            &[("transformer.word_embeddings_layernorm", &[Hidden])]
        }
        WeightSlot::FinalNorm | WeightSlot::FinalNormBias => &[("transformer.ln_f", &[Hidden])],
        WeightSlot::Layer(_, Slot::Qkv | Slot::QkvBias) => {
            &[("self_attention.query_key_value", &[Query, Key, Value])]
        }
        WeightSlot::Layer(_, Slot::Out | Slot::OutBias) => &[("self_attention.dense", &[Hidden])],
        WeightSlot::Layer(_, Slot::Up | Slot::UpBias) => &[("mlp.dense_h_to_4h", &[Up])],
        WeightSlot::Layer(_, Slot::Down | Slot::DownBias) => &[("mlp.dense_4h_to_h", &[Hidden])],
        other => other.usual_tensors(),
    }
}

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let reason = "residuals of normalized states";
    config.insist("apply_residual_connection_post_layernorm", false, reason)?;
    let either = |first, second| if config.mentions(first) { first } else { second };
    let keys = Keys {
        hidden: either("hidden_size", "n_embed"),
        heads: either("n_head", "num_attention_heads"),
        layers: either("n_layer", "num_hidden_layers"),
        positions: "seq_length",
        ..gpt2::KEYS
    };
    let traits = Traits {
        keys,
        rotary: false,
        // Linear biases have no longest context. This is the one of the training.
        positions: Some(2048),
        tied_head: true,
        norm: NormTrait::Layer { bias: true },
        norm_eps: Some(1e-5),
        act: Activation::GeluTanh,
        gated: false,
        fourfold_width: true,
        qkv_bias: true,
        out_bias: true,
        mlp_bias: true,
        ..Traits::default()
    };
    let mut spec = decoder::read(config, &traits)?;
    spec.embedding.norm = true;
    decoder::use_linear_biases(&mut spec, SlopeRule::Below { factor: 1.0 });
    Ok(spec)
}
