//! Vocabularies of pieces of text with scores.

use std::collections::HashMap;

use super::{CharsMap, MAX_TOKEN_BYTES, MAX_TOKENS, VocabularyError};

/// The character that stands for a space in pieces.
pub(super) const SPACE: char = '\u{2581}';

/// The kind of a piece. The discriminants are those of SentencePiece and of GGUF.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PieceKind {
    /// The piece is a part of text.
    Normal = 1,
    /// The piece stands for text that no other piece covers.
    Unknown = 2,
    /// The piece never matches text, such as the end of a sequence.
    Control = 3,
    /// The piece is found in the text before any other one.
    UserDefined = 4,
    /// The piece takes part in merges, but is split again afterwards.
    Unused = 5,
    /// The piece stands for one byte of text that no other piece covers.
    Byte = 6,
}

impl PieceKind {
    /// Returns the kind with this number in GGUF and GGML files. Some converters write 0 for tokens
    /// of no known kind.
    pub(crate) fn of_file(number: u64) -> Option<Self> {
        i32::try_from(number.max(1)).ok().and_then(PieceKind::from_number)
    }

    /// Returns the kind with this number.
    pub fn from_number(number: i32) -> Option<Self> {
        use PieceKind::{Byte, Control, Normal, Unknown, Unused, UserDefined};
        [Normal, Unknown, Control, UserDefined, Unused, Byte].into_iter().find(|&kind| kind as i32 == number)
    }
}

/// A piece of a vocabulary. Its id is its position.
#[derive(Debug, Clone, PartialEq)]
pub struct Piece {
    /// The text, with U+2581 for spaces.
    pub text: String,
    /// The score: higher is preferred.
    pub score: f32,
    /// The kind.
    pub kind: PieceKind,
}

/// The method by which a text is divided into pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PieceAlgorithm {
    /// Neighbors are merged, the pair whose piece has the highest score first.
    Bpe,
    /// The division with the highest sum of scores is found.
    Unigram,
}

/// The changes to a text before it is divided.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PieceNormalization {
    /// Replacements of characters.
    pub chars_map: Option<CharsMap>,
    /// Whether a space is put in front of the text.
    pub add_dummy_prefix: bool,
    /// Whether spaces at both ends are removed, and runs of spaces become one.
    pub remove_extra_whitespaces: bool,
    /// Whether spaces become U+2581.
    pub escape_whitespaces: bool,
}

/// A vocabulary of pieces.
#[derive(Debug, Clone, PartialEq)]
pub struct PieceVocabulary {
    /// The pieces, by id.
    pub pieces: Vec<Piece>,
    /// The method by which a text is divided.
    pub algorithm: PieceAlgorithm,
    /// The changes to a text before it is divided.
    pub normalization: PieceNormalization,
    /// Whether text that no piece covers becomes byte pieces.
    pub byte_fallback: bool,
    /// The id of the piece that begins a sequence.
    pub bos: Option<u32>,
    /// The id of the piece that ends a sequence.
    pub eos: Option<u32>,
}

impl PieceVocabulary {
    /// Checks the properties on which encoding relies.
    ///
    /// # Errors
    /// [`VocabularyError`] names the first piece that violates one.
    pub(super) fn checked(self) -> Result<Self, VocabularyError> {
        check_count(self.pieces.len())?;
        let mut known: HashMap<&str, usize> = HashMap::with_capacity(self.pieces.len());
        let mut bytes = [false; 256];
        for (id, piece) in self.pieces.iter().enumerate() {
            check_length(id, piece.text.len())?;
            if !piece.score.is_finite() {
                return Err(VocabularyError::Score { id, score: piece.score });
            }
            if let Some(first) = known.insert(&piece.text, id) {
                return Err(VocabularyError::Duplicate { token: piece.text.clone(), first, second: id });
            }
            if piece.kind == PieceKind::Byte {
                let byte = byte_of(&piece.text)
                    .ok_or_else(|| VocabularyError::ByteName { id, token: piece.text.clone() })?;
                bytes[usize::from(byte)] = true;
            }
        }
        if self.byte_fallback {
            if let Some(missing) = (0..=255u8).find(|&byte| !bytes[usize::from(byte)]) {
                return Err(VocabularyError::MissingByte(missing));
            }
        } else if !self.pieces.iter().any(|piece| piece.kind == PieceKind::Unknown) {
            return Err(VocabularyError::NoUnknown);
        }
        for (role, id) in [("begin", self.bos), ("end", self.eos)] {
            check_id(role, id, self.pieces.len())?;
        }
        Ok(self)
    }
}

/// Returns the byte for which a piece such as `<0x0A>` stands.
pub(super) fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_name = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_name.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// Returns whether a text is the name of a token for one byte, such as `<0x0A>`.
pub(crate) fn is_byte_name(text: &str) -> bool {
    byte_of(text).is_some()
}

pub(super) fn check_count(tokens: usize) -> Result<(), VocabularyError> {
    match tokens {
        0 => Err(VocabularyError::Empty),
        count if count > MAX_TOKENS => Err(VocabularyError::TooMany(count)),
        _ => Ok(()),
    }
}

pub(super) fn check_length(id: usize, bytes: usize) -> Result<(), VocabularyError> {
    match bytes {
        0 => Err(VocabularyError::EmptyToken(id)),
        bytes if bytes > MAX_TOKEN_BYTES => Err(VocabularyError::LongToken { id, bytes }),
        _ => Ok(()),
    }
}

pub(super) fn check_id(role: &'static str, id: Option<u32>, tokens: usize) -> Result<(), VocabularyError> {
    match id {
        Some(id) if id as usize >= tokens => Err(VocabularyError::Id { role, id: id.into(), tokens }),
        _ => Ok(()),
    }
}
