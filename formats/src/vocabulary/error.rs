//! The errors of reading a vocabulary.

use super::{MAX_TOKEN_BYTES, MAX_TOKENS};

/// The reason why a vocabulary cannot be used. The text continues the name of the file.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum VocabularyError {
    /// The file is not in the expected format.
    #[error("it is not a {format} file: {reason}. Download it again")]
    Format {
        /// The name of the expected format.
        format: &'static str,
        /// The first violation of the format.
        reason: String,
    },
    /// The file is a pointer of Git LFS.
    #[error("it is a Git LFS pointer, not the file itself; run `git lfs pull` in its folder")]
    LfsPointer,
    /// There is no token.
    #[error("it has no tokens; download it again")]
    Empty,
    /// There are too many tokens.
    #[error("it has {0} tokens, more than the {MAX_TOKENS} that are supported")]
    TooMany(usize),
    /// A token is empty.
    #[error("token {0} is empty; the file is damaged, download it again")]
    EmptyToken(usize),
    /// A token is too long.
    #[error("token {id} has {bytes} bytes, more than the {MAX_TOKEN_BYTES} that are supported")]
    LongToken {
        /// The id of the token.
        id: usize,
        /// The length of the token.
        bytes: usize,
    },
    /// Two tokens are equal.
    #[error("token {token:?} has two ids, {first} and {second}; the file is damaged, download it again")]
    Duplicate {
        /// The text of the token.
        token: String,
        /// The first id.
        first: usize,
        /// The second id.
        second: usize,
    },
    /// A score is not a finite number.
    #[error(
        "the score of token {id} is {score}, which is not a number; the file is damaged, download it again"
    )]
    Score {
        /// The id of the token.
        id: usize,
        /// The score.
        score: f32,
    },
    /// A token for a byte is missing.
    #[error(
        "it has no token for the byte {0:#04X}, so that not every text can be encoded; download it again"
    )]
    MissingByte(u8),
    /// A byte token does not name its byte.
    #[error("token {id} stands for a byte, but its text is {token:?} and not <0x00> to <0xFF>")]
    ByteName {
        /// The id of the token.
        id: usize,
        /// The text of the token.
        token: String,
    },
    /// The token for unknown text is missing.
    #[error("it has no token for unknown text and none for bytes, so that not every text can be encoded")]
    NoUnknown,
    /// An id lies outside of the vocabulary.
    #[error("its {role} token has the id {id}, but it has only {tokens} tokens; the file is damaged")]
    Id {
        /// The purpose of the token.
        role: &'static str,
        /// The id.
        id: u64,
        /// The number of tokens.
        tokens: usize,
    },
    /// The kind of the vocabulary is not supported.
    #[error("{0}. Use a tokenizer.json: transformers' `AutoTokenizer.save_pretrained` writes one")]
    Unsupported(String),
}

impl VocabularyError {
    /// Returns the error for a file that violates its format.
    pub(super) fn format(format: &'static str, reason: impl ToString) -> Self {
        VocabularyError::Format { format, reason: reason.to_string() }
    }
}
