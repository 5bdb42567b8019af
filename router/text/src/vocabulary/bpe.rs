//! Byte strings and characters that are merged by rank, as a model of the library.

use std::collections::HashMap;

use millrace_formats::vocabulary::{ByteVocabulary, MergedVocabulary, PieceKind};
use tokenizers::models::bpe::{BPE, Vocab};

use crate::error::TextError;

/// The number of words whose tokens the library remembers.
const CACHED_WORDS: usize = 10_000;

/// Builds a model from ranked byte strings.
///
/// A list of merges is made such that the pair of neighbors with the lowest rank is merged first:
/// each division of a token into two tokens is a merge with the token's rank. The work is linear in
/// the number of bytes, because the length of tokens is bounded.
pub(super) fn from_ranks(vocabulary: &ByteVocabulary) -> Result<BPE, TextError> {
    let ranks: HashMap<&[u8], usize> =
        vocabulary.tokens.iter().enumerate().map(|(rank, token)| (token.as_slice(), rank)).collect();
    let names: Vec<String> = vocabulary.tokens.iter().map(|token| alphabet(token)).collect();
    let mut merges = Vec::new();
    for token in &vocabulary.tokens {
        for at in 1..token.len() {
            let (left, right) = token.split_at(at);
            if let (Some(&left), Some(&right)) = (ranks.get(left), ranks.get(right)) {
                merges.push((names[left].clone(), names[right].clone()));
            }
        }
    }
    let ids = names.into_iter().zip(vocabulary.first_id..).collect();
    build(ids, merges, true)
}

/// Builds a model from a vocabulary with merges. Tokens that are not normal are left out.
pub(super) fn from_merges(vocabulary: &MergedVocabulary, ignore_merges: bool) -> Result<BPE, TextError> {
    let ids = ids_of(vocabulary, &[PieceKind::Normal]);
    let merges = known_merges(vocabulary, &ids);
    build(ids, merges, ignore_merges)
}

/// Builds a model from a vocabulary whose tokens are characters. Those without a token become their
/// bytes, or together the token for unknown text.
pub(super) fn from_characters(vocabulary: &MergedVocabulary) -> Result<BPE, TextError> {
    let ids = ids_of(vocabulary, &[PieceKind::Normal, PieceKind::Byte, PieceKind::Unknown]);
    let merges = known_merges(vocabulary, &ids);
    let builder = BPE::builder().vocab_and_merges(ids, merges).cache_capacity(CACHED_WORDS);
    let builder = builder.byte_fallback(true).fuse_unk(true);
    let unknown = vocabulary.tokens.iter().find(|(_, kind)| *kind == PieceKind::Unknown);
    let builder = match unknown {
        Some((text, _)) => builder.unk_token(text.clone()),
        None => builder,
    };
    builder.build().map_err(|error| TextError::Vocabulary(error.to_string()))
}

/// Returns the ids of the tokens of these kinds.
fn ids_of(vocabulary: &MergedVocabulary, kinds: &[PieceKind]) -> Vocab {
    let used = (0u32..).zip(&vocabulary.tokens).filter(|(_, (_, kind))| kinds.contains(kind));
    used.map(|(id, (text, _))| (text.clone(), id)).collect()
}

/// Returns the merges of known tokens.
fn known_merges(vocabulary: &MergedVocabulary, ids: &Vocab) -> Vec<(String, String)> {
    let known = |(left, right): &&(String, String)| {
        [left, right, &format!("{left}{right}")].iter().all(|text| ids.contains_key(*text))
    };
    vocabulary.merges.iter().filter(known).cloned().collect()
}

fn build(ids: Vocab, merges: Vec<(String, String)>, ignore_merges: bool) -> Result<BPE, TextError> {
    let builder = BPE::builder()
        .vocab_and_merges(ids, merges)
        .cache_capacity(CACHED_WORDS)
        .ignore_merges(ignore_merges);
    builder.build().map_err(|error| TextError::Vocabulary(error.to_string()))
}

/// Writes bytes in GPT-2's printable alphabet. Bytes that are printable in Latin-1 stand for
/// themselves. The other 68 bytes are the characters from U+0100 on, in order.
fn alphabet(bytes: &[u8]) -> String {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let letter = |&byte: &u8| match printable(byte) {
        true => char::from(byte),
        // The characters after U+0100 are letters.
        false => {
            let before = (0..byte).filter(|&other| !printable(other)).count() as u32;
            char::from_u32(0x100 + before).unwrap_or(char::REPLACEMENT_CHARACTER)
        }
    };
    bytes.iter().map(letter).collect()
}
