//! Writes a model in another file format, or in another element type.
//!
//! The source is anything that can be served. Tensors are read row by row, so that the memory that
//! is needed does not depend on the size of the model. The result appears in its place when it is
//! complete.

mod error;
mod gguf;
mod model;
mod safetensors;
mod slimming;
mod tensors;
mod token_ids;
mod tokenizer;
mod vocabulary;

use std::path::Path;

use millrace_formats::{Checkpoint, Source};
use millrace_kernels::DType;

pub use error::ConvertError;
use model::Model;
pub use model::{ConvertReport, GgufKind};
pub use vocabulary::{TokenIds, VocabularyCut};

use crate::families;

/// A format of new files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConvertTarget {
    /// A folder in Hugging Face layout with safetensors files.
    Safetensors {
        /// Element type of the weights. If absent, dense weights keep theirs.
        dtype: Option<DType>,
        /// The largest size of a file in bytes, unless a single tensor has more.
        max_file_bytes: usize,
        /// The tokens that stay. If absent, all.
        vocabulary: Option<VocabularyCut>,
    },
    /// A GGUF file.
    Gguf {
        /// Type of the matrices.
        kind: GgufKind,
    },
}

/// Converts the model in `source` to `target`, and writes the result to the new file or folder
/// `place`. `progress` is called with the bytes of tensors that are done, and all of them.
///
/// # Errors
/// If the model cannot be read or converted, or the result cannot be written. There is nothing at
/// `place` then.
pub fn convert(
    source: &Source,
    place: &Path,
    target: ConvertTarget,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<ConvertReport, ConvertError> {
    // This checks the configuration and the shapes of all tensors.
    families::load(source, &families::Overrides::default())?;
    let json = |source_error| ConvertError::Json { file: source.path("config.json"), source: source_error };
    let config = serde_json::from_slice(&source.config()?).map_err(json)?;
    let model = Model { source, checkpoint: Checkpoint::open(source)?, config };
    let report = match target {
        ConvertTarget::Safetensors { dtype, max_file_bytes, vocabulary } => {
            let cut = vocabulary.map(|wanted| slimming::cut(&model, &wanted)).transpose()?;
            safetensors::write(&model, place, dtype, max_file_bytes, cut.as_ref(), progress)?
        }
        ConvertTarget::Gguf { kind } => gguf::write(&model, place, kind, progress)?,
    };
    Ok(report)
}
