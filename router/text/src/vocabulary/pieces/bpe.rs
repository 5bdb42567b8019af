//! Division into pieces by merging neighbors.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};

use super::text_pieces::Part;
use super::text_pieces::TextPieces;

/// A part of the text that has not been merged into its left neighbor.
#[derive(Debug, Clone, Copy)]
struct Symbol {
    start: usize,
    end: usize,
    previous: usize,
    next: usize,
    /// Whether the part is a user-defined symbol, which is never merged.
    frozen: bool,
}

/// The index of a neighbor that does not exist.
const NONE: usize = usize::MAX;

/// A possible merge. The greatest one comes first: the one with the highest score, and the leftmost
/// one of those.
#[derive(Debug, Clone, Copy)]
struct Merge {
    score: f32,
    left: Reverse<usize>,
    right: usize,
    /// The length of the merged text, by which an outdated merge is recognized.
    length: usize,
}

impl PartialEq for Merge {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Merge {}

impl PartialOrd for Merge {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Merge {
    fn cmp(&self, other: &Self) -> Ordering {
        // Scores are finite, and the two zeros are equal.
        self.score.partial_cmp(&other.score).unwrap_or(Ordering::Equal).then(self.left.cmp(&other.left))
    }
}

/// Divides a text. The work grows with n log n for n characters.
pub(super) fn divide(text: &str, pieces: &TextPieces) -> Vec<Part> {
    let mut symbols = split(text, pieces);
    let mut queue = BinaryHeap::new();
    // The parts of unused pieces, into which these are divided again.
    let mut unused: HashMap<&str, usize> = HashMap::new();
    for right in 1..symbols.len() {
        queue.extend(merge(text, pieces, &symbols, (right - 1, right), &mut unused));
    }
    while let Some(Merge { left: Reverse(left), right, length, .. }) = queue.pop() {
        let (a, b) = (symbols[left], symbols[right]);
        let is_current = a.end > a.start && b.end > b.start && a.next == right && b.end - a.start == length;
        if !is_current {
            continue;
        }
        symbols[left].end = b.end;
        symbols[left].next = b.next;
        // A part without text has been merged.
        symbols[right].end = b.start;
        if b.next != NONE {
            symbols[b.next].previous = left;
            queue.extend(merge(text, pieces, &symbols, (left, b.next), &mut unused));
        }
        if a.previous != NONE {
            queue.extend(merge(text, pieces, &symbols, (a.previous, left), &mut unused));
        }
    }
    let mut parts = Vec::new();
    for symbol in symbols.iter().filter(|symbol| symbol.end > symbol.start) {
        let mut rest = vec![(symbol.start, symbol.end)];
        while let Some((start, end)) = rest.pop() {
            let piece = pieces.matched(&text[start..end]);
            let parted =
                piece.filter(|&piece| pieces.is_unused(piece)).and_then(|_| unused.get(&text[start..end]));
            match parted {
                Some(&at) => rest.extend([(start + at, end), (start, start + at)]),
                None => parts.push(Part { start, end, piece }),
            }
        }
    }
    parts
}

/// Splits a text into user-defined symbols and characters.
fn split(text: &str, pieces: &TextPieces) -> Vec<Symbol> {
    let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
    let mut start = 0;
    while let Some(c) = text[start..].chars().next() {
        let found = pieces.symbols.longest_at(text, start);
        let end = start + found.unwrap_or(c.len_utf8());
        let previous = symbols.len().checked_sub(1).unwrap_or(NONE);
        let next = if end == text.len() { NONE } else { symbols.len() + 1 };
        symbols.push(Symbol { start, end, previous, next, frozen: found.is_some() });
        start = end;
    }
    symbols
}

/// Returns the merge of two neighbors if their text is a piece.
fn merge<'a>(
    text: &'a str,
    pieces: &TextPieces,
    symbols: &[Symbol],
    (left, right): (usize, usize),
    unused: &mut HashMap<&'a str, usize>,
) -> Option<Merge> {
    let (a, b) = (symbols[left], symbols[right]);
    if a.frozen || b.frozen {
        return None;
    }
    let joined = &text[a.start..b.end];
    let piece = pieces.matched(joined)?;
    if pieces.is_unused(piece) {
        unused.insert(joined, a.end - a.start);
    }
    let score = pieces.score(piece);
    Some(Merge { score, left: Reverse(left), right, length: joined.len() })
}
