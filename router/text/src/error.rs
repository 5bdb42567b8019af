//! Errors of tokenizers and of chat templates.

/// Errors of the conversion between text and token ids.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// `tokenizer.json` cannot be read.
    #[error("tokenizer.json is not a tokenizer: {0}. Take the file from the model's repository again")]
    Tokenizer(String),
    /// A vocabulary in another file than `tokenizer.json` cannot become a tokenizer.
    #[error("the model's vocabulary cannot be used: {0}")]
    Vocabulary(String),
    /// The kind of the decoder in `tokenizer.json` is not supported.
    #[error(
        "the decoder in tokenizer.json is not supported: {0}. Supported are ByteLevel, Metaspace, WordPiece, and sequences of \
         Replace, ByteFallback, Fuse and Strip"
    )]
    Decoder(String),
    /// The text cannot be converted to tokens.
    #[error("tokenizer error {0}")]
    Encode(String),
}

/// Reasons why a conversation cannot be rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The model has no template.
    #[error("template not found")]
    Missing,
    /// The template does not parse.
    #[error("the chat template is not valid: {0}")]
    Syntax(String),
    /// The template refused the conversation or failed.
    #[error("{0}")]
    Render(String),
}
