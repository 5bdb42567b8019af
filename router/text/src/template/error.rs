//! Errors of chat templates.

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
