//! ModernBERT: an encoder with rotary positions, gates, and windows in most layers.

use millrace_backend::Activation;

use super::config::Config;
use super::decoder::{self, Keys, NormTrait, Traits, USUAL_KEYS};
use super::encoder;
use super::error::ConfigError;
use super::family::Family;
use super::names::{LLAMA, Names};
use crate::description::{
    ClassifierKind, ClassifierPlan, DecoderSpec, FeatureBlock, LayerSlot, StoredTensors, WeightSlot,
};

pub(super) const FAMILY: Family = Family {
    model_type: "modernbert",
    architectures: &["ModernBertModel", "ModernBertForMaskedLM", "ModernBertForSequenceClassification"],
    spec,
    names: Names { tensors, ..LLAMA },
};

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Classes, Gate, Hidden, Key, Query, Up, Value, Vocabulary};
    use LayerSlot as Slot;
    match slot {
        WeightSlot::Embedding => &[("model.embeddings.tok_embeddings", &[Vocabulary])],
        WeightSlot::EmbeddingNorm | WeightSlot::EmbeddingNormBias => &[("model.embeddings.norm", &[Hidden])],
        WeightSlot::FinalNorm | WeightSlot::FinalNormBias => &[("model.final_norm", &[Hidden])],
        WeightSlot::ClassifierDense | WeightSlot::ClassifierDenseBias => &[("head.dense", &[Hidden])],
        WeightSlot::ClassifierNorm | WeightSlot::ClassifierNormBias => &[("head.norm", &[Hidden])],
        WeightSlot::ClassifierOut | WeightSlot::ClassifierOutBias => &[("classifier", &[Classes])],
        WeightSlot::Layer(_, Slot::AttentionNorm | Slot::AttentionNormBias) => &[("attn_norm", &[Hidden])],
        WeightSlot::Layer(_, Slot::Qkv | Slot::QkvBias) => &[("attn.Wqkv", &[Query, Key, Value])],
        WeightSlot::Layer(_, Slot::Out | Slot::OutBias) => &[("attn.Wo", &[Hidden])],
        WeightSlot::Layer(_, Slot::MlpNorm | Slot::MlpNormBias) => &[("mlp_norm", &[Hidden])],
        WeightSlot::Layer(_, Slot::GateUp | Slot::GateUpBias) => &[("mlp.Wi", &[Gate, Up])],
        WeightSlot::Layer(_, Slot::Down | Slot::DownBias) => &[("mlp.Wo", &[Hidden])],
        other => other.usual_tensors(),
    }
}

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let theta = config.optional_number("global_rope_theta", 1.0)?.unwrap_or(160_000.0);
    // A base of `null` is that of the other layers.
    let local = "local_rope_theta";
    let window_theta = match config.mentions(local) {
        true => config.optional_number(local, 1.0)?.unwrap_or(theta),
        false => 10_000.0,
    };
    let bias = config.flag("attention_bias", false)?;
    let traits = Traits {
        keys: Keys { norm_eps: "norm_eps", ..USUAL_KEYS },
        theta: Some(theta),
        window_theta: Some(window_theta),
        tied_head: true,
        norm: NormTrait::Layer { bias: config.flag("norm_bias", false)? },
        norm_eps: Some(1e-5),
        act: Activation::Gelu,
        qkv_bias: bias,
        out_bias: bias,
        mlp_bias: config.flag("mlp_bias", false)?,
        ..Traits::default()
    };
    let mut spec = decoder::read(config, &traits)?;
    spec.embedding.norm = true;
    slide(config, &mut spec)?;
    decoder::rotate_windows(&mut spec);
    decoder::heads_mut(&mut spec).for_each(|heads| heads.bidirectional = true);
    // The embedding is normalized already.
    decoder::heads_mut(&mut spec).take(1).for_each(|heads| heads.reads_residual = true);
    spec.head.is_absent = true;
    spec.head.classifier = classifier(config)?;
    Ok(spec)
}

/// Sets the windows: `local_attention` tokens, half of them on each side of a token.
fn slide(config: &Config, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    let window = config.optional_size("local_attention", usize::MAX)?.unwrap_or(128) / 2 + 1;
    if config.mentions("layer_types") {
        return decoder::slide(config, spec, Some(window), 0);
    }
    let interval = config.optional_size("global_attn_every_n_layers", usize::MAX)?.unwrap_or(3);
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        if !index.is_multiple_of(interval) {
            layer.attention.slide(window);
        }
    }
    Ok(())
}

/// Reads the classifier of texts, if the architecture has one.
fn classifier(config: &Config) -> Result<Option<ClassifierPlan>, ConfigError> {
    let Some(classes) = encoder::classes(config)? else { return Ok(None) };
    config.insist("classifier_activation", "gelu", "a classifier must have gelu")?;
    let key = "classifier_pooling";
    let averages = match config.optional::<String>(key)?.as_deref() {
        None | Some("cls") => false,
        Some("mean") => true,
        Some(_) => return Err(config.unsupported(key, "it must be cls or mean")),
    };
    let dense_bias = config.flag("classifier_bias", false)?;
    Ok(Some(ClassifierPlan { classes, kind: ClassifierKind::NormedGelu { averages, dense_bias } }))
}
