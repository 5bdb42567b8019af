//! Heads that predict the token after the next one (multi-token prediction): a layer of the model's
//! kind that reads the model's last states, with the embedding and the head of the model.

use millrace_formats::{Checkpoint, Source};
use millrace_numbers::DType;
use millrace_numbers::formats::Scheme;

use super::config::Config;
use super::dummy::DummyWeights;
use super::error::{ConfigError, LoadError};
use super::load::{self, Description};
use super::mtp_place::MtpPlace;
use super::names::{Names, Piece};
use super::overrides::Overrides;
use super::stored::StoredWeights;
use super::{quantization, tied_head};
use crate::description::{Attention, DecoderSpec, Model, ModelWarnings, WeightSlot, WeightSource};

/// The key with the number of such heads in models that store them after the last layer.
const LATER_LAYERS: &str = "num_nextn_predict_layers";
/// The same in models that store them in a module.
const MODULE_LAYERS: &str = "mtp_num_hidden_layers";

/// Reads the description of the head of the model in `source`, and maps its weights. The first of
/// several heads is read.
///
/// # Errors
/// If the model has no such head, or it is not supported, or its files are incomplete or damaged.
pub fn load_mtp(source: &Source, overrides: &Overrides) -> Result<Model, LoadError> {
    let Description { config, family, names, mut spec, .. } = load::read(source, overrides)?;
    let (of_head, names) = describe(&config, &names, &spec)?;
    let checkpoint = Checkpoint::open(source)?;
    tied_head::resolve(&config, family, &checkpoint, &mut spec)?;
    let spec = DecoderSpec { tied_head: spec.tied_head, ..of_head };
    check_stored(&config, &names, &spec, &checkpoint)?;
    let scheme = quantization::read(&config, source)?;
    let quantized = scheme.as_ref().map(Scheme::name);
    let weights = StoredWeights::new(checkpoint, spec.clone(), names, scheme)?;
    model(&config, spec, quantized, Box::new(weights))
}

/// Checks that the head was not left out when the checkpoint was written, as many tools do.
fn check_stored(
    config: &Config,
    names: &Names,
    spec: &DecoderSpec,
    checkpoint: &Checkpoint,
) -> Result<(), ConfigError> {
    let exists = |name: &str| checkpoint.contains(name);
    let first = names.pieces(spec, WeightSlot::TokenNorm);
    match first.into_iter().find(|piece| !exists(&names.resolve(&piece.tensor, exists))) {
        Some(Piece { tensor, .. }) => {
            Err(refusal(config, &format!("are not in this checkpoint, which has no {tensor}")))
        }
        None => Ok(()),
    }
}

/// Returns the error of a model without heads that can be used.
fn refusal(config: &Config, reason: &str) -> ConfigError {
    config.unsupported("model_type", &format!("its heads for the prediction of further tokens {reason}"))
}

/// Makes random weights for the head of the model whose `config.json` is in `source`.
///
/// # Errors
/// If the model has no such head, or it is not supported.
pub fn load_dummy_mtp(source: &Source, overrides: &Overrides) -> Result<Model, LoadError> {
    let Description { config, names, spec, .. } = load::read(source, overrides)?;
    let (spec, _) = describe(&config, &names, &spec)?;
    // Most quantized checkpoints have heads that are not quantized.
    let weights = DummyWeights::new(spec.clone(), dtype(&config)?, None);
    model(&config, spec, None, Box::new(weights))
}

/// Returns the element type of a head, from the model's configuration.
fn dtype(config: &Config) -> Result<DType, ConfigError> {
    Ok(config.dtype()?.unwrap_or(DType::F32))
}

fn model(
    config: &Config,
    spec: DecoderSpec,
    quantized: Option<&'static str>,
    weights: Box<dyn WeightSource>,
) -> Result<Model, LoadError> {
    Ok(Model { spec, dtype: dtype(config)?, quantized, weights, warnings: ModelWarnings::default() })
}

/// Returns the specification of the head of a model, and the names of its tensors.
fn describe(
    config: &Config,
    names: &Names,
    whole: &DecoderSpec,
) -> Result<(DecoderSpec, Names), ConfigError> {
    let none = |reason: &str| Err(refusal(config, reason));
    let (key, place) = match names.mtp {
        None => return none("are not supported"),
        Some(MtpPlace::Module) => (MODULE_LAYERS, MtpPlace::Module),
        Some(MtpPlace::LaterLayer) => (LATER_LAYERS, MtpPlace::LaterLayer),
    };
    config.insist("mtp_use_dedicated_embeddings", false, "a head has the embedding of the model")?;
    match (config.optional::<usize>(key)?, place) {
        (Some(0), _) => return Err(config.invalid(key, "is 0: the model has no such head".to_owned())),
        (None, MtpPlace::LaterLayer) => return Err(config.missing(key)),
        (None, MtpPlace::Module) | (Some(_), _) => {}
    }
    let is_usual = |attention: &Attention| attention.heads().is_some();
    let Some(layer) = whole.layers.iter().rev().find(|layer| is_usual(&layer.attention)) else {
        return none("need a layer with attention");
    };
    let spec =
        DecoderSpec { layers: vec![layer.clone()], reads_states: true, key_choice: None, ..whole.clone() };
    let names = match place {
        MtpPlace::Module => Names { layers: "mtp.layers.", mtp_layer: Some(0), ..*names },
        MtpPlace::LaterLayer => Names { mtp_layer: Some(whole.layers.len()), ..*names },
    };
    Ok((spec, names))
}
