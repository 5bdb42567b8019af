//! The pieces that text can become, and the parts that they cover.

use std::collections::HashMap;

use millrace_formats::vocabulary::{PieceKind, PieceVocabulary};

use super::symbols::Symbols;

/// A vocabulary with an index of the pieces that text can become.
#[derive(Debug, Clone)]
pub(super) struct TextPieces {
    pub(super) vocabulary: PieceVocabulary,
    /// The pieces that are found before any others.
    pub(super) symbols: Symbols,
    /// The index of each piece that text can become, in particular not of control pieces.
    matched: HashMap<String, u32>,
    /// The length of the longest of these in bytes.
    longest: usize,
}

impl TextPieces {
    pub(super) fn new(vocabulary: PieceVocabulary, matched: HashMap<String, u32>, symbols: Symbols) -> Self {
        let longest = matched.keys().map(String::len).max().unwrap_or(0);
        TextPieces { vocabulary, symbols, matched, longest }
    }

    pub(super) fn is_unused(&self, piece: u32) -> bool {
        self.vocabulary.pieces[piece as usize].kind == PieceKind::Unused
    }

    pub(super) fn score(&self, piece: u32) -> f32 {
        self.vocabulary.pieces[piece as usize].score
    }

    /// Returns the piece with this text, unless it is none that text can become.
    pub(super) fn matched(&self, text: &str) -> Option<u32> {
        if text.len() > self.longest {
            return None;
        }
        self.matched.get(text).copied()
    }
}

/// A part of a normalized text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) start: usize,
    pub(super) end: usize,
    /// The index of the piece; `None` if no piece covers the part.
    pub(super) piece: Option<u32>,
}
