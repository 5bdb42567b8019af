//! Why a model folder cannot be used.

use std::io;

use millrace_formats::vocabulary::VocabularyError;

/// Reasons why a model folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AssetError {
    /// The tokenizer is missing.
    #[error(
        "{0}: tokenizer.json is missing, and so are the other files of tokenizers that are supported, such as \
         tokenizer.model. Text cannot be turned into tokens without one: download it from the model's repository, or \
         convert the model's own tokenizer with transformers' `AutoTokenizer.save_pretrained`"
    )]
    NoTokenizer(String),
    /// A file cannot be read.
    #[error("{file}: {error}")]
    Io {
        /// The path of the file.
        file: String,
        /// The error of the system.
        error: io::Error,
    },
    /// The content of a file is invalid.
    #[error("{file} is not valid: {error}")]
    Invalid {
        /// The name of the file.
        file: String,
        /// The error of the parser.
        error: serde_json::Error,
    },
    /// The vocabulary in a file cannot be used.
    #[error("{file} cannot be used: {error}")]
    Vocabulary {
        /// The name of the file.
        file: &'static str,
        /// The reason.
        error: VocabularyError,
    },
    /// `chat_template.jinja` is not text.
    #[error("{0} is not UTF-8 text")]
    NotText(&'static str),
}
