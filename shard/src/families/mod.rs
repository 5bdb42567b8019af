//! The models that can be computed. A family turns a `config.json` into a [`DecoderSpec`] and names the stored tensors; all it
//! shares with others is in `config`, `decoder`, `rope`, `names` and `stored`.
//!
//! To add one: a file with its [`Family`], and its name in [`FAMILIES`].

mod baichuan;
mod chatglm;
mod config;
mod decoder;
mod dummy;
mod glm;
mod llama;
mod mistral;
mod names;
mod overrides;
mod qwen2;
mod qwen3;
mod rope;
mod stored;
#[cfg(test)]
mod tests;

use millrace_kernels::DType;

use crate::Error;
use crate::checkpoint::{Checkpoint, Source};
use crate::model::{DecoderSpec, Model, Slot, WeightSource};
use config::Config;
use dummy::DummyWeights;
use names::Names;
use stored::StoredWeights;

pub use config::ConfigError;
pub use overrides::{Overrides, RopeKind};

/// All families.
const FAMILIES: &[Family] = &[
    llama::FAMILY,
    mistral::FAMILY,
    qwen2::FAMILY,
    qwen3::FAMILY,
    baichuan::FAMILY,
    chatglm::FAMILY,
    glm::FAMILY,
];

/// Models that share a layout of weights and the meaning of configuration keys.
struct Family {
    /// Value of `model_type`.
    model_type: &'static str,
    /// Values of `architectures` that compute logits of the next token.
    architectures: &'static [&'static str],
    /// Reads the switches.
    spec: fn(&Config) -> Result<DecoderSpec, ConfigError>,
    /// The places of weights.
    names: Names,
}

/// Reads the configuration and maps the weights of a checkpoint, every one of which is checked to be there with the right
/// shape. The numbers themselves are read when they are asked for.
///
/// # Errors
/// If the model is not supported, or its files are incomplete, damaged or contradict each other.
pub fn load(source: &Source, overrides: &Overrides) -> Result<Model, Error> {
    let (config, family, mut spec) = read(source, overrides)?;
    let checkpoint = Checkpoint::open(source)?;
    // Versions of transformers leave the key out that says so, with defaults that differ.
    spec.tied_head |= !checkpoint.contains(&family.names.head_weight());
    let intended = config.dtype()?;
    let weights = StoredWeights::new(checkpoint, spec.clone(), &family.names)?;
    let stored = weights.parts(Slot::Embedding)?.first().map_or(DType::F32, |part| part.tensor.dtype);
    // Halves are not widened on the word of a configuration: that costs memory and adds nothing.
    let dtype = intended.filter(|dtype| dtype.size() <= stored.size()).unwrap_or(stored);
    Ok(Model { spec, dtype, weights: Box::new(weights) })
}

/// Makes random weights for a `config.json`, which is all that `source` needs to have.
///
/// # Errors
/// If the model is not supported.
pub fn load_dummy(source: &Source, overrides: &Overrides) -> Result<Model, Error> {
    let (config, _, spec) = read(source, overrides)?;
    let dtype = config.dtype()?.unwrap_or(DType::F32);
    Ok(Model { weights: Box::new(DummyWeights::new(spec.clone(), dtype)), spec, dtype })
}

/// What a checkpoint's `config.json` says of the decoder.
///
/// # Errors
/// If the model is not supported.
pub fn spec(source: &Source) -> Result<DecoderSpec, Error> {
    Ok(read(source, &Overrides::default())?.2)
}

fn read(source: &Source, overrides: &Overrides) -> Result<(Config, &'static Family, DecoderSpec), Error> {
    let mut config = Config::parse(source.path("config.json"), &source.config()?)?;
    overrides.write(&mut config);
    let family = find(&config)?;
    let spec = (family.spec)(&config)?;
    Ok((config, family, spec))
}

/// The family of a configuration. A missing `model_type` or `architectures` is made up for by the other.
fn find(config: &Config) -> Result<&'static Family, ConfigError> {
    let model_type: Option<String> = config.optional("model_type")?;
    let architectures: Option<Vec<String>> =
        config.optional("architectures")?.filter(|names: &Vec<_>| !names.is_empty());
    let fits = |family: &&Family| {
        let by_type = model_type.as_ref().map(|name| name == family.model_type);
        let by_architecture = architectures
            .as_ref()
            .map(|names| names.iter().any(|name| family.architectures.contains(&name.as_str())));
        match (by_type, by_architecture) {
            (None, None) => false,
            (by_type, by_architecture) => by_type.unwrap_or(true) && by_architecture.unwrap_or(true),
        }
    };
    FAMILIES.iter().find(fits).ok_or_else(|| {
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
