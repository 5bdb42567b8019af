//! Encoding with the pieces of a SentencePiece model.
//!
//! The results are equal to SentencePiece's, which the library's models are not: they break ties
//! between scores differently, do not distinguish the kinds of pieces, and replace characters by
//! grapheme clusters.

mod bpe;
mod normalize;
mod symbols;
mod text_pieces;
mod unigram;

use std::collections::{HashMap, HashSet};

use millrace_formats::vocabulary::{PieceAlgorithm, PieceKind, PieceVocabulary};
use text_pieces::Part;
use text_pieces::TextPieces;
use tokenizers::Token;

pub(super) use normalize::PieceNormalizer;
pub(super) use symbols::Symbols;

/// Divides normalized texts into pieces.
#[derive(Debug, Clone)]
pub(super) struct PieceModel {
    pieces: TextPieces,
    /// The first id of the pieces. Some models put other tokens in front of them.
    first_id: u32,
    by_text: HashMap<String, u32>,
    bytes: Option<Box<[u32; 256]>>,
    unknown: u32,
    search: Option<unigram::PrefixSearch>,
}

impl PieceModel {
    /// Prepares a vocabulary. `symbols` are the pieces that are found before any others. The
    /// library itself looks for the texts of `added`, so that text never becomes these pieces here.
    pub(super) fn new(
        vocabulary: PieceVocabulary,
        first_id: u32,
        symbols: Symbols,
        added: &HashSet<&str>,
    ) -> Self {
        let is_matched =
            |kind| matches!(kind, PieceKind::Normal | PieceKind::Unused | PieceKind::UserDefined);
        let pieces = || (0u32..).zip(&vocabulary.pieces);
        let texts = |(id, piece): (u32, &millrace_formats::vocabulary::Piece)| (piece.text.clone(), id);
        let matched: HashMap<_, _> = pieces()
            .filter(|(_, piece)| is_matched(piece.kind))
            .filter(|(_, piece)| !added.contains(piece.text.as_str()))
            .map(texts)
            .collect();
        let byte_pieces = || pieces().filter(|(_, piece)| piece.kind == PieceKind::Byte);
        let bytes = vocabulary.byte_fallback.then(|| {
            let mut ids = Box::new([0; 256]);
            for (id, piece) in byte_pieces() {
                if let Some(byte) =
                    piece.text.get(3..5).and_then(|digits| usize::from_str_radix(digits, 16).ok())
                {
                    ids[byte] = id;
                }
            }
            ids
        });
        let unknown = pieces().find(|(_, piece)| piece.kind == PieceKind::Unknown).map_or(0, |(id, _)| id);
        let search = (vocabulary.algorithm == PieceAlgorithm::Unigram)
            .then(|| unigram::PrefixSearch::new(&vocabulary.pieces, &matched));
        let by_text = pieces().map(texts).collect();
        let pieces = TextPieces::new(vocabulary, matched, symbols);
        PieceModel { pieces, first_id, by_text, bytes, unknown, search }
    }

    /// Whether the model compares sums of scores over a whole text.
    pub(super) fn sums_scores(&self) -> bool {
        self.search.is_some()
    }

    /// Divides a normalized text. The offsets are those in this text.
    pub(super) fn tokenize(&self, text: &str) -> Vec<Token> {
        let parts = match &self.search {
            Some(search) => unigram::divide(text, search),
            None => bpe::divide(text, &self.pieces),
        };
        let mut tokens: Vec<Token> = Vec::with_capacity(parts.len());
        let mut unknown_before = false;
        for Part { start, end, piece } in parts {
            let is_unknown = piece.is_none();
            match (piece, &self.bytes) {
                (Some(piece), _) => tokens.push(self.token(piece, &text[start..end], (start, end))),
                (None, Some(bytes)) => {
                    // Each byte token covers the whole character.
                    let bytes = text[start..end].bytes().map(|byte| bytes[usize::from(byte)]);
                    tokens.extend(bytes.map(|piece| {
                        self.token(piece, &self.pieces.vocabulary.pieces[piece as usize].text, (start, end))
                    }));
                }
                // Neighboring parts that no piece covers are one token.
                (None, None) => match tokens.last_mut().filter(|_| unknown_before) {
                    Some(last) => {
                        last.offsets.1 = end;
                        last.value.push_str(&text[start..end]);
                    }
                    None => tokens.push(self.token(self.unknown, &text[start..end], (start, end))),
                },
            }
            unknown_before = is_unknown;
        }
        tokens
    }

    fn token(&self, piece: u32, value: &str, offsets: (usize, usize)) -> Token {
        Token::new(self.first_id + piece, value.to_owned(), offsets)
    }

    pub(super) fn id_of(&self, text: &str) -> Option<u32> {
        self.by_text.get(text).map(|piece| self.first_id + piece)
    }

    pub(super) fn text_of(&self, id: u32) -> Option<&str> {
        let piece = id.checked_sub(self.first_id)?;
        self.pieces.vocabulary.pieces.get(piece as usize).map(|piece| piece.text.as_str())
    }

    pub(super) fn vocabulary(&self) -> impl Iterator<Item = (&str, u32)> {
        self.by_text.iter().map(|(text, piece)| (text.as_str(), self.first_id + piece))
    }
}
