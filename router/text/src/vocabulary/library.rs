//! The types with which the library's pipeline also runs SentencePiece's normalization and models.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tokenizers::{
    AddedToken, DecoderWrapper, Model, ModelWrapper, NormalizedString, Normalizer, NormalizerWrapper,
    PostProcessorWrapper, PreTokenizerWrapper, Token, TokenizerImpl, Trainer,
};

use super::pieces::{PieceModel, PieceNormalizer};
use crate::error::TextError;

/// The library's tokenizer with the models and normalizers of this module.
pub(crate) type Library =
    TokenizerImpl<TextModel, TextNormalizer, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// Divides texts into tokens.
#[derive(Debug, Clone, Deserialize)]
#[serde(from = "ModelWrapper")]
pub(crate) struct TextModel {
    kind: ModelKind,
    /// Tokens that text never becomes. The library looks for them before it uses the model.
    added: HashMap<String, u32>,
    added_by_id: HashMap<u32, String>,
}

#[derive(Debug, Clone)]
enum ModelKind {
    Library(Box<ModelWrapper>),
    Pieces(Box<PieceModel>),
}

impl From<ModelWrapper> for TextModel {
    fn from(model: ModelWrapper) -> Self {
        TextModel {
            kind: ModelKind::Library(Box::new(model)),
            added: HashMap::new(),
            added_by_id: HashMap::new(),
        }
    }
}

impl From<PieceModel> for TextModel {
    fn from(model: PieceModel) -> Self {
        TextModel {
            kind: ModelKind::Pieces(Box::new(model)),
            added: HashMap::new(),
            added_by_id: HashMap::new(),
        }
    }
}

impl TextModel {
    /// Whether the model is a unigram model, which compares sums of scores over a whole text. Two
    /// paths with equal scores then differ by the rounding of what comes before them.
    pub(crate) fn sums_scores(&self) -> bool {
        match &self.kind {
            ModelKind::Library(model) => matches!(**model, ModelWrapper::Unigram(_)),
            ModelKind::Pieces(model) => model.sums_scores(),
        }
    }

    /// Adds tokens that text never becomes.
    pub(super) fn with_added<'a>(mut self, tokens: impl Iterator<Item = (&'a str, u32)>) -> Self {
        for (text, id) in tokens {
            self.added.insert(text.to_owned(), id);
            self.added_by_id.insert(id, text.to_owned());
        }
        self
    }
}

type LibraryResult<T> = tokenizers::Result<T>;

impl Model for TextModel {
    type Trainer = NoTrainer;

    fn tokenize(&self, sequence: &str) -> LibraryResult<Vec<Token>> {
        match &self.kind {
            ModelKind::Library(model) => model.tokenize(sequence),
            ModelKind::Pieces(model) => Ok(model.tokenize(sequence)),
        }
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.added.get(token).copied().or_else(|| match &self.kind {
            ModelKind::Library(model) => model.token_to_id(token),
            ModelKind::Pieces(model) => model.id_of(token),
        })
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.added_by_id.get(&id).cloned().or_else(|| match &self.kind {
            ModelKind::Library(model) => model.id_to_token(id),
            ModelKind::Pieces(model) => model.text_of(id).map(str::to_owned),
        })
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        let mut all = match &self.kind {
            ModelKind::Library(model) => model.get_vocab(),
            ModelKind::Pieces(model) => model.vocabulary().map(|(text, id)| (text.to_owned(), id)).collect(),
        };
        all.extend(self.added.iter().map(|(text, &id)| (text.clone(), id)));
        all
    }

    fn get_vocab_size(&self) -> usize {
        match &self.kind {
            ModelKind::Library(model) => model.get_vocab_size() + self.added.len(),
            ModelKind::Pieces(_) => self.get_vocab().len(),
        }
    }

    fn save(&self, _: &Path, _: Option<&str>) -> LibraryResult<Vec<PathBuf>> {
        Err("tokenizers are not saved".into())
    }

    fn get_trainer(&self) -> NoTrainer {
        NoTrainer
    }
}

/// The trainer that the library asks for. Nothing is trained here.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NoTrainer;

impl Trainer for NoTrainer {
    type Model = TextModel;

    fn should_show_progress(&self) -> bool {
        false
    }

    fn train(&self, _: &mut TextModel) -> LibraryResult<Vec<AddedToken>> {
        Err("tokenizers are not trained".into())
    }

    fn feed<I, S, F>(&mut self, _: I, _: F) -> LibraryResult<()>
    where
        I: Iterator<Item = S> + Send,
        S: AsRef<str> + Send,
        F: Fn(&str) -> LibraryResult<Vec<String>> + Sync,
    {
        Err("tokenizers are not trained".into())
    }
}

/// Normalizes texts before they are divided.
#[derive(Debug, Clone, Deserialize)]
#[serde(from = "NormalizerWrapper")]
pub(crate) enum TextNormalizer {
    /// A normalizer of the library.
    Library(Box<NormalizerWrapper>),
    /// SentencePiece's normalization.
    Pieces(Box<PieceNormalizer>),
}

impl From<NormalizerWrapper> for TextNormalizer {
    fn from(normalizer: NormalizerWrapper) -> Self {
        TextNormalizer::Library(Box::new(normalizer))
    }
}

impl TextNormalizer {
    /// Checks that no step can make a text much longer at once.
    ///
    /// # Errors
    /// The error says which step is refused.
    pub(crate) fn check(&self) -> Result<(), TextError> {
        match self {
            TextNormalizer::Library(normalizer) => check_step(normalizer),
            TextNormalizer::Pieces(_) => Ok(()),
        }
    }
}

/// Maximum number of bytes that a step of a normalizer may write for each match. Those of published
/// models write up to three.
const MAX_CONTENT: usize = 64;

/// How many times as long as the text its normalized form may be. The longest of Unicode's own
/// normalizations, of U+FDFA, is 11 times as long.
const MAX_GROWTH: usize = 12;

/// The length up to which a normalized text may be longer than that, for texts of a few bytes.
const SHORT_BYTES: usize = 1024;

fn check_step(step: &NormalizerWrapper) -> Result<(), TextError> {
    match step {
        NormalizerWrapper::Sequence(steps) => steps.as_ref().iter().try_for_each(check_step),
        NormalizerWrapper::Replace(replace) if replace.content.len() > MAX_CONTENT => {
            Err(TextError::Tokenizer(format!(
                "its normalizer puts {} bytes in the place of each match, and {MAX_CONTENT} are the most that are \
                 accepted",
                replace.content.len()
            )))
        }
        _ => Ok(()),
    }
}

/// Runs a normalizer step by step. Each step may double a text, so that thirty of them would take
/// all memory.
fn normalize_within(
    step: &NormalizerWrapper,
    text: &mut NormalizedString,
    growth: usize,
) -> LibraryResult<()> {
    if let NormalizerWrapper::Sequence(steps) = step {
        return steps.as_ref().iter().try_for_each(|step| normalize_within(step, text, growth));
    }
    step.normalize(text)?;
    let limit = text.len_original().saturating_mul(growth).max(SHORT_BYTES);
    if text.len() > limit {
        return Err(
            format!("the tokenizer's normalizer makes a text more than {growth} times as long").into()
        );
    }
    Ok(())
}

impl Normalizer for TextNormalizer {
    fn normalize(&self, text: &mut NormalizedString) -> LibraryResult<()> {
        match self {
            TextNormalizer::Library(normalizer) => normalize_within(normalizer, text, MAX_GROWTH),
            TextNormalizer::Pieces(normalizer) => {
                normalizer.normalize(text);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokenizers::NormalizedString;

    use super::*;

    fn normalizer(json: Value) -> TextNormalizer {
        serde_json::from_value(json).unwrap()
    }

    fn replace(from: &str, to: &str) -> Value {
        json!({"type": "Replace", "pattern": {"String": from}, "content": to})
    }

    fn normalized(normalizer: &TextNormalizer, text: &str) -> Result<String, String> {
        let mut text = NormalizedString::from(text);
        normalizer.normalize(&mut text).map_err(|error| error.to_string())?;
        Ok(text.get().to_owned())
    }

    #[test]
    fn steps_that_double_a_text_are_stopped() {
        let doubling = vec![replace("a", "aa"); 40];
        let steps = normalizer(json!({"type": "Sequence", "normalizers": doubling}));
        steps.check().unwrap();
        assert_eq!(normalized(&steps, "b").unwrap(), "b");
        let error = normalized(&steps, &"a".repeat(1000)).unwrap_err();
        assert!(error.contains("more than 12 times as long"), "{error}");
        // Inside another sequence, too.
        let nested =
            json!({"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": doubling}]});
        assert!(normalized(&normalizer(nested), "a").is_err());
    }

    #[test]
    fn long_replacements_are_refused_and_those_of_models_are_not() {
        let long = json!({"type": "Sequence", "normalizers": [replace("a", &"x".repeat(65))]});
        let error = normalizer(long).check().unwrap_err().to_string();
        assert!(error.contains("puts 65 bytes in the place of each match"), "{error}");
        let usual = normalizer(json!({"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u{2581}"}, replace(" ", "\u{2581}"), {"type": "NFKC"},
        ]}));
        usual.check().unwrap();
        assert_eq!(normalized(&usual, &" ".repeat(2000)).unwrap().chars().count(), 2001);
        // The character with the longest normal form.
        assert!(normalized(&usual, &"\u{fdfa}".repeat(2000)).is_ok());
    }
}
