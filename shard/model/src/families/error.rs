//! The errors of loading a model.

use crate::description::WeightError;

/// The reason why a model cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// `config.json` cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A weight cannot be loaded.
    #[error(transparent)]
    Weight(#[from] WeightError),
}

impl From<millrace_formats::Error> for LoadError {
    fn from(error: millrace_formats::Error) -> Self {
        LoadError::Weight(error.into())
    }
}

/// The reason why a `config.json` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is not valid JSON.
    #[error("{file} is not valid JSON: {source}")]
    Json {
        /// Path of the file.
        file: String,
        /// The error of the parser.
        source: serde_json::Error,
    },
    /// A key is missing.
    #[error("{file}: {key} is missing")]
    Missing {
        /// Path of the file.
        file: String,
        /// The key, after the keys of the objects around it.
        key: String,
    },
    /// A value has another type, or is outside its limits.
    #[error("{file}: {key} {reason}")]
    Invalid {
        /// Path of the file.
        file: String,
        /// The key.
        key: String,
        /// The fault. Its text continues the sentence after the key.
        reason: String,
    },
    /// A value is valid, but not supported.
    #[error("{file}: {key} = {value} is not supported: {reason}")]
    Unsupported {
        /// Path of the file.
        file: String,
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// The missing feature, or advice for the user.
        reason: String,
    },
    /// The model belongs to no known family.
    #[error(
        "{file}: a model of type {model_type} with architecture {architectures} is not supported; the nearest family \
         is {nearest} ({classes})"
    )]
    UnknownModel {
        /// Path of the file.
        file: String,
        /// The value of `model_type`.
        model_type: String,
        /// The values of `architectures`.
        architectures: String,
        /// The `model_type` of the family whose names are the most similar.
        nearest: &'static str,
        /// The architectures of that family.
        classes: String,
    },
}
