//! The model as clients see it.

/// The model, as clients see it.
#[derive(Debug, Clone)]
pub struct ModelInfo {
    /// The model's name in requests and answers.
    pub id: String,
    /// The revision of the model's files, if known.
    pub sha: Option<String>,
    /// The model's task on the Hugging Face Hub, if known.
    pub pipeline_tag: Option<String>,
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
