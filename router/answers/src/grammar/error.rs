//! Errors of grammars.

/// Reasons why a grammar is refused. Clients see these texts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The server does not support grammars, or not for this model.
    #[error("grammar is not supported{0}")]
    Unsupported(&'static str),
    /// The text is not a grammar.
    #[error("grammar is not valid: {0}")]
    Invalid(String),
    /// The grammar exceeds a limit of the server.
    #[error("grammar is too complex: {0}")]
    TooComplex(String),
    /// The grammar was not compiled in time, because others were being compiled.
    #[error("too many grammars are being compiled")]
    Busy,
}

impl GrammarError {
    /// Returns [`GrammarError::TooComplex`] with this reason.
    pub(super) fn too_complex(reason: impl Into<String>) -> Self {
        GrammarError::TooComplex(reason.into())
    }
}
