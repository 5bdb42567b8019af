//! Encoders in the layout of BERT: each token attends to the whole text, and the residual stream is
//! normalized after each sum. They compute vectors of texts, and no tokens.

use millrace_backend::Activation;

use super::config::Config;
use super::decoder::{self, Keys, NormTrait, Traits, USUAL_KEYS};
use super::error::ConfigError;
use crate::description::{ClassifierKind, ClassifierPlan, DecoderSpec, LearnedPositions, NormPlace};

/// The largest table of token types that makes sense.
pub(super) const MAX_TYPES: usize = 1 << 10;
/// A larger id of the padding token leaves no table of positions.
const MAX_PADDING: usize = 1 << 20;
/// The largest number of outputs of a classifier. Published classifiers of intents and languages
/// have up to a few hundred.
const MAX_CLASSES: usize = 1000;

/// The names of norms in checkpoints that were converted from TensorFlow.
pub(super) const OLD_NORM_SCALES: (&str, &str) = ("LayerNorm.weight", "LayerNorm.gamma");
pub(super) const OLD_NORM_BIASES: (&str, &str) = ("LayerNorm.bias", "LayerNorm.beta");

/// Reads an encoder whose table of positions has `skipped` rows before that of position 0.
pub(super) fn read(config: &Config, skipped: usize) -> Result<DecoderSpec, ConfigError> {
    config.insist("position_embedding_type", "absolute", "positions in the scores of attention")?;
    config.insist("is_decoder", false, "a decoder in the layout of an encoder")?;
    config.insist("add_cross_attention", false, "attention to another text")?;
    let traits = Traits {
        keys: Keys { norm_eps: "layer_norm_eps", ..USUAL_KEYS },
        rotary: false,
        norm: NormTrait::Layer { bias: true },
        norm_eps: Some(1e-12),
        act: Activation::Gelu,
        gated: false,
        qkv_bias: true,
        out_bias: true,
        mlp_bias: true,
        ..Traits::default()
    };
    let mut spec = decoder::read(config, &traits)?;
    let rows = spec.max_positions;
    if rows <= skipped {
        let reason = format!("is {rows}, but the first {skipped} rows are not used");
        return Err(config.invalid(traits.keys.positions, reason));
    }
    spec.max_positions = rows - skipped;
    spec.embedding.positions = Some(LearnedPositions { rows, first: skipped });
    spec.embedding.token_types = Some(config.optional_size("type_vocab_size", MAX_TYPES)?.unwrap_or(2));
    normalize_sums(&mut spec);
    Ok(spec)
}

/// Makes an encoder of a decoder: the embedding and all sums are normalized, tokens attend to the
/// whole text, and there is no head.
pub(super) fn normalize_sums(spec: &mut DecoderSpec) {
    spec.embedding.norm = true;
    spec.norm.place = NormPlace::AfterSums;
    // A head for masked tokens is not used, and the embedding stands in for it.
    (spec.tied_head, spec.head.is_absent) = (true, true);
    decoder::heads_mut(spec).for_each(|heads| heads.bidirectional = true);
}

/// Reads an encoder whose positions are counted from behind the padding token (RoBERTa).
pub(super) fn read_after_padding(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let key = "pad_token_id";
    let padding = config.optional::<usize>(key)?.unwrap_or(1);
    if padding > MAX_PADDING {
        return Err(config.invalid(key, format!("is {padding}, more than the limit of {MAX_PADDING}")));
    }
    let mut spec = read(config, padding + 1)?;
    let plan = |classes| ClassifierPlan { classes, kind: ClassifierKind::Tanh };
    spec.head.classifier = classes(config)?.map(plan);
    Ok(spec)
}

/// Returns the number of outputs of the classifier, if the architecture has one.
pub(super) fn classes(config: &Config) -> Result<Option<usize>, ConfigError> {
    let architectures: Vec<String> = config.optional("architectures")?.unwrap_or_default();
    if !architectures.iter().any(|name| name.ends_with("ForSequenceClassification")) {
        return Ok(None);
    }
    let names = config.object("id2label")?.map(|names| names.keys().count());
    let classes = match names {
        Some(count) => count,
        None => config.optional_size("num_labels", MAX_CLASSES)?.unwrap_or(2),
    };
    if classes > MAX_CLASSES {
        let reason = format!("has {classes} entries, more than the limit of {MAX_CLASSES}");
        return Err(config.invalid("id2label", reason));
    }
    Ok(Some(classes))
}

/// Returns a function from weights to tensors whose names begin with the name of the model, as
/// those of checkpoints with a head do.
macro_rules! bert_tensors {
    ($model:literal) => {
        |slot: crate::description::WeightSlot| -> crate::description::StoredTensors {
            use crate::description::FeatureBlock::{Hidden, Key, Positions, Query, Up, Value, Vocabulary};
            use crate::description::{LayerSlot as Slot, WeightSlot};
            match slot {
                WeightSlot::Embedding => &[(concat!($model, ".embeddings.word_embeddings"), &[Vocabulary])],
                WeightSlot::Positions => {
                    &[(concat!($model, ".embeddings.position_embeddings"), &[Positions])]
                }
                WeightSlot::EmbeddingNorm | WeightSlot::EmbeddingNormBias => {
                    &[(concat!($model, ".embeddings.LayerNorm"), &[Hidden])]
                }
                WeightSlot::Layer(_, Slot::Qkv | Slot::QkvBias) => &[
                    ("attention.self.query", &[Query]),
                    ("attention.self.key", &[Key]),
                    ("attention.self.value", &[Value]),
                ],
                WeightSlot::Layer(_, Slot::Out | Slot::OutBias) => &[("attention.output.dense", &[Hidden])],
                WeightSlot::Layer(_, Slot::MlpNorm | Slot::MlpNormBias) => {
                    &[("attention.output.LayerNorm", &[Hidden])]
                }
                WeightSlot::Layer(_, Slot::Up | Slot::UpBias) => &[("intermediate.dense", &[Up])],
                WeightSlot::Layer(_, Slot::Down | Slot::DownBias) => &[("output.dense", &[Hidden])],
                WeightSlot::Layer(_, Slot::MlpOutNorm | Slot::MlpOutNormBias) => {
                    &[("output.LayerNorm", &[Hidden])]
                }
                other => other.usual_tensors(),
            }
        }
    };
}

pub(super) use bert_tensors;
