//! SentencePiece's models: a protobuf message with the pieces and the options of the training.

use prost::Message;

use super::{
    CharsMap, Piece, PieceAlgorithm, PieceKind, PieceNormalization, PieceVocabulary, TokenizerData,
    VocabularyError,
};

const FORMAT: &str = "SentencePiece model";

/// The first line of a Git LFS pointer.
pub(super) const LFS: &[u8] = b"version https://git-lfs";

// The fields of `sentencepiece_model.proto` that change how a text is encoded. The numbers are
// those of the Python package `sentencepiece`.

#[derive(Message)]
pub(super) struct ModelMessage {
    #[prost(message, repeated, tag = "1")]
    pub(super) pieces: Vec<PieceMessage>,
    #[prost(message, optional, tag = "2")]
    pub(super) trainer: Option<TrainerMessage>,
    #[prost(message, optional, tag = "3")]
    pub(super) normalizer: Option<NormalizerMessage>,
}

#[derive(Message)]
pub(super) struct PieceMessage {
    #[prost(string, optional, tag = "1")]
    pub(super) piece: Option<String>,
    #[prost(float, optional, tag = "2")]
    pub(super) score: Option<f32>,
    #[prost(int32, optional, tag = "3")]
    pub(super) kind: Option<i32>,
}

#[derive(Message)]
pub(super) struct TrainerMessage {
    #[prost(int32, optional, tag = "3")]
    pub(super) model_type: Option<i32>,
    #[prost(bool, optional, tag = "24")]
    pub(super) treat_whitespace_as_suffix: Option<bool>,
    #[prost(bool, optional, tag = "35")]
    pub(super) byte_fallback: Option<bool>,
    #[prost(int32, optional, tag = "41")]
    pub(super) bos_id: Option<i32>,
    #[prost(int32, optional, tag = "42")]
    pub(super) eos_id: Option<i32>,
    #[prost(string, optional, tag = "46")]
    pub(super) bos_piece: Option<String>,
    #[prost(string, optional, tag = "47")]
    pub(super) eos_piece: Option<String>,
}

#[derive(Message)]
pub(super) struct NormalizerMessage {
    #[prost(bytes = "vec", optional, tag = "2")]
    pub(super) chars_map: Option<Vec<u8>>,
    #[prost(bool, optional, tag = "3")]
    pub(super) add_dummy_prefix: Option<bool>,
    #[prost(bool, optional, tag = "4")]
    pub(super) remove_extra_whitespaces: Option<bool>,
    #[prost(bool, optional, tag = "5")]
    pub(super) escape_whitespaces: Option<bool>,
}

impl TokenizerData {
    /// Returns the same vocabulary as a SentencePiece model, or `None` if it is no byte-pair
    /// encoding of characters.
    pub fn sentencepiece_model(&self) -> Option<Vec<u8>> {
        if self.model != "llama" {
            return None;
        }
        let piece = |(id, text): (usize, &String)| PieceMessage {
            piece: Some(text.clone()),
            score: Some(self.scores.get(id).copied().unwrap_or(0.0)),
            kind: Some(self.kinds.get(id).map_or(PieceKind::Normal, |&kind| kind) as i32),
        };
        let id = |id: Option<u32>| Some(id.and_then(|id| i32::try_from(id).ok()).unwrap_or(-1));
        let text = |id: Option<u32>| id.and_then(|id| self.tokens.get(id as usize)).cloned();
        let trainer = TrainerMessage {
            model_type: Some(2),
            byte_fallback: Some(self.kinds.contains(&PieceKind::Byte)),
            bos_id: id(self.special.bos),
            eos_id: id(self.special.eos),
            bos_piece: text(self.special.bos),
            eos_piece: text(self.special.eos),
            ..TrainerMessage::default()
        };
        let normalizer = NormalizerMessage {
            chars_map: Some(self.precompiled_charsmap.clone()),
            add_dummy_prefix: Some(self.add_space_prefix.unwrap_or(true)),
            remove_extra_whitespaces: Some(self.remove_extra_whitespaces.unwrap_or(false)),
            escape_whitespaces: Some(true),
        };
        let message = ModelMessage {
            pieces: self.tokens.iter().enumerate().map(piece).collect(),
            trainer: Some(trainer),
            normalizer: Some(normalizer),
        };
        Some(message.encode_to_vec())
    }
}

/// Reads a SentencePiece model. The caller bounds the length of `bytes`; the memory needed is at
/// most 30 times that.
///
/// # Errors
/// [`VocabularyError`] if the bytes are no such model, or the model is of an unsupported kind.
pub fn read_sentencepiece(bytes: &[u8]) -> Result<PieceVocabulary, VocabularyError> {
    if bytes.starts_with(LFS) {
        return Err(VocabularyError::LfsPointer);
    }
    let model = ModelMessage::decode(bytes).map_err(|error| VocabularyError::format(FORMAT, error))?;
    super::pieces::check_count(model.pieces.len())?;
    let trainer = model.trainer.unwrap_or_default();
    let normalizer = model.normalizer.unwrap_or_default();
    let algorithm = match trainer.model_type.unwrap_or(1) {
        1 => PieceAlgorithm::Unigram,
        2 => PieceAlgorithm::Bpe,
        other => {
            let name = ["WORD", "CHAR"].get((other as usize).wrapping_sub(3)).unwrap_or(&"unknown");
            let text = format!("its model type is {other} ({name}), and only UNIGRAM and BPE are supported");
            return Err(VocabularyError::Unsupported(text));
        }
    };
    if trainer.treat_whitespace_as_suffix == Some(true) {
        let text =
            "it treats spaces as the end of words (treat_whitespace_as_suffix), which is not supported";
        return Err(VocabularyError::Unsupported(text.into()));
    }
    let pieces = model.pieces.into_iter().enumerate().map(|(id, piece)| {
        let number = piece.kind.unwrap_or(1);
        let kind = PieceKind::from_number(number).ok_or_else(|| {
            VocabularyError::format(FORMAT, format!("piece {id} has the unknown type {number}"))
        })?;
        let (text, score) = (piece.piece.unwrap_or_default(), piece.score.unwrap_or_default());
        Ok(Piece { text, score, kind })
    });
    let pieces = pieces.collect::<Result<Vec<_>, VocabularyError>>()?;
    let find = |id: Option<i32>, default: i32, name: Option<String>, usual: &str| {
        // The id is -1 if the model has no such piece.
        let id = u32::try_from(id.unwrap_or(default)).ok()?;
        let name = name.as_deref().unwrap_or(usual);
        pieces.get(id as usize).is_some_and(|piece| piece.text == name).then_some(id)
    };
    let bos = find(trainer.bos_id, 1, trainer.bos_piece, "<s>");
    let eos = find(trainer.eos_id, 2, trainer.eos_piece, "</s>");
    let normalization = PieceNormalization {
        chars_map: CharsMap::read(&normalizer.chars_map.unwrap_or_default())?,
        add_dummy_prefix: normalizer.add_dummy_prefix.unwrap_or(true),
        remove_extra_whitespaces: normalizer.remove_extra_whitespaces.unwrap_or(true),
        escape_whitespaces: normalizer.escape_whitespaces.unwrap_or(true),
    };
    let byte_fallback = trainer.byte_fallback.unwrap_or(false);
    PieceVocabulary { pieces, algorithm, normalization, byte_fallback, bos, eos }.checked()
}
