//! Nomic's BERT: a BERT with rotary positions and gates, and without biases in its products.

use super::config::Config;
use super::decoder::{self, Keys, NormTrait, Traits, USUAL_KEYS};
use super::encoder::{self, MAX_TYPES, normalize_sums};
use super::error::ConfigError;
use super::family::Family;
use super::names::{LLAMA, Names};
use super::rope::MAX_POSITIONS;
use crate::description::{
    ClassifierKind, ClassifierPlan, DecoderSpec, FeatureBlock, LayerSlot, StoredTensors, WeightSlot,
};

pub(super) const FAMILY: Family = Family {
    model_type: "nomic_bert",
    architectures: &["NomicBertModel", "NomicBertForMaskedLM", "NomicBertForSequenceClassification"],
    spec,
    names: Names {
        layers: "nomic_bert.encoder.layers.",
        tensors,
        aliases: &[("nomic_bert.", ""), ("nomic_bert.", "bert.")],
        token_types: Some("nomic_bert.embeddings.token_type_embeddings"),
        ..LLAMA
    },
};

/// The keys of the configuration that comes with the code of the model, which are those of GPT-2.
const OWN_KEYS: Keys = Keys {
    hidden: "n_embd",
    layers: "n_layer",
    heads: "n_head",
    width: "n_inner",
    positions: "n_positions",
    norm_eps: "layer_norm_epsilon",
    ..USUAL_KEYS
};

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Classes, Gate, Hidden, Key, Query, Up, Value, Vocabulary};
    use LayerSlot as Slot;
    match slot {
        WeightSlot::Embedding => &[("nomic_bert.embeddings.word_embeddings", &[Vocabulary])],
        WeightSlot::EmbeddingNorm | WeightSlot::EmbeddingNormBias => &[("nomic_bert.emb_ln", &[Hidden])],
        WeightSlot::ClassifierDense | WeightSlot::ClassifierDenseBias => {
            &[("nomic_bert.pooler.dense", &[Hidden])]
        }
        WeightSlot::ClassifierOut | WeightSlot::ClassifierOutBias => &[("classifier", &[Classes])],
        WeightSlot::Layer(_, Slot::Qkv) => &[("attn.Wqkv", &[Query, Key, Value])],
        WeightSlot::Layer(_, Slot::Out) => &[("attn.out_proj", &[Hidden])],
        WeightSlot::Layer(_, Slot::MlpNorm | Slot::MlpNormBias) => &[("norm1", &[Hidden])],
        WeightSlot::Layer(_, Slot::GateUp) => &[("mlp.fc12", &[Gate]), ("mlp.fc11", &[Up])],
        WeightSlot::Layer(_, Slot::Down) => &[("mlp.fc2", &[Hidden])],
        WeightSlot::Layer(_, Slot::MlpOutNorm | Slot::MlpOutNormBias) => &[("norm2", &[Hidden])],
        other => other.usual_tensors(),
    }
}

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let traits = Traits {
        theta: Some(1000.0),
        norm: NormTrait::Layer { bias: true },
        norm_eps: Some(1e-12),
        ..Traits::default()
    };
    let mut spec = if config.mentions(OWN_KEYS.hidden) {
        own_spec(config, &traits)?
    } else {
        let keys = Keys { norm_eps: "layer_norm_eps", ..USUAL_KEYS };
        decoder::read(config, &Traits { keys, ..traits })?
    };
    spec.embedding.token_types = Some(config.optional_size("type_vocab_size", MAX_TYPES)?.unwrap_or(2));
    normalize_sums(&mut spec);
    let plan = |classes| ClassifierPlan { classes, kind: ClassifierKind::Tanh };
    spec.head.classifier = encoder::classes(config)?.map(plan);
    Ok(spec)
}

/// Reads the configuration that comes with the code of the model. Its switches make other models,
/// which are refused.
fn own_spec(config: &Config, traits: &Traits) -> Result<DecoderSpec, ConfigError> {
    for key in [
        "prenorm",
        "parallel_block",
        "use_rms_norm",
        "causal",
        "rotary_emb_interleaved",
        "qkv_proj_bias",
        "mlp_fc1_bias",
        "mlp_fc2_bias",
    ] {
        config.insist(key, false, "it must be false")?;
    }
    for key in ["num_experts", "moe_every_n_layers"] {
        config.insist(key, 0, "a mixture of experts")?;
    }
    config.refuse("rotary_emb_scale_base", "scores that fall with the distance")?;
    let key = "activation_function";
    let act = match config.optional::<String>(key)?.as_deref() {
        Some("swiglu") => "silu",
        Some("geglu") => "gelu",
        _ => return Err(config.unsupported(key, "it must be swiglu or geglu")),
    };
    let fraction = "rotary_emb_fraction";
    let traits = Traits {
        keys: OWN_KEYS,
        theta: Some(config.optional_number("rotary_emb_base", 1.0)?.unwrap_or(10_000.0)),
        partial_rotary: config.optional_number(fraction, 0.0)?.unwrap_or(0.0),
        ..*traits
    };
    if traits.partial_rotary == 0.0 {
        return Err(config.unsupported(fraction, "positions must be rotary"));
    }
    // The name of the activation says that there is a gate.
    let mut named = config.clone();
    named.replace(key, act.into());
    let mut spec = decoder::read(&named, &traits)?;
    // The rotation of longer texts is scaled, by `rotary_scaling_factor` or in the program of the
    // user.
    if let Some(trained) = config.optional_size("max_trained_positions", MAX_POSITIONS)? {
        spec.max_positions = spec.max_positions.min(trained);
    }
    Ok(spec)
}
