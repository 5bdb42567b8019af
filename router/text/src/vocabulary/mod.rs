//! Tokenizers from the vocabularies of other libraries.
//!
//! Each vocabulary becomes a tokenizer of the library, so that everything behind it is the same as
//! for `tokenizer.json`. Byte strings use the library's own model. Pieces have a model and a
//! normalizer of their own (see `pieces`), which run in the library's pipeline.

mod bpe;
#[cfg(test)]
mod gguf_tests;
mod library;
#[cfg(test)]
mod pattern_tests;
mod pieces;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use library::TextModel;
pub(super) use library::{Library, TextNormalizer};
use millrace_formats::vocabulary::{
    MergeAlphabet, MergedVocabulary, PieceKind, PieceNormalization, PieceVocabulary, ignores_merges,
    split_expressions,
};
use pieces::{PieceModel, PieceNormalizer, Symbols};
use serde_json::{Value, json};
use tokenizers::models::ModelWrapper;
use tokenizers::{AddedToken, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper};

use super::error::TextError;
use crate::assets::{SplitPattern, Substitution, Vocabulary, VocabularyTokens};

/// The exclusive upper bound of the ids of added tokens.
const MAX_ADDED_ID: u32 = 1 << 24;

/// A tokenizer that was built from a vocabulary.
pub(super) struct BuiltTokenizer {
    /// The tokenizer.
    pub(super) library: Library,
    /// Its decoder, as `tokenizer.json` writes it.
    pub(super) decoder: Value,
    /// The texts that clients must not be able to write into messages.
    pub(super) markers: HashSet<String>,
}

/// A token that text becomes only if it is exactly its text.
struct Added {
    id: u32,
    text: String,
    special: bool,
    /// Whether clients must not be able to write it into messages.
    marker: bool,
}

/// Builds the tokenizer of a vocabulary. `is_marker` says of a token that the model's vocabulary
/// treats as text whether the server treats it as a marker, such as one of turns.
pub(super) fn build(
    vocabulary: &Vocabulary,
    is_marker: &dyn Fn(&str) -> bool,
) -> Result<BuiltTokenizer, TextError> {
    let mut added: Vec<Added> = vocabulary
        .added
        .iter()
        .map(|token| Added {
            id: token.id,
            text: token.text.clone(),
            special: token.special,
            marker: token.special || is_marker(&token.text),
        })
        .collect();
    let known: HashSet<u32> = added.iter().map(|token| token.id).collect();
    added
        .extend(listed(&vocabulary.tokens, is_marker).into_iter().filter(|token| !known.contains(&token.id)));
    check(&added)?;
    let decoder = decoder(&vocabulary.tokens);
    let (model, normalizer, pre_tokenizer) = match &vocabulary.tokens {
        VocabularyTokens::Pieces { vocabulary, first_id, substitutions } => {
            let texts: HashSet<&str> = added.iter().map(|token| token.text.as_str()).collect();
            let (model, normalizer) = pieces(vocabulary, *first_id, substitutions, &texts)?;
            (model, Some(normalizer), None)
        }
        VocabularyTokens::Ranked { vocabulary, pattern, nfc } => {
            let model = ModelWrapper::BPE(bpe::from_ranks(vocabulary)?);
            let normalizer: Option<NormalizerWrapper> =
                nfc.then(|| parse(json!({"type": "NFC"}))).transpose()?;
            let split = match pattern {
                SplitPattern::Named(name) => splits(named(name)?)?,
                SplitPattern::Expression(pattern) => splits(&[pattern.as_str()])?,
            };
            (model.into(), normalizer.map(TextNormalizer::from), Some(split))
        }
        VocabularyTokens::Merged(vocabulary) => match vocabulary.alphabet {
            MergeAlphabet::Bytes => (merged(vocabulary)?, None, Some(splits(named(&vocabulary.pre)?)?)),
            MergeAlphabet::Characters => {
                let model = ModelWrapper::BPE(bpe::from_characters(vocabulary)?);
                let normalizer: NormalizerWrapper = parse(replace(" ", "▁"))?;
                (model.into(), Some(normalizer.into()), Some(parse(split(NEWLINES))?))
            }
        },
    };
    let model = model.with_added(added.iter().map(|token| (token.text.as_str(), token.id)));
    let mut library = Library::new(model);
    library.with_normalizer(normalizer);
    library.with_pre_tokenizer(pre_tokenizer);
    let affixes = affixes(vocabulary, &added)?;
    library.with_post_processor(affixes);
    library.with_decoder(Some(parse::<tokenizers::DecoderWrapper>(decoder.clone())?));
    let tokens: Vec<AddedToken> = added.iter().map(added_token).collect();
    library.add_tokens(&tokens);
    let markers = added.into_iter().filter(|token| token.marker).map(|token| token.text).collect();
    Ok(BuiltTokenizer { library, decoder, markers })
}

/// Returns the tokens of a vocabulary that text becomes only if it is exactly their text.
fn listed(tokens: &VocabularyTokens, is_marker: &dyn Fn(&str) -> bool) -> Vec<Added> {
    let token = |id: u32, text: &str, kind: PieceKind, keeps_symbols: bool| {
        let special = matches!(kind, PieceKind::Control | PieceKind::Unknown);
        let marker = special || kind == PieceKind::UserDefined && is_marker(text);
        let used = marker || kind == PieceKind::UserDefined && keeps_symbols;
        used.then(|| Added { id, text: text.to_owned(), special, marker })
    };
    match tokens {
        VocabularyTokens::Pieces { vocabulary, first_id, .. } => {
            // The model itself finds symbols that are no markers.
            let pieces = (*first_id..).zip(&vocabulary.pieces);
            pieces.filter_map(|(id, piece)| token(id, &piece.text, piece.kind, false)).collect()
        }
        VocabularyTokens::Ranked { .. } => Vec::new(),
        VocabularyTokens::Merged(vocabulary) => {
            let tokens = (0..).zip(&vocabulary.tokens);
            tokens.filter_map(|(id, (text, kind))| token(id, text, *kind, true)).collect()
        }
    }
}

/// Checks that added tokens have different texts and reasonable ids.
fn check(added: &[Added]) -> Result<(), TextError> {
    let mut known = HashSet::new();
    for token in added {
        if token.id >= MAX_ADDED_ID {
            return Err(TextError::Vocabulary(format!("the token {:?} has the id {}", token.text, token.id)));
        }
        if !known.insert(&token.text) {
            return Err(TextError::Vocabulary(format!("two special tokens have the text {:?}", token.text)));
        }
    }
    Ok(())
}

/// Converts a token for the library.
fn added_token(token: &Added) -> AddedToken {
    // Markers such as ChatGLM's `sop` must not be found within words.
    let is_word = token.text.chars().all(char::is_alphanumeric);
    AddedToken::from(token.text.clone(), token.special).normalized(false).single_word(is_word)
}

fn pieces(
    vocabulary: &PieceVocabulary,
    first_id: u32,
    substitutions: &[Substitution],
    added: &HashSet<&str>,
) -> Result<(TextModel, TextNormalizer), TextError> {
    let is_symbol = |kind: PieceKind, text: &str| kind == PieceKind::UserDefined && !added.contains(text);
    let symbols = vocabulary.pieces.iter().filter(|piece| is_symbol(piece.kind, &piece.text));
    let symbols = Symbols::new(symbols.map(|piece| piece.text.clone()))
        .map_err(|error| TextError::Vocabulary(error.to_string()))?;
    let options = vocabulary.normalization.clone();
    let normalizer = PieceNormalizer::new(options, symbols.clone(), substitutions.to_vec());
    let model = PieceModel::new(vocabulary.clone(), first_id, symbols, added);
    Ok((model.into(), TextNormalizer::Pieces(Box::new(normalizer))))
}

fn merged(vocabulary: &MergedVocabulary) -> Result<TextModel, TextError> {
    let model = bpe::from_merges(vocabulary, ignores_merges(&vocabulary.pre))?;
    Ok(ModelWrapper::BPE(model).into())
}

fn named(pattern: &str) -> Result<&'static [&'static str], TextError> {
    split_expressions(pattern).ok_or_else(|| {
        TextError::Vocabulary(format!(
            "texts are split by the pattern {pattern:?}, which is not known; use a tokenizer.json instead"
        ))
    })
}

/// The pattern that keeps runs of newlines apart (Gemma 4).
const NEWLINES: &str = r"[^\n]+|\n+";

/// Returns the part of a `tokenizer.json` that splits a text by an expression.
fn split(expression: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": false})
}

/// Returns the part of a `tokenizer.json` that replaces a text.
fn replace(from: &str, to: &str) -> Value {
    json!({"type": "Replace", "pattern": {"String": from}, "content": to})
}

/// Returns a pre-tokenizer that splits a text by one expression after the other, and writes its
/// bytes in GPT-2's alphabet.
fn splits(expressions: &[&str]) -> Result<PreTokenizerWrapper, TextError> {
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let all: Vec<Value> = expressions.iter().map(|expression| split(expression)).chain([bytes]).collect();
    parse(json!({"type": "Sequence", "pretokenizers": all}))
}

/// Returns the decoder in the form of `tokenizer.json`.
fn decoder(tokens: &VocabularyTokens) -> Value {
    const NONE: &[Substitution] = &[];
    let (substitutions, leading) = match tokens {
        VocabularyTokens::Pieces { vocabulary, substitutions, .. } => {
            (&substitutions[..], leading_spaces(&vocabulary.normalization))
        }
        VocabularyTokens::Merged(MergedVocabulary { alphabet: MergeAlphabet::Characters, .. }) => (NONE, 0),
        VocabularyTokens::Merged(_) | VocabularyTokens::Ranked { .. } => {
            return json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
        }
    };
    let mut steps = vec![replace("▁", " ")];
    steps.extend(substitutions.iter().map(|Substitution { from, to }| replace(to, from)));
    steps.extend([json!({"type": "ByteFallback"}), json!({"type": "Fuse"})]);
    if leading > 0 {
        steps.push(json!({"type": "Strip", "content": " ", "start": leading, "stop": 0}));
    }
    json!({"type": "Sequence", "decoders": steps})
}

/// Returns the largest number of spaces that are removed from the beginning of a text.
fn leading_spaces(options: &PieceNormalization) -> u32 {
    match options {
        // SentencePiece removes all of them if the model never has several together.
        PieceNormalization { remove_extra_whitespaces: true, .. } => u32::MAX,
        PieceNormalization { add_dummy_prefix: true, .. } => 1,
        _ => 0,
    }
}

/// Returns the post-processor that adds the tokens around raw prompts; `None` if there are none.
fn affixes(vocabulary: &Vocabulary, added: &[Added]) -> Result<Option<PostProcessorWrapper>, TextError> {
    if vocabulary.prefix.is_empty() && vocabulary.suffix.is_empty() {
        return Ok(None);
    }
    let name = |id: &u32| {
        let added = added.iter().find(|token| token.id == *id).map(|token| token.text.as_str());
        added.or_else(|| vocabulary.text(*id)).map(str::to_owned).ok_or_else(|| {
            TextError::Vocabulary(format!(
                "prompts should begin or end with the token {id}, which does not exist"
            ))
        })
    };
    let (mut before, mut after, mut tokens) = (Vec::new(), Vec::new(), serde_json::Map::new());
    for (ids, list) in [(&vocabulary.prefix, &mut before), (&vocabulary.suffix, &mut after)] {
        for id in ids {
            let name = name(id)?;
            list.push(json!({"SpecialToken": {"id": name, "type_id": 0}}));
            tokens.insert(name.clone(), json!({"id": name, "ids": [id], "tokens": [name]}));
        }
    }
    let sequence = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
    let single: Vec<Value> = before.into_iter().chain([sequence("A")]).chain(after).collect();
    let pair: Vec<Value> = vec![sequence("A"), sequence("B")];
    let template =
        json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens});
    parse(template).map(Some)
}

/// Converts a part of a `tokenizer.json`.
fn parse<T: serde::de::DeserializeOwned>(part: Value) -> Result<T, TextError> {
    serde_json::from_value(part).map_err(|error| TextError::Vocabulary(error.to_string()))
}
