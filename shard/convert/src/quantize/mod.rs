//! Writes a quantized checkpoint from a dense one.
//!
//! The matrices of the layers are quantized, rows by rows. Everything else is copied: embedding,
//! head, norms, biases, and the files of the tokenizer. The result is in a format that other
//! programs read too ([`Target`]). It appears in its place when it is complete.

mod config;
mod error;
mod plan;
mod report;
mod small_files;
mod write;

use std::path::Path;

use millrace_formats::Source;

pub use error::QuantizeError;
pub use millrace_numbers::formats::Target;
pub use report::{DenseMatrix, QuantizeReport, QuantizedMatrix};
pub(crate) use small_files::small_files;

use crate::partial::{Job, Partial, ResultKind};

/// The largest number of bytes in a file of weights, as in transformers.
pub const MAX_FILE_BYTES: usize = 5_000_000_000;

/// Quantizes the checkpoint in `source` to `target`, and writes the result to a new folder `place`.
/// `progress` is called with the bytes that are done, and all bytes. A file of weights has at most
/// `max_file_bytes`, unless a single matrix has more.
///
/// # Errors
/// If the checkpoint cannot be read or quantized, or the folder cannot be written. There is no
/// folder then.
pub fn quantize(
    source: &Source,
    place: &Path,
    target: Target,
    max_file_bytes: usize,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<QuantizeReport, QuantizeError> {
    let plan = plan::Plan::new(source, target)?;
    // The errors of the matrices are in the report, so that a run cannot continue behind them.
    let description = format!("millrace {}, quantize {target:?}", env!("CARGO_PKG_VERSION"));
    let folder = Partial::open(place, ResultKind::Folder, &Job { description, can_continue: false })?;
    let report = write::weights(&plan, &folder, max_file_bytes, progress)?;
    write::files(&plan, source, &folder)?;
    plan.checkpoint.verify()?;
    folder.complete()?;
    Ok(report)
}
