//! The tokenizer of a model: `tokenizer.json`, or the vocabulary of another library.

use millrace_formats::vocabulary::{
    AddedVocabularyToken, ByteVocabulary, GgufVocabulary, MergeAlphabet, MergedVocabulary, PieceKind,
    PieceVocabulary, TokenizerData, VocabularyError,
};

/// The description of a tokenizer.
#[derive(Debug, Clone)]
pub enum TokenizerSource {
    /// The content of `tokenizer.json`.
    Json(Vec<u8>),
    /// A vocabulary of another library.
    Vocabulary(Box<Vocabulary>),
}

impl Default for TokenizerSource {
    fn default() -> Self {
        TokenizerSource::Json(Vec::new())
    }
}

impl From<Vec<u8>> for TokenizerSource {
    fn from(json: Vec<u8>) -> Self {
        TokenizerSource::Json(json)
    }
}

impl From<Vocabulary> for TokenizerSource {
    fn from(vocabulary: Vocabulary) -> Self {
        TokenizerSource::Vocabulary(Box::new(vocabulary))
    }
}

/// A vocabulary, and the tokens that its files do not contain.
#[derive(Debug, Clone)]
pub struct Vocabulary {
    /// The tokens that text becomes.
    pub tokens: VocabularyTokens,
    /// Tokens that text becomes only if it is exactly their text, such as markers of turns. They
    /// take precedence over tokens with the same id.
    pub added: Vec<AddedVocabularyToken>,
    /// The ids in front of each raw prompt.
    pub prefix: Vec<u32>,
    /// The ids behind each raw prompt.
    pub suffix: Vec<u32>,
}

/// The tokens that text becomes.
#[derive(Debug, Clone)]
pub enum VocabularyTokens {
    /// Pieces of SentencePiece.
    Pieces {
        /// The pieces.
        vocabulary: PieceVocabulary,
        /// The id of the first piece.
        first_id: u32,
        /// Replacements before the text is normalized, in the order in which they are tried.
        substitutions: Vec<Substitution>,
    },
    /// Byte strings that are merged by rank.
    Ranked {
        /// The byte strings.
        vocabulary: ByteVocabulary,
        /// The pattern that splits texts into parts that are encoded one by one.
        pattern: SplitPattern,
        /// Whether texts are brought into the normal form NFC.
        nfc: bool,
    },
    /// Tokens with a list of merges.
    Merged(MergedVocabulary),
}

/// A pattern that splits texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SplitPattern {
    /// A pattern by the name that GGUF files use.
    Named(&'static str),
    /// A regular expression.
    Expression(String),
}

/// A replacement that a model's own code makes before it encodes a text, and reverses afterwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Substitution {
    /// The replaced text.
    pub from: String,
    /// The text that replaces it.
    pub to: String,
}

impl Vocabulary {
    /// Converts the tokenizer of a GGUF file. Raw prompts begin with the begin token if the file
    /// or the convention of its kind says so.
    ///
    /// # Errors
    /// [`VocabularyError`] says what is wrong with the file.
    pub fn from_gguf(file: TokenizerData) -> Result<Self, VocabularyError> {
        let add_bos = file.add_bos;
        let (tokens, bos, usual) = match file.into_vocabulary()? {
            GgufVocabulary::Pieces(vocabulary) => {
                let bos = vocabulary.bos;
                (VocabularyTokens::Pieces { vocabulary, first_id: 0, substitutions: Vec::new() }, bos, true)
            }
            GgufVocabulary::Merged(vocabulary) => {
                let usual = match vocabulary.alphabet {
                    MergeAlphabet::Bytes => ["tekken", "llama-bpe"].contains(&vocabulary.pre.as_str()),
                    MergeAlphabet::Characters => true,
                };
                let bos = vocabulary.bos;
                (VocabularyTokens::Merged(vocabulary), bos, usual)
            }
        };
        let prefix = bos.filter(|_| add_bos.unwrap_or(usual)).into_iter().collect();
        Ok(Vocabulary { tokens, added: Vec::new(), prefix, suffix: Vec::new() })
    }

    /// Returns the text of a token that is not a byte string.
    pub fn text(&self, id: u32) -> Option<&str> {
        if let Some(added) = self.added.iter().find(|token| token.id == id) {
            return Some(&added.text);
        }
        match &self.tokens {
            VocabularyTokens::Pieces { vocabulary, first_id, .. } => {
                let index = id.checked_sub(*first_id)?;
                vocabulary.pieces.get(index as usize).map(|piece| piece.text.as_str())
            }
            VocabularyTokens::Ranked { .. } => None,
            VocabularyTokens::Merged(vocabulary) => {
                vocabulary.tokens.get(id as usize).map(|(text, _)| text.as_str())
            }
        }
    }

    /// Whether there is a token that is not made from other text, such as the marker of a turn.
    pub(super) fn has_marker(&self, text: &str) -> bool {
        let is_marker = |kind: PieceKind| matches!(kind, PieceKind::Control | PieceKind::UserDefined);
        self.added.iter().any(|token| token.text == text)
            || match &self.tokens {
                VocabularyTokens::Pieces { vocabulary, .. } => {
                    vocabulary.pieces.iter().any(|piece| piece.text == text && is_marker(piece.kind))
                }
                VocabularyTokens::Ranked { .. } => false,
                VocabularyTokens::Merged(vocabulary) => {
                    vocabulary.tokens.iter().any(|(token, kind)| token == text && is_marker(*kind))
                }
            }
    }

    /// Returns the ids of the tokens that begin and end a sequence, as the vocabulary names them.
    pub(super) fn ends(&self) -> (Option<u32>, Option<u32>) {
        match &self.tokens {
            VocabularyTokens::Pieces { vocabulary, first_id, .. } => {
                (vocabulary.bos.map(|id| id + first_id), vocabulary.eos.map(|id| id + first_id))
            }
            VocabularyTokens::Ranked { .. } => (None, None),
            VocabularyTokens::Merged(vocabulary) => (vocabulary.bos, vocabulary.eos),
        }
    }
}
