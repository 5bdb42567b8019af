//! The model and its adapters as clients see them.

use std::sync::Arc;

use crate::engine::AdapterId;

/// The model, as clients see it.
#[derive(Debug, Clone, Default)]
pub struct ModelInfo {
    /// The model's name in requests and answers.
    pub id: String,
    /// The revision of the model's files, if known.
    pub sha: Option<String>,
    /// The model's task on the Hugging Face Hub, if known.
    pub pipeline_tag: Option<String>,
    /// The adapters of the model, by number.
    pub adapters: Arc<[AdapterInfo]>,
}

/// An adapter of the model, as clients see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdapterInfo {
    /// The adapter's name in requests and answers.
    pub name: String,
    /// The repository or the folder that the adapter was read from, without the path of a folder.
    pub root: String,
    /// The name of the model that the adapter changes, if it is not the name of the served model.
    pub parent: Option<String>,
}

impl ModelInfo {
    /// Returns the adapter with this name, and its number.
    pub fn adapter(&self, name: &str) -> Option<(AdapterId, &AdapterInfo)> {
        let found = self.adapters.iter().enumerate().find(|(_, adapter)| adapter.name == name);
        found.map(|(number, adapter)| (AdapterId(number as u32), adapter))
    }
}

/// The tokenizer as clients see it, in the terms of `tokenizer_config.json`.
#[derive(Debug, Clone)]
pub(crate) struct TokenizerDescription {
    pub(crate) class: String,
    pub(crate) chat_template: Option<String>,
    pub(crate) bos_token: Option<String>,
    pub(crate) eos_token: Option<String>,
    pub(crate) pad_token: Option<String>,
    pub(crate) unk_token: Option<String>,
    pub(crate) add_bos_token: Option<bool>,
}
