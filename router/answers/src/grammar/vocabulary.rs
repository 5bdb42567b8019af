//! The model's tokens in llguidance's form: the bytes that each token adds to the text, and which
//! tokens are special. Worker processes receive them in serialized form.

use std::sync::Arc;

use millrace_text::Tokenizer;
use toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

use super::error::GrammarError;

/// The bounds of llguidance's trie of tokens: the bytes of a token, the number of tokens, and the
/// number of different beginnings of tokens.
const MAX_WORD_BYTES: usize = 1024;
const MAX_WORDS: u32 = (1 << 24) - 1;
const MAX_PREFIXES: usize = 1 << 22;

/// Returns the number of different texts that words begin with, the words included. If all words
/// together have few bytes, returns that number, which is larger.
fn prefixes(words: &[Vec<u8>]) -> usize {
    let bytes = words.iter().map(Vec::len).sum();
    if bytes < MAX_PREFIXES {
        return bytes;
    }
    let mut sorted: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    sorted.sort_unstable();
    let shared = |pair: &[&[u8]]| pair[0].iter().zip(pair[1]).take_while(|(a, b)| a == b).count();
    bytes - sorted.windows(2).map(shared).sum::<usize>()
}

/// The tokens of which texts consist.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Vocabulary {
    /// The bytes of each token by its id.
    words: Vec<Vec<u8>>,
    /// The tokens that end a text. There is at least one, and each is less than the number of
    /// words.
    eos: Vec<u32>,
}

impl Vocabulary {
    /// Creates the vocabulary of the tokens with ids below `size`. The tokens of `eos` end a text.
    ///
    /// # Errors
    /// [`GrammarError::Unsupported`] if the text of a sequence is not the concatenation of its
    /// tokens, or no token ends a text.
    pub(super) fn new(tokenizer: &Tokenizer, eos: &[u32], size: u32) -> Result<Self, GrammarError> {
        if !tokenizer.is_plain() {
            return Err(GrammarError::Unsupported(": the tokenizer writes between its tokens"));
        }
        let eos: Vec<u32> = eos.iter().copied().filter(|&id| id < size).collect();
        if eos.is_empty() {
            return Err(GrammarError::Unsupported(": the model has no token that ends a text"));
        }
        let bytes = |id: u32| {
            if tokenizer.is_special(id) || eos.contains(&id) {
                // A special token is matched by its name only. No text begins with this byte.
                let name = tokenizer.vocabulary_text(id).unwrap_or_default();
                return [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat();
            }
            match tokenizer.token_bytes(id) {
                // Bytes that are not UTF-8 could look like a special token.
                [TokTrie::SPECIAL_TOKEN_MARKER, ..] => Vec::new(),
                bytes => bytes.to_vec(),
            }
        };
        // A grammar never asks for a token that is too long for the library, which would panic.
        let word = |id: u32| Some(bytes(id)).filter(|word| word.len() <= MAX_WORD_BYTES).unwrap_or_default();
        let words: Vec<Vec<u8>> = (0..size).map(word).collect();
        if size >= MAX_WORDS || prefixes(&words) >= MAX_PREFIXES {
            return Err(GrammarError::Unsupported(": the tokenizer has too many tokens"));
        }
        Ok(Vocabulary { words, eos })
    }

    /// Returns the tokens in llguidance's form.
    pub(super) fn environment(&self) -> TokEnv {
        // The number of words came from a u32.
        let info = TokRxInfo::new(self.words.len() as u32, self.eos[0]);
        let trie = TokTrie::from(&info, &self.words);
        Arc::new(ApproximateTokEnv::new(trie.with_eos_tokens(&self.eos)))
    }

    /// Serializes the tokens. All numbers are u32 in little-endian order: the number of end tokens
    /// and their ids, then the number of words, and each word after its length.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let number = |bytes: &mut Vec<u8>, number: usize| bytes.extend((number as u32).to_le_bytes());
        number(&mut bytes, self.eos.len());
        self.eos.iter().for_each(|&id| number(&mut bytes, id as usize));
        number(&mut bytes, self.words.len());
        for word in &self.words {
            number(&mut bytes, word.len());
            bytes.extend(word);
        }
        bytes
    }

    /// Reads the serialized form of [`to_bytes`](Self::to_bytes). Returns `None` if the bytes have
    /// another form.
    pub(super) fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        fn number(bytes: &mut &[u8]) -> Option<u32> {
            let (number, rest) = bytes.split_first_chunk()?;
            *bytes = rest;
            Some(u32::from_le_bytes(*number))
        }
        let count = number(&mut bytes)?;
        let eos: Vec<u32> = (0..count).map_while(|_| number(&mut bytes)).collect();
        let size = number(&mut bytes)?;
        let word = |_| {
            let length = number(&mut bytes)? as usize;
            let (word, rest) = bytes.split_at_checked(length)?;
            bytes = rest;
            Some(word.to_vec())
        };
        let words: Vec<Vec<u8>> = (0..size).map_while(word).collect();
        let whole = bytes.is_empty() && words.len() == size as usize && eos.len() == count as usize;
        (whole && !eos.is_empty() && eos.iter().all(|&id| id < size)).then_some(Vocabulary { words, eos })
    }
}

#[cfg(test)]
mod tests {
    use millrace_text::test_support::{self, EOS};

    use super::*;

    #[test]
    fn beginnings_are_counted_once() {
        let words = |list: &[&str]| list.iter().map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
        // Few bytes are not looked at.
        assert_eq!(prefixes(&words(&["ab", "abc"])), 5);
        let long = "x".repeat(MAX_PREFIXES);
        let branch = format!("{}y", &long[..MAX_PREFIXES - 1]);
        assert_eq!(prefixes(&words(&[&long, "", &branch, "x", &long])), MAX_PREFIXES + 1);
    }

    #[test]
    fn a_serialized_vocabulary_is_read_back() {
        let vocabulary = Vocabulary::new(&test_support::tokenizer(), &[EOS], EOS + 1).unwrap();
        let bytes = vocabulary.to_bytes();
        assert_eq!(Vocabulary::from_bytes(&bytes), Some(vocabulary));
        for wrong in [&bytes[..bytes.len() - 1], &[&bytes[..], &[0]].concat(), &[255; 8], &[]] {
            assert_eq!(Vocabulary::from_bytes(wrong), None);
        }
    }
}
