//! Readers of vocabularies: the files of tokenizers other than `tokenizer.json`.
//!
//! There are two kinds of vocabulary. A [`PieceVocabulary`] has pieces of text with scores, as
//! SentencePiece trains them. A [`ByteVocabulary`] has byte strings in the order in which they are
//! merged, as tiktoken uses them. The readers check every property on which encoding relies, in
//! passes that are linear in the size of the file.

mod bytes;
mod chars_map;
mod error;
mod file_tokenizer;
mod gguf;
mod llama2c;
mod pieces;
mod sentencepiece;
mod split_patterns;
mod tekken;
#[cfg(test)]
mod tests;
mod tiktoken;
mod tokenizer_json;
#[cfg(test)]
mod tokenizer_json_tests;
mod unigram_json;

pub use bytes::{AddedVocabularyToken, ByteVocabulary};
pub use chars_map::CharsMap;
pub use error::VocabularyError;
pub use file_tokenizer::{SpecialTokenIds, TokenizerData};
pub use gguf::{GgufVocabulary, MergeAlphabet, MergedVocabulary};
pub use llama2c::read_llama2c;
pub(crate) use pieces::is_byte_name;
pub use pieces::{Piece, PieceAlgorithm, PieceKind, PieceNormalization, PieceVocabulary};
pub use sentencepiece::read_sentencepiece;
pub use split_patterns::{ignores_merges, split_expressions};
pub use tekken::{TekkenVocabulary, read_tekken};
pub use tiktoken::{is_tiktoken, read_tiktoken};

/// The maximum length of a token in bytes. The longest ones in use are runs of 512 spaces.
pub const MAX_TOKEN_BYTES: usize = 1024;

/// The maximum number of tokens of a vocabulary. The largest ones in use have 262,144.
pub const MAX_TOKENS: usize = 1 << 21;
