//! The model's tokens as llguidance takes them: the bytes that each adds to the text, and which of them are marks.

use std::sync::Arc;

use toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

use super::GrammarError;
use crate::text::Tokenizer;

/// The vocabulary below `size`. The tokens of `eos` end a text.
///
/// # Errors
/// [`GrammarError::Unsupported`] if the text of a sequence is not that of its tokens one after the other, or it cannot be
/// ended.
pub(super) fn vocabulary(tokenizer: &Tokenizer, eos: &[u32], size: u32) -> Result<TokEnv, GrammarError> {
    if !tokenizer.is_plain() {
        return Err(GrammarError::Unsupported(": the tokenizer writes between its tokens"));
    }
    let eos: Vec<u32> = eos.iter().copied().filter(|&id| id < size).collect();
    let Some(&first) = eos.first() else {
        return Err(GrammarError::Unsupported(": the model has no token that ends a text"));
    };
    let word = |id: u32| {
        if tokenizer.is_special(id) || eos.contains(&id) {
            // A mark is matched by name only; no text begins with this byte.
            let name = tokenizer.vocabulary_text(id).unwrap_or_default();
            return [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat();
        }
        match tokenizer.token_bytes(id) {
            // A text of another encoding would look like a mark.
            [TokTrie::SPECIAL_TOKEN_MARKER, ..] => Vec::new(),
            bytes => bytes.to_vec(),
        }
    };
    let words: Vec<Vec<u8>> = (0..size).map(word).collect();
    let trie = TokTrie::from(&TokRxInfo::new(size, first), &words);
    Ok(Arc::new(ApproximateTokEnv::new(trie.with_eos_tokens(&eos))))
}
