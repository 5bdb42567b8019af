//! The model and its adapters as clients see them.

use std::sync::Arc;

use super::context::RequestContext;
use crate::engine::{Adapters, HeldAdapter};

/// The model, as clients see it.
#[derive(Debug, Clone, Default)]
pub struct ModelInfo {
    /// The model's name in requests and answers.
    pub id: String,
    /// The revision of the model's files, if known.
    pub sha: Option<String>,
    /// The model's task on the Hugging Face Hub, if known.
    pub pipeline_tag: Option<String>,
    /// The adapters of the model.
    pub adapters: Adapters,
}

impl ModelInfo {
    /// Returns the adapter with this name, which the request of the current task holds from then
    /// on.
    pub(crate) fn adapter(&self, name: &str) -> Option<Arc<HeldAdapter>> {
        let found = self.adapters.get(name)?;
        if let Some(context) = RequestContext::current() {
            context.hold(found.clone());
        }
        Some(found)
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
