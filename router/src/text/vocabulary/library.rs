//! The types with which the library's pipeline also runs SentencePiece's normalization and models.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tokenizers::{
    AddedToken, DecoderWrapper, Model, ModelWrapper, NormalizedString, Normalizer, NormalizerWrapper,
    PostProcessorWrapper, PreTokenizerWrapper, Token, TokenizerImpl, Trainer,
};

use super::pieces::{PieceModel, PieceNormalizer};

/// The library's tokenizer with the models and normalizers of this module.
pub(in crate::text) type Library =
    TokenizerImpl<TextModel, TextNormalizer, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// Divides texts into tokens.
#[derive(Debug, Clone, Deserialize)]
#[serde(from = "ModelWrapper")]
pub(in crate::text) struct TextModel {
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
pub(in crate::text) struct NoTrainer;

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
pub(in crate::text) enum TextNormalizer {
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

impl Normalizer for TextNormalizer {
    fn normalize(&self, text: &mut NormalizedString) -> LibraryResult<()> {
        match self {
            TextNormalizer::Library(normalizer) => normalizer.normalize(text),
            TextNormalizer::Pieces(normalizer) => {
                normalizer.normalize(text);
                Ok(())
            }
        }
    }
}
