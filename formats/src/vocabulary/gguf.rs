//! The vocabulary of a GGUF file.

use super::pieces::check_id;
use super::{
    CharsMap, Piece, PieceAlgorithm, PieceKind, PieceNormalization, PieceVocabulary, VocabularyError, pieces,
};

/// The metadata of a GGUF file that describe its tokenizer: the keys `tokenizer.ggml.*`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GgufTokenizer {
    /// The kind of the tokenizer: `model`.
    pub model: String,
    /// The name of the pattern that splits texts: `pre`.
    pub pre: Option<String>,
    /// The texts of the tokens, by id.
    pub tokens: Vec<String>,
    /// The scores, by id; empty if there are none.
    pub scores: Vec<f32>,
    /// The kinds, by id; empty if all are normal.
    pub token_types: Vec<i32>,
    /// The merges, the first one first, with a space between the two parts.
    pub merges: Vec<String>,
    /// The id of the token that begins a sequence.
    pub bos_token_id: Option<u32>,
    /// The id of the token that ends a sequence.
    pub eos_token_id: Option<u32>,
    /// Whether prompts begin with the begin token.
    pub add_bos_token: Option<bool>,
    /// Whether a space is put in front of a text.
    pub add_space_prefix: Option<bool>,
    /// Whether runs of spaces become one.
    pub remove_extra_whitespaces: Option<bool>,
    /// SentencePiece's table of replacements.
    pub precompiled_charsmap: Vec<u8>,
}

/// A vocabulary with a list of merges, in GPT-2's alphabet for bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct MergedVocabulary {
    /// The texts of the tokens and their kinds, by id.
    pub tokens: Vec<(String, PieceKind)>,
    /// The merges, the first one first.
    pub merges: Vec<(String, String)>,
    /// The name of the pattern that splits texts.
    pub pre: String,
    /// The id of the token that begins a sequence.
    pub bos: Option<u32>,
    /// The id of the token that ends a sequence.
    pub eos: Option<u32>,
}

/// A vocabulary of a GGUF file.
#[derive(Debug, Clone, PartialEq)]
pub enum GgufVocabulary {
    /// Pieces with scores: the kinds `llama` and `t5`.
    Pieces(PieceVocabulary),
    /// Byte strings with merges: the kind `gpt2`.
    Merged(MergedVocabulary),
}

impl GgufTokenizer {
    /// Converts the metadata.
    ///
    /// # Errors
    /// [`VocabularyError`] if the lists contradict each other, or the kind is not supported.
    pub fn into_vocabulary(self) -> Result<GgufVocabulary, VocabularyError> {
        let count = self.tokens.len();
        pieces::check_count(count)?;
        for (name, length) in [("scores", self.scores.len()), ("token_type", self.token_types.len())] {
            if length != 0 && length != count {
                let reason = format!("tokenizer.ggml.{name} has {length} entries for {count} tokens");
                return Err(VocabularyError::format("GGUF", reason));
            }
        }
        match self.model.as_str() {
            "llama" => self.into_pieces(PieceAlgorithm::Bpe).map(GgufVocabulary::Pieces),
            "t5" => self.into_pieces(PieceAlgorithm::Unigram).map(GgufVocabulary::Pieces),
            "gpt2" => self.into_merged().map(GgufVocabulary::Merged),
            other => Err(VocabularyError::Unsupported(format!(
                "its tokenizer is of the kind {other:?}, and only llama, gpt2 and t5 are supported"
            ))),
        }
    }

    fn kinds(&self) -> Result<Vec<PieceKind>, VocabularyError> {
        let kind = |(id, &number): (usize, &i32)| {
            PieceKind::from_number(number).ok_or_else(|| {
                VocabularyError::format("GGUF", format!("token {id} has the unknown type {number}"))
            })
        };
        match self.token_types.is_empty() {
            true => Ok(vec![PieceKind::Normal; self.tokens.len()]),
            false => self.token_types.iter().enumerate().map(kind).collect(),
        }
    }

    fn into_pieces(self, algorithm: PieceAlgorithm) -> Result<PieceVocabulary, VocabularyError> {
        let kinds = self.kinds()?;
        let scores = self.scores.into_iter().chain(std::iter::repeat(0.0));
        let pieces = self.tokens.into_iter().zip(scores).zip(&kinds);
        let pieces = pieces.map(|((text, score), &kind)| Piece { text, score, kind }).collect();
        let normalization = PieceNormalization {
            chars_map: CharsMap::read(&self.precompiled_charsmap)?,
            add_dummy_prefix: self.add_space_prefix.unwrap_or(true),
            remove_extra_whitespaces: self.remove_extra_whitespaces.unwrap_or(false),
            escape_whitespaces: true,
        };
        let byte_fallback = kinds.contains(&PieceKind::Byte);
        let (bos, eos) = match algorithm {
            // The ids that are meant if the keys are absent.
            PieceAlgorithm::Bpe => (self.bos_token_id.or(Some(1)), self.eos_token_id.or(Some(2))),
            PieceAlgorithm::Unigram => (self.bos_token_id, self.eos_token_id.or(Some(1))),
        };
        PieceVocabulary { pieces, algorithm, normalization, byte_fallback, bos, eos }.checked()
    }

    fn into_merged(self) -> Result<MergedVocabulary, VocabularyError> {
        let count = self.tokens.len();
        let kinds = self.kinds()?;
        check_id("begin", self.bos_token_id, count)?;
        check_id("end", self.eos_token_id, count)?;
        let mut known = std::collections::HashMap::with_capacity(count);
        for (id, token) in self.tokens.iter().enumerate() {
            pieces::check_length(id, token.len())?;
            if let Some(first) = known.insert(token.as_str(), id) {
                return Err(VocabularyError::Duplicate { token: token.clone(), first, second: id });
            }
        }
        let merges = self.merges.iter().map(|merge| {
            // A part can begin with a space, but not be one.
            let parts = merge.char_indices().skip(1).find(|(_, c)| *c == ' ');
            let parts = parts.map(|(at, _)| (&merge[..at], &merge[at + 1..]));
            let known = parts.filter(|(left, right)| {
                [*left, *right, &format!("{left}{right}")].iter().all(|text| known.contains_key(text))
            });
            let (left, right) = known.ok_or_else(|| {
                VocabularyError::format(
                    "GGUF",
                    format!("the merge {merge:?} does not join two tokens to a third"),
                )
            })?;
            Ok((left.to_owned(), right.to_owned()))
        });
        let merges = merges.collect::<Result<_, VocabularyError>>()?;
        Ok(MergedVocabulary {
            tokens: self.tokens.into_iter().zip(kinds).collect(),
            merges,
            pre: self.pre.unwrap_or_else(|| "default".into()),
            bos: self.bos_token_id,
            eos: self.eos_token_id,
        })
    }
}
