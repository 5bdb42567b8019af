//! Loading a model: its configuration, its family and its weights.

use std::collections::HashSet;

use millrace_formats::{Checkpoint, Source};
use millrace_kernels::DType;

use super::chatglm_6b;
use super::config::Config;
use super::dummy::DummyWeights;
use super::error::{ConfigError, LoadError};
use super::family::Family;
use super::overrides::Overrides;
use super::quantization;
use super::registry::FAMILIES;
use super::stored::StoredWeights;
use super::text_part;
use super::tied_head;
use crate::model::{CheckpointFormat, DecoderSpec, Model, WeightKind, WeightSlot, WeightSource};

/// Reads the configuration of a model and maps its weights.
///
/// This checks that every weight exists with the right shape. The numbers themselves are read when
/// they are needed.
///
/// # Errors
/// If the model is not supported, or its files are incomplete, damaged or contradict each other.
pub fn load(source: &Source, overrides: &Overrides) -> Result<Model, LoadError> {
    let (config, family, mut spec) = read(source, overrides)?;
    let checkpoint = Checkpoint::open(source)?;
    tied_head::resolve(&config, family, &checkpoint, &mut spec)?;
    let intended = config.dtype()?;
    let scheme = quantization::read(&config, source)?;
    let quantized = scheme.as_ref().map(quantization::Scheme::format);
    let weights = StoredWeights::new(checkpoint, spec.clone(), &family.names, scheme)?;
    let quantized = quantized.or(weights.has_blocks().then_some(CheckpointFormat::Blocks));
    let embedding = weights.parts(WeightSlot::Embedding)?;
    // The type of an embedding that is quantized is that of the activations.
    let stored = embedding.first().and_then(|part| part.tensor.encoding.dense());
    let stored = stored.or(intended).unwrap_or(DType::F32);
    // A configuration that asks for a wider type than the stored one is ignored: wider weights cost
    // memory and add nothing.
    let dtype = intended.filter(|dtype| dtype.size() <= stored.size()).unwrap_or(stored);
    Ok(Model { spec, dtype, quantized, weights: Box::new(weights) })
}

/// Makes random weights for the `config.json` of `source`, which needs no other file.
///
/// # Errors
/// If the model is not supported.
pub fn load_dummy(source: &Source, overrides: &Overrides) -> Result<Model, LoadError> {
    let (config, _, spec) = read(source, overrides)?;
    if quantization::read(&config, source)?.is_some() {
        let reason = "there are no dummy weights that are quantized; remove the key to measure dense weights";
        return Err(config.unsupported("quantization_config", reason).into());
    }
    let dtype = config.dtype()?.unwrap_or(DType::F32);
    let weights = Box::new(DummyWeights::new(spec.clone(), dtype));
    Ok(Model { weights, spec, dtype, quantized: None })
}

/// Reads the specification of the decoder from the `config.json` of `source`.
///
/// # Errors
/// If the model is not supported.
pub fn spec(source: &Source) -> Result<DecoderSpec, LoadError> {
    Ok(read(source, &Overrides::default())?.2)
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
    let (_, family, spec) = read(source, &Overrides::default())?;
    let may_quantize =
        |slot: &WeightSlot| matches!(slot.info().kind, WeightKind::Matrix { may_quantize: true });
    let tensors = |slot| {
        let pieces = family.names.pieces(&spec, slot).into_iter();
        let mut names: Vec<String> = pieces.map(|piece| piece.tensor).collect();
        // Pieces of one tensor need not follow each other.
        names.sort();
        names.dedup();
        names
    };
    // A quantized module has one matrix, so that a tensor with those of all experts stays as it is.
    let is_module = |slot: &WeightSlot| family.names.pieces(&spec, *slot).iter().all(|p| p.shape.len() == 2);
    let mut layers: Vec<Vec<String>> = Vec::new();
    let mut listed = HashSet::new();
    for names in spec.slots().into_iter().filter(may_quantize).filter(is_module).map(tensors) {
        // The gates of queries may be stored in the tensor of the queries.
        if !names.iter().all(|name| listed.contains(name)) {
            listed.extend(names.iter().cloned());
            layers.push(names);
        }
    }
    let transposed = family.names.transposed;
    Ok(MatrixNames { layers, embedding: tensors(WeightSlot::Embedding), transposed })
}

/// Returns the names of the tensors with a row for each token, among those that exist: the
/// embedding, and the head and its bias if they are stored.
///
/// # Errors
/// If the model is not supported.
pub fn vocabulary_tensors(source: &Source, exists: impl Fn(&str) -> bool) -> Result<Vec<String>, LoadError> {
    let (_, family, spec) = read(source, &Overrides::default())?;
    let has_tokens =
        |slot: &WeightSlot| matches!(slot, WeightSlot::Embedding | WeightSlot::Head | WeightSlot::HeadBias);
    let slots = spec.slots().into_iter().filter(has_tokens);
    let pieces = slots.flat_map(|slot| family.names.pieces(&spec, slot)).map(|piece| piece.tensor);
    // A head that is stored although it is tied is cut with the others.
    let names = pieces.chain([family.names.head()]).map(|name| family.names.resolve(&name, &exists));
    let mut names: Vec<String> = names.filter(|name| exists(name)).collect();
    names.sort();
    names.dedup();
    Ok(names)
}

fn read(source: &Source, overrides: &Overrides) -> Result<(Config, &'static Family, DecoderSpec), LoadError> {
    let config = Config::parse(source.path("config.json"), &source.config()?)?;
    let mut config = text_part::of(config)?;
    overrides.write(&mut config);
    chatglm_6b::distinguish(&mut config)?;
    let (family, has_head) = find(&config)?;
    let mut spec = (family.spec)(&config)?;
    spec.head.is_absent |= !has_head;
    Ok((config, family, spec))
}

/// Finds the family of the model in `source`.
#[cfg(test)]
pub(super) fn find_family(source: &Source) -> Result<&'static Family, LoadError> {
    Ok(read(source, &Overrides::default())?.1)
}

/// Finds the family of a configuration, and whether its architecture has a head. Either of
/// `model_type` and `architectures` may be missing.
fn find(config: &Config) -> Result<(&'static Family, bool), ConfigError> {
    let model_type: Option<String> = config.optional("model_type")?;
    let architectures: Option<Vec<String>> =
        config.optional("architectures")?.filter(|names: &Vec<_>| !names.is_empty());
    let fits = |family: &Family, has_head: bool| {
        let is_of_family = |name: &String| {
            family.architectures.iter().any(|of_family| {
                if has_head {
                    name == of_family
                } else {
                    Some(name.as_str()) == without_head(of_family).as_deref()
                }
            })
        };
        let by_type = model_type.as_ref().map(|name| name == family.model_type);
        let by_architecture = architectures.as_ref().map(|names| names.iter().any(is_of_family));
        match (by_type, by_architecture) {
            (None, None) => false,
            (by_type, by_architecture) => by_type.unwrap_or(true) && by_architecture.unwrap_or(true),
        }
    };
    let found = |has_head| {
        let family = FAMILIES.iter().find(|family| fits(family, has_head));
        family.map(|family| (family, has_head))
    };
    found(true).or_else(|| found(false)).ok_or_else(|| {
        let supported: Vec<String> =
            FAMILIES.iter().map(|f| format!("{} ({})", f.model_type, f.architectures.join(", "))).collect();
        ConfigError::UnknownModel {
            file: config.file().to_owned(),
            model_type: model_type.unwrap_or_else(|| "(not given)".to_owned()),
            architectures: architectures.map_or("(not given)".to_owned(), |names| names.join(", ")),
            supported: supported.join("; "),
        }
    })
}

/// Returns the name of an architecture's class in transformers that computes hidden states only.
/// Checkpoints for vectors of texts name it.
fn without_head(architecture: &str) -> Option<String> {
    Some(format!("{}Model", architecture.strip_suffix("ForCausalLM")?))
}
