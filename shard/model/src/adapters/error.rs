//! The errors of reading an adapter, in words for the person who has its files.

use std::path::PathBuf;

use crate::families::LoadError;

/// The number of characters of a value that an error shows.
const SHOWN: usize = 60;

/// The reason why an adapter cannot be used. Every text names the file, and the key or the tensor
/// where there is one.
#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    /// The path is not a folder.
    #[error("{} is not a folder; give the folder that holds adapter_config.json and adapter_model.safetensors", folder.display())]
    NoFolder {
        /// The path that was given.
        folder: PathBuf,
    },
    /// A file of the folder is missing.
    #[error("{} has no {name}; {advice}", folder.display())]
    MissingFile {
        /// Path of the folder.
        folder: PathBuf,
        /// Name of the file.
        name: &'static str,
        /// Advice for the user.
        advice: String,
    },
    /// The configuration could not be read.
    #[error("cannot read {file}: {source}")]
    Read {
        /// Path of the file.
        file: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The configuration is not valid JSON.
    #[error("{file} is not valid JSON: {source}")]
    Json {
        /// Path of the file.
        file: String,
        /// The error of the parser.
        source: serde_json::Error,
    },
    /// A key of the configuration is missing, has another type, or is outside its limits.
    #[error("{file}: {key} {reason}")]
    Invalid {
        /// Path of the file.
        file: String,
        /// The key.
        key: String,
        /// The fault. Its text continues the sentence after the key.
        reason: String,
    },
    /// A value of the configuration is valid, but such adapters are not supported.
    #[error("{file}: {key} = {value} is not supported: {reason}")]
    Unsupported {
        /// Path of the file.
        file: String,
        /// The key.
        key: String,
        /// The value, possibly shortened.
        value: String,
        /// The missing feature.
        reason: &'static str,
    },
    /// A stored tensor cannot be used.
    #[error("tensor {tensor} in {file} {reason}")]
    Tensor {
        /// Path of the file.
        file: String,
        /// Name of the tensor.
        tensor: String,
        /// The fault. Its text continues the sentence after the file.
        reason: String,
    },
    /// The file with the tensors has none.
    #[error("{file} has no tensors; the adapter would change nothing")]
    Empty {
        /// Path of the file.
        file: String,
    },
    /// The model that the adapter belongs to cannot be described.
    #[error(transparent)]
    Model(#[from] LoadError),
    /// The model's converter has reordered features in a way that the adapter cannot follow.
    #[error("adapters of {place} are not supported: {reason}; take the model in Hugging Face layout instead")]
    Converted {
        /// The folder or the file of the model.
        place: String,
        /// The difference.
        reason: &'static str,
    },
    /// The file with the tensors is damaged, or could not be read.
    #[error(transparent)]
    Checkpoint(#[from] millrace_formats::Error),
}

/// Returns the beginning of a text.
pub(super) fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
