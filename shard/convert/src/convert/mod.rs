//! Writes a model in another file format, or in another element type.
//!
//! The source is anything that can be served. Tensors are read row by row, so that the memory that
//! is needed does not depend on the size of the model. The result appears in its place when it is
//! complete, and a run that was killed is continued by the next one ([`crate::partial`]).

mod error;
mod flm;
mod gguf;
mod llama2c;
mod model;
mod new_file;
mod safetensors;
mod slimming;
mod tensors;
mod token_ids;
mod tokenizer;
mod vocabulary;

use std::path::Path;

use millrace_formats::{Checkpoint, Source};
use millrace_model::families;
use millrace_numbers::DType;

pub use error::ConvertError;
pub use millrace_formats::FlmKind;
use model::Model;
pub use model::{ConvertReport, GgufKind};
use safetensors::FolderOptions;
pub use vocabulary::{TokenIds, VocabularyCut};

use crate::partial::Job;
use crate::vectors::describes_vectors;

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
    /// A file of FastLLM.
    Flm {
        /// Type of the matrices of layers and of the head. Everything else has single precision.
        kind: FlmKind,
    },
    /// A file of llama2.c.
    Llama2c {
        /// Version of the file: 0 and 1 have single precision, 2 has 8 bits.
        version: u32,
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
    if !matches!(target, ConvertTarget::Gguf { .. }) {
        model.check_order()?;
    }
    let job = job(&model, &target);
    match target {
        ConvertTarget::Safetensors { dtype, max_file_bytes, vocabulary } => {
            let cut = vocabulary.map(|wanted| slimming::cut(&model, &wanted)).transpose()?;
            let options = FolderOptions { dtype, max_file_bytes, cut: cut.as_ref() };
            safetensors::write(&model, place, &job, &options, progress)
        }
        ConvertTarget::Gguf { kind } => {
            gguf::write(&model, place, &job, kind, progress).map(|report| without_head(&model, report))
        }
        ConvertTarget::Flm { kind } => {
            flm::write(&model, place, &job, kind, progress).map(|report| without_vectors(&model, report))
        }
        ConvertTarget::Llama2c { version } => llama2c::write(&model, place, &job, version, progress)
            .map(|report| without_vectors(&model, report)),
    }
}

/// Adds a note to the report if the model has a head that predicts further tokens: it is not
/// written.
fn without_head(model: &Model<'_>, mut report: ConvertReport) -> ConvertReport {
    if families::load_mtp(model.source, &families::Overrides::default()).is_ok() {
        report.notes.push("the head that predicts further tokens (mtp) is left out".to_owned());
    }
    report
}

/// Adds a note to the report of a format that cannot say how vectors are made, if the model says
/// it.
fn without_vectors(model: &Model<'_>, report: ConvertReport) -> ConvertReport {
    let mut report = without_head(model, report);
    if model.stored_pooling().is_some() || describes_vectors(model.source) {
        report.notes.push("the format has no place for the pooling and modules of vectors".to_owned());
    }
    report
}

/// Describes a conversion: the program, the source with the sizes and times of its files, and the
/// options.
fn job(model: &Model<'_>, target: &ConvertTarget) -> Job {
    let identity = model.checkpoint.identity();
    let has_identity = !identity.is_empty() || matches!(model.source, Source::Memory(_));
    // The rows that stay depend on the tokenizer too, which the identity does not have.
    let is_whole = !matches!(target, ConvertTarget::Safetensors { vocabulary: Some(_), .. });
    Job {
        description: format!(
            "millrace {}, convert {}\n{target:?}\n{identity}",
            env!("CARGO_PKG_VERSION"),
            model.source.place(),
        ),
        can_continue: has_identity && is_whole,
    }
}
