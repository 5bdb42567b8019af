//! The vocabulary of a GGUF file.

use super::pieces::check_id;
use super::{
    CharsMap, Piece, PieceAlgorithm, PieceKind, PieceNormalization, PieceVocabulary, TokenizerData,
    VocabularyError, pieces,
};

/// The alphabet in which a vocabulary with merges writes texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergeAlphabet {
    /// Each byte is a printable character, as GPT-2 has them.
    Bytes,
    /// Characters stand for themselves and `▁` for a space. A character without a token becomes
    /// tokens of its bytes, such as `<0x0A>` (Gemma 4).
    Characters,
}

/// A vocabulary with a list of merges.
#[derive(Debug, Clone, PartialEq)]
pub struct MergedVocabulary {
    /// The alphabet of tokens and merges.
    pub alphabet: MergeAlphabet,
    /// The texts of the tokens and their kinds, by id.
    pub tokens: Vec<(String, PieceKind)>,
    /// The merges, the first one first.
    pub merges: Vec<(String, String)>,
    /// The name of the pattern that splits texts in the alphabet of bytes.
    pub pre: String,
    /// The id of the token that begins a sequence.
    pub bos: Option<u32>,
    /// The id of the token that ends a sequence.
    pub eos: Option<u32>,
}

/// A vocabulary of a GGUF file.
#[derive(Debug, Clone, PartialEq)]
pub enum GgufVocabulary {
    /// Pieces with scores: the kind `llama`.
    Pieces(PieceVocabulary),
    /// Tokens with merges: the kinds `gpt2` and `gemma4`.
    Merged(MergedVocabulary),
}

impl TokenizerData {
    /// Converts the metadata of a kind that does not become a `tokenizer.json`, as `bert` and `t5`
    /// do.
    ///
    /// # Errors
    /// [`VocabularyError`] if the lists contradict each other, or the kind is not supported.
    pub fn into_vocabulary(self) -> Result<GgufVocabulary, VocabularyError> {
        let count = self.tokens.len();
        pieces::check_count(count)?;
        for (name, length) in [("scores", self.scores.len()), ("token_type", self.kinds.len())] {
            if length != 0 && length != count {
                let reason = format!("tokenizer.ggml.{name} has {length} entries for {count} tokens");
                return Err(VocabularyError::format("GGUF", reason));
            }
        }
        match self.model.as_str() {
            "llama" => self.into_pieces().map(GgufVocabulary::Pieces),
            "gpt2" => self.into_merged(MergeAlphabet::Bytes).map(GgufVocabulary::Merged),
            "gemma4" => self.into_merged(MergeAlphabet::Characters).map(GgufVocabulary::Merged),
            other => Err(VocabularyError::Unsupported(format!(
                "its tokenizer is of the kind {other:?}, and only llama, gpt2, t5, bert and gemma4 are supported"
            ))),
        }
    }

    fn piece_kinds(&self) -> Vec<PieceKind> {
        match self.kinds.is_empty() {
            true => vec![PieceKind::Normal; self.tokens.len()],
            false => self.kinds.clone(),
        }
    }

    fn into_pieces(self) -> Result<PieceVocabulary, VocabularyError> {
        let kinds = self.piece_kinds();
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
        // The ids that are meant if the keys are absent.
        let (bos, eos) = (self.special.bos.or(Some(1)), self.special.eos.or(Some(2)));
        let algorithm = PieceAlgorithm::Bpe;
        PieceVocabulary { pieces, algorithm, normalization, byte_fallback, bos, eos }.checked()
    }

    fn into_merged(self, alphabet: MergeAlphabet) -> Result<MergedVocabulary, VocabularyError> {
        let count = self.tokens.len();
        let kinds = self.piece_kinds();
        if alphabet == MergeAlphabet::Characters
            && !kinds.contains(&PieceKind::Unknown)
            && kinds.iter().filter(|kind| **kind == PieceKind::Byte).count() < 256
        {
            return Err(VocabularyError::NoUnknown);
        }
        check_id("begin", self.special.bos, count)?;
        check_id("end", self.special.eos, count)?;
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
            alphabet,
            tokens: self.tokens.into_iter().zip(kinds).collect(),
            merges,
            pre: self.pre.unwrap_or_else(|| "default".into()),
            bos: self.special.bos,
            eos: self.special.eos,
        })
    }
}
