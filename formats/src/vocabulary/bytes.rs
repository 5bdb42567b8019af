//! Vocabularies of byte strings that are merged in the order of their ranks.

use std::collections::HashMap;

use super::VocabularyError;
use super::pieces::{check_count, check_length};

/// A vocabulary of byte strings. The pair of neighbors whose concatenation has the lowest rank is
/// merged first.
#[derive(Debug, Clone, PartialEq)]
pub struct ByteVocabulary {
    /// The byte strings, by rank.
    pub tokens: Vec<Vec<u8>>,
    /// The id of the token with rank 0.
    pub first_id: u32,
}

/// A token that is not made from text by merging.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddedVocabularyToken {
    /// The id.
    pub id: u32,
    /// The text.
    pub text: String,
    /// Whether the token is not part of the text, such as the end of a turn.
    pub special: bool,
}

impl ByteVocabulary {
    /// Checks that the tokens differ, and that each byte has one.
    ///
    /// # Errors
    /// [`VocabularyError`] names the first violation.
    pub(super) fn checked(self) -> Result<Self, VocabularyError> {
        check_count(self.tokens.len())?;
        let mut known: HashMap<&[u8], usize> = HashMap::with_capacity(self.tokens.len());
        for (rank, token) in self.tokens.iter().enumerate() {
            check_length(rank, token.len())?;
            if let Some(first) = known.insert(token, rank) {
                let token = String::from_utf8_lossy(token).into_owned();
                return Err(VocabularyError::Duplicate { token, first, second: rank });
            }
        }
        match (0..=255u8).find(|byte| !known.contains_key([*byte].as_slice())) {
            Some(missing) => Err(VocabularyError::MissingByte(missing)),
            None => Ok(self),
        }
    }
}
