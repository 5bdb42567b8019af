//! Loading a model: its configuration, its family and its weights.

use std::collections::HashSet;

use millrace_formats::{Checkpoint, Source};
use millrace_numbers::DType;
use millrace_numbers::formats::{Scheme, ggml};

use super::architecture::{self, FoundFamily};
use super::chatglm_6b;
use super::config::Config;
use super::dummy::DummyWeights;
use super::dummy_quantized::{DenseModules, DummyQuantized};
use super::error::LoadError;
use super::family::Family;
use super::names::Names;
use super::old_names;
use super::overrides::Overrides;
use super::quantization;
use super::stored::StoredWeights;
use super::text_part;
use super::tied_head;
use crate::description::{DecoderSpec, Model, ModelWarnings, WeightKind, WeightSlot, WeightSource};

/// Reads the configuration of a model and maps its weights.
///
/// This checks that every weight exists with the right shape. The numbers themselves are read when
/// they are needed.
///
/// # Errors
/// If the model is not supported, or its files are incomplete, damaged or contradict each other.
pub fn load(source: &Source, overrides: &Overrides) -> Result<Model, LoadError> {
    let (Description { config, spec, warnings, .. }, weights) = open(source, overrides)?;
    let intended = config.dtype()?;
    let quantized = quantization::read(&config, source)?.as_ref().map(Scheme::name);
    let quantized = quantized.or(weights.has_blocks().then_some(ggml::NAME));
    let embedding = weights.parts(WeightSlot::Embedding)?;
    // The type of an embedding that is quantized is that of the activations.
    let stored = embedding.first().and_then(|part| part.tensor.encoding.dense());
    let (dtype, dtype_warning) = memory_dtype(source, intended, stored);
    let warnings = ModelWarnings { configuration: warnings, dtype: dtype_warning };
    Ok(Model { spec, dtype, quantized, weights: Box::new(weights), warnings })
}

/// Reads the description of the model in `source`, and maps its weights.
pub(super) fn open(
    source: &Source,
    overrides: &Overrides,
) -> Result<(Description, StoredWeights), LoadError> {
    let mut found = read(source, overrides)?;
    let checkpoint = Checkpoint::open(source)?;
    tied_head::resolve(&found.config, found.family, &checkpoint, &mut found.spec)?;
    let scheme = quantization::read(&found.config, source)?;
    let weights = StoredWeights::new(checkpoint, found.spec.clone(), found.names, scheme)?;
    Ok((found, weights))
}

/// Makes random weights for the `config.json` of `source`, which needs no other file.
///
/// # Errors
/// If the model is not supported.
pub fn load_dummy(source: &Source, overrides: &Overrides) -> Result<Model, LoadError> {
    let Description { config, names, spec, warnings, .. } = read(source, overrides)?;
    let scheme = quantization::read(&config, source)?;
    let quantized = scheme.as_ref().map(Scheme::name);
    let dense = DenseModules::read(&config)?;
    let matrices = scheme.map(|scheme| DummyQuantized::new(scheme, names, dense));
    let dtype = config.dtype()?.unwrap_or(DType::F32);
    let weights = Box::new(DummyWeights::new(spec.clone(), dtype, matrices));
    let warnings = ModelWarnings { configuration: warnings, dtype: None };
    Ok(Model { weights, spec, dtype, quantized, warnings })
}

/// Reads the specification of the decoder from the `config.json` of `source`.
///
/// # Errors
/// If the model is not supported.
pub fn spec(source: &Source) -> Result<DecoderSpec, LoadError> {
    Ok(read(source, &Overrides::default())?.spec)
}

/// Reads the specification of the decoder from `config`, the content of a `config.json` that `file`
/// names in messages.
///
/// # Errors
/// If the model is not supported.
pub fn spec_of_config(file: String, config: &[u8]) -> Result<DecoderSpec, LoadError> {
    Ok(describe(Config::parse(file, config)?, &Overrides::default())?.spec)
}

/// The names of a checkpoint's tensors, as a tool that quantizes them needs them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MatrixNames {
    /// The tensors of each weight of a layer that may be quantized. Most weights are fused of
    /// several tensors.
    pub layers: Vec<Vec<String>>,
    /// The tensors of the embedding.
    pub embedding: Vec<String>,
    /// Whether the rows of stored matrices of layers are input features.
    pub transposed: bool,
}

/// Returns the names of the matrices of a checkpoint that may be quantized.
///
/// # Errors
/// If the model is not supported.
pub fn matrix_names(source: &Source) -> Result<MatrixNames, LoadError> {
    let Description { names: stored, spec, .. } = read(source, &Overrides::default())?;
    let may_quantize =
        |slot: &WeightSlot| matches!(slot.info().kind, WeightKind::Matrix { may_quantize: true });
    let tensors = |slot| {
        let pieces = stored.pieces(&spec, slot).into_iter();
        let mut names: Vec<String> = pieces.map(|piece| piece.tensor).collect();
        // Pieces of one tensor need not follow each other.
        names.sort();
        names.dedup();
        names
    };
    // A quantized module has one matrix, so that a tensor with those of all experts stays as it is.
    let is_module = |slot: &WeightSlot| stored.pieces(&spec, *slot).iter().all(|p| p.shape.len() == 2);
    let mut layers: Vec<Vec<String>> = Vec::new();
    let mut listed = HashSet::new();
    for names in spec.slots().into_iter().filter(may_quantize).filter(is_module).map(tensors) {
        // The gates of queries may be stored in the tensor of the queries.
        if !names.iter().all(|name| listed.contains(name)) {
            listed.extend(names.iter().cloned());
            layers.push(names);
        }
    }
    let transposed = stored.transposed;
    Ok(MatrixNames { layers, embedding: tensors(WeightSlot::Embedding), transposed })
}

/// Returns the names of the tensors with a row for each token, among those that exist: the
/// embeddings, and the head and its bias if they are stored.
///
/// # Errors
/// If the model is not supported.
pub fn vocabulary_tensors(source: &Source, exists: impl Fn(&str) -> bool) -> Result<Vec<String>, LoadError> {
    let Description { names: stored, spec, .. } = read(source, &Overrides::default())?;
    let has_tokens = |slot: &WeightSlot| {
        matches!(
            slot,
            WeightSlot::Embedding | WeightSlot::PerLayerEmbedding | WeightSlot::Head | WeightSlot::HeadBias
        )
    };
    let slots = spec.slots().into_iter().filter(has_tokens);
    let pieces = slots.flat_map(|slot| stored.pieces(&spec, slot)).map(|piece| piece.tensor);
    // A head that is stored although it is tied is cut with the others.
    let names = pieces.chain([stored.head()]).map(|name| stored.resolve(&name, &exists));
    let mut names: Vec<String> = names.filter(|name| exists(name)).collect();
    names.sort();
    names.dedup();
    Ok(names)
}

/// The description of a model before its weights are read.
pub(super) struct Description {
    pub(super) config: Config,
    pub(super) family: &'static Family,
    /// The names of the family, with what a converter has changed.
    pub(super) names: Names,
    pub(super) spec: DecoderSpec,
    /// A warning for each contradiction in the configuration.
    warnings: Vec<String>,
}

/// Reads the description of the model in `source` from its configuration.
pub(super) fn read(source: &Source, overrides: &Overrides) -> Result<Description, LoadError> {
    describe(Config::parse(source.path("config.json"), &source.config()?)?, overrides)
}

/// Reads the description of the model with this configuration.
fn describe(config: Config, overrides: &Overrides) -> Result<Description, LoadError> {
    let mut config = text_part::of(config)?;
    overrides.write(&mut config);
    chatglm_6b::distinguish(&mut config)?;
    old_names::translate(&mut config)?;
    let FoundFamily { family, has_head, mut warnings } = architecture::find(&config)?;
    let mut spec = (family.spec)(&config)?;
    warnings.extend(spec.key_choice.map(|choice| choice.warning(&spec.model_type)));
    spec.head.is_absent |= !has_head;
    let names = family.names.with_norms(spec.norm.place).converted(&config)?;
    Ok(Description { config, family, names, spec, warnings })
}

/// Finds the family of the model in `source`.
#[cfg(test)]
pub(super) fn find_family(source: &Source) -> Result<&'static Family, LoadError> {
    Ok(read(source, &Overrides::default())?.family)
}

/// Returns the element type that the weights keep in memory, and a warning if the configuration
/// says another than the tensors have.
///
/// The tensors' own type is used, unless the configuration asks for a narrower one, as many large
/// checkpoints in float32 do. Wider weights cost memory and add nothing, and float16 and bfloat16
/// cannot hold each other's numbers.
fn memory_dtype(source: &Source, intended: Option<DType>, stored: Option<DType>) -> (DType, Option<String>) {
    let (intended, stored) = match (intended, stored) {
        (Some(intended), Some(stored)) if intended != stored => (intended, stored),
        (intended, stored) => return (stored.or(intended).unwrap_or(DType::F32), None),
    };
    // The configuration of a file that holds a whole model is translated from the types of all its
    // tensors.
    if matches!(source, Source::File(_)) {
        return (if intended.size() <= stored.size() { intended } else { stored }, None);
    }
    let used = if intended.size() < stored.size() { intended } else { stored };
    let warning = format!(
        "config.json: the element type is {}, but the tensors are {}: {} is used unless --dtype says otherwise",
        intended.name(),
        stored.name(),
        used.name()
    );
    (used, Some(warning))
}
