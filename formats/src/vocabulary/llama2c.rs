//! llama2.c's `tokenizer.bin`: the pieces of a SentencePiece model with their scores.
//!
//! The file begins with the length of the longest piece, a `u32`. Each piece is a score, an `f32`,
//! a length, a `u32`, and the bytes of its text. Spaces are not escaped.

use super::pieces::{SPACE, byte_of};
use super::{MAX_TOKEN_BYTES, Piece, PieceAlgorithm, PieceKind, PieceNormalization, PieceVocabulary};
use super::{VocabularyError, sentencepiece};

const FORMAT: &str = "llama2.c tokenizer";

/// Reads `tokenizer.bin`. The file does not contain the number of its pieces; it is read to its
/// end.
///
/// # Errors
/// [`VocabularyError`] if the bytes are no such file.
pub fn read_llama2c(bytes: &[u8]) -> Result<PieceVocabulary, VocabularyError> {
    if bytes.starts_with(sentencepiece::LFS) {
        return Err(VocabularyError::LfsPointer);
    }
    let wrong = |reason: String| VocabularyError::format(FORMAT, reason);
    let (longest, mut rest) =
        bytes.split_first_chunk().ok_or_else(|| wrong("it has fewer than four bytes".into()))?;
    let longest = u32::from_le_bytes(*longest) as usize;
    if longest == 0 || longest > MAX_TOKEN_BYTES {
        return Err(wrong(format!("its first number, the length of the longest piece, is {longest}")));
    }
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        let id = pieces.len();
        let cut = || wrong(format!("it ends within piece {id}"));
        let (score, after) = rest.split_first_chunk().ok_or_else(cut)?;
        let (length, after) = after.split_first_chunk().ok_or_else(cut)?;
        let length = u32::from_le_bytes(*length) as usize;
        if length > longest {
            return Err(wrong(format!(
                "piece {id} has {length} bytes, but the longest one should have {longest}"
            )));
        }
        let (text, after) = after.split_at_checked(length).ok_or_else(cut)?;
        let text = std::str::from_utf8(text).map_err(|_| wrong(format!("piece {id} is not UTF-8 text")))?;
        pieces.push(piece(id, text, f32::from_le_bytes(*score)));
        rest = after;
    }
    let normalization = PieceNormalization {
        add_dummy_prefix: true,
        escape_whitespaces: true,
        ..PieceNormalization::default()
    };
    let (bos, eos) = (Some(1), Some(2));
    let algorithm = PieceAlgorithm::Bpe;
    PieceVocabulary { pieces, algorithm, normalization, byte_fallback: true, bos, eos }.checked()
}

/// Converts a piece. The program that writes the file puts line breaks around the control pieces.
fn piece(id: usize, text: &str, score: f32) -> Piece {
    let (text, kind) = match (id, text.trim_matches('\n')) {
        (0, _) => (text, PieceKind::Unknown),
        (1 | 2, name) if !name.is_empty() => (name, PieceKind::Control),
        _ if byte_of(text).is_some() => (text, PieceKind::Byte),
        _ => (text, PieceKind::Normal),
    };
    Piece { text: text.replace(' ', SPACE.encode_utf8(&mut [0; 4])), score, kind }
}
