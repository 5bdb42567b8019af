//! A model in another layout than that of Hugging Face, translated to it.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::header::Entry;
use crate::mapped_file::MappedFile;

/// A model in one file, or in several of one format.
#[derive(Debug)]
pub(crate) struct ModelFile {
    /// The configuration, with the keys of `config.json`.
    pub(crate) config: Map<String, Value>,
    /// The files.
    pub(crate) files: Vec<Arc<MappedFile>>,
    /// The tensors, each with the index of its file.
    pub(crate) tensors: Vec<(usize, Entry)>,
}
