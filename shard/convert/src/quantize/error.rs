//! The errors of quantizing a checkpoint.

use std::io;

use millrace_formats::WriteError;
use millrace_model::families::LoadError;

use crate::partial::PlaceError;

/// The reason why a checkpoint cannot be quantized.
#[derive(Debug, thiserror::Error)]
pub enum QuantizeError {
    /// The dense checkpoint cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The dense checkpoint cannot be read.
    #[error(transparent)]
    Read(#[from] millrace_formats::Error),
    /// The new checkpoint cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The checkpoint is quantized.
    #[error(
        "{place} is quantized already ({found}). Quantizing it again would add a second error to the first; give \
         the checkpoint that it was made from"
    )]
    AlreadyQuantized {
        /// Path of the checkpoint.
        place: String,
        /// Its format.
        found: &'static str,
    },
    /// The checkpoint is a file in another layout, in which a converter may have reordered rows.
    #[error("{place} is a model in one file; give the folder in Hugging Face layout that it was made from")]
    ModelFile {
        /// Path of the file.
        place: String,
    },
    /// No matrix has a shape that the format can hold.
    #[error("no matrix of {place} fits {format}: {reason}")]
    NothingFits {
        /// Path of the checkpoint.
        place: String,
        /// Name of the format.
        format: &'static str,
        /// The reason for the first matrix.
        reason: String,
    },
    /// A weight cannot be quantized.
    #[error("tensor {tensor} in {file} cannot be quantized: {source}")]
    Weights {
        /// Name of the tensor.
        tensor: String,
        /// Path of the file.
        file: String,
        /// The fault.
        source: millrace_numbers::Error,
    },
    /// The new checkpoint cannot be put in its place.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// A folder of the source cannot be read.
    #[error("{path}: {source}")]
    Folder {
        /// Its path.
        path: String,
        /// The error of the operating system.
        source: io::Error,
    },
}
