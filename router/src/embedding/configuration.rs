//! Numbers in configurations, and errors about their files.

use serde_json::Value;

/// The largest number of features and of tokens in a configuration.
const MAX_SIZE: u64 = 1 << 24;

/// Why the files of a folder do not describe vectors that can be computed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EmbeddingError(String);

impl EmbeddingError {
    /// Creates an error about a file of the folder.
    pub(crate) fn new(file: &str, reason: impl std::fmt::Display) -> Self {
        EmbeddingError(format!("{file}: {reason}"))
    }

    /// Creates an error whose text names the file.
    pub(super) fn plain(text: String) -> Self {
        EmbeddingError(text)
    }
}

/// Returns a number of features or tokens; `None` if the value is no number in range.
pub(super) fn size(value: &Value) -> Option<usize> {
    let size = value.as_u64().filter(|size| (1..=MAX_SIZE).contains(size))?;
    usize::try_from(size).ok()
}
