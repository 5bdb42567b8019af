//! The errors of converting a model.

use millrace_formats::WriteError;
use millrace_model::families::LoadError;

use crate::partial::PlaceError;
use crate::quantize::QuantizeError;

/// The reason why a model cannot be converted.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// The model cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A file of the model cannot be read.
    #[error(transparent)]
    Read(#[from] millrace_formats::Error),
    /// A new file cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The files beside the weights cannot be listed.
    #[error(transparent)]
    SmallFiles(#[from] QuantizeError),
    /// The result cannot be put in its place.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The new file cannot be written.
    #[error("{path}: {source}")]
    File {
        /// Path of the file.
        path: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// `config.json` or a file of the tokenizer is not valid JSON.
    #[error("{file} is not valid JSON: {source}")]
    Json {
        /// Path of the file.
        file: String,
        /// The error of the parser.
        source: serde_json::Error,
    },
    /// A quantized checkpoint can only be copied.
    #[error(
        "{place} is quantized ({method}): its tensors can be copied to safetensors as they are, but not be converted \
         to another type. Give the checkpoint that it was made from"
    )]
    Quantized {
        /// Path of the model.
        place: String,
        /// The method that the configuration names.
        method: String,
    },
    /// A model cannot be written in this format.
    #[error("{place} cannot be written in this format: {reason}")]
    Unsupported {
        /// Path of the model.
        place: String,
        /// The first reason.
        reason: String,
    },
    /// The vocabulary of a model cannot be slimmed.
    #[error("the vocabulary of {place} cannot be slimmed: {reason}")]
    Vocabulary {
        /// Path of the model.
        place: String,
        /// The first reason.
        reason: String,
    },
    /// A weight cannot be converted.
    #[error("tensor {tensor} cannot be converted: {source}")]
    Weights {
        /// Name of the tensor.
        tensor: String,
        /// The fault.
        source: millrace_numbers::Error,
    },
}
