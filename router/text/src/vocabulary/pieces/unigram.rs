//! Division into the pieces with the highest sum of scores.

use std::collections::HashMap;

use millrace_formats::vocabulary::{Piece, PieceKind};

use super::text_pieces::Part;

/// The distance of the score of unknown characters from the lowest score, as in SentencePiece.
const UNKNOWN_PENALTY: f32 = 10.0;

/// The pieces in the order of their texts, in which those with a common prefix are neighbors.
#[derive(Debug, Clone)]
pub(super) struct PrefixSearch {
    sorted: Vec<Candidate>,
    unknown_score: f32,
}

/// A piece that text can become.
#[derive(Debug, Clone)]
struct Candidate {
    text: String,
    piece: u32,
    score: f64,
}

impl PrefixSearch {
    /// Prepares the pieces that text can become.
    pub(super) fn new(pieces: &[Piece], matched: &HashMap<String, u32>) -> Self {
        let normal = pieces.iter().filter(|piece| piece.kind == PieceKind::Normal);
        let lowest = normal.map(|piece| piece.score).fold(f32::MAX, f32::min);
        let used = matched.iter().filter(|&(_, &piece)| pieces[piece as usize].kind != PieceKind::Unused);
        let candidates = used.map(|(text, &piece)| {
            let Piece { score, kind, .. } = pieces[piece as usize];
            let score = match kind {
                // The other scores are logarithms of probabilities, so that symbols always win.
                // Their own scores do not count.
                PieceKind::UserDefined => 0.0,
                _ => f64::from(score),
            };
            Candidate { text: text.clone(), piece, score }
        });
        let mut sorted: Vec<_> = candidates.collect();
        sorted.sort_unstable_by(|a, b| a.text.cmp(&b.text));
        PrefixSearch { sorted, unknown_score: lowest - UNKNOWN_PENALTY }
    }

    /// Calls `found` with each piece that begins a text, the shortest first.
    fn prefixes(&self, text: &[u8], mut found: impl FnMut(&Candidate)) {
        let mut range = self.sorted.as_slice();
        for (at, &byte) in text.iter().enumerate() {
            let of = |candidate: &Candidate| candidate.text.as_bytes().get(at).copied();
            let start = range.partition_point(|candidate| of(candidate) < Some(byte));
            let end = start + range[start..].partition_point(|candidate| of(candidate) == Some(byte));
            range = &range[start..end];
            match range.first() {
                None => return,
                Some(first) if first.text.len() == at + 1 => found(first),
                Some(_) => {}
            }
        }
    }
}

/// The best division of the text up to a place.
#[derive(Debug, Clone, Copy)]
struct Best {
    score: f32,
    /// The beginning of its last part; `None` if no division ends here.
    start: Option<usize>,
    piece: Option<u32>,
}

/// Divides a text. The work is bounded by the length of the text times the length of the longest
/// piece.
pub(super) fn divide(text: &str, search: &PrefixSearch) -> Vec<Part> {
    let mut best = vec![Best { score: 0.0, start: None, piece: None }; text.len() + 1];
    for (start, c) in text.char_indices() {
        let before = best[start].score;
        let mut covers_char = false;
        search.prefixes(&text.as_bytes()[start..], |candidate| {
            let end = start + candidate.text.len();
            let score = candidate.score + f64::from(before);
            covers_char |= candidate.text.len() == c.len_utf8();
            if best[end].start.is_none() || score > f64::from(best[end].score) {
                best[end] = Best { score: score as f32, start: Some(start), piece: Some(candidate.piece) };
            }
        });
        let end = start + c.len_utf8();
        let score = search.unknown_score + before;
        if !covers_char && (best[end].start.is_none() || score > best[end].score) {
            best[end] = Best { score, start: Some(start), piece: None };
        }
    }
    let mut parts = Vec::new();
    let mut end = text.len();
    while let Some(start) = best[end].start {
        parts.push(Part { start, end, piece: best[end].piece });
        end = start;
    }
    parts.reverse();
    parts
}
