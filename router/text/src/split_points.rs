//! Places at which a text can be split so that the tokens of the parts are the tokens of the whole.
//!
//! There are two kinds of candidates: between two words of ASCII letters with one space between
//! them, and between a line break and a letter. A kind is used for a tokenizer only if both of
//! these conditions hold:
//!
//! - No token of the vocabulary spans such a place. Then no merge of BPE and no path of a unigram
//!   model spans it either.
//! - Sample texts, with characters of every class around such a place, have the same tokens in two
//!   parts as in one. This condition covers the normalizer, the pre-tokenizer and the added tokens.
//!
//! Whether the space belongs to the second part depends on the tokenizer, because some tokenizers
//! add a space in front of every text.

use std::ops::Range;

use super::encoded::EncodedText;

/// A place at which a text is split.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SplitPoint {
    /// The end of the first part.
    pub(super) end: usize,
    /// The beginning of the second part: equal to `end`, or after the space if the tokenizer adds
    /// that space again by itself.
    pub(super) begin: usize,
}

impl SplitPoint {
    /// A place at which nothing is left out.
    pub(super) fn at_mark(at: usize) -> Self {
        SplitPoint { end: at, begin: at }
    }

    /// Converts the offsets of the second part's tokens to offsets in the whole text.
    pub(super) fn shift(self, encoded: &mut EncodedText) {
        // Offsets are at most the length of the whole text, which fits a u32.
        let shift = self.begin as u32;
        encoded.offsets.iter_mut().for_each(|(from, to)| (*from, *to) = (*from + shift, *to + shift));
        if self.begin == self.end {
            return;
        }
        // The library assigns the space that it added to the first letter. In the whole text, the
        // first token covers the space that was left out. If the first letter belongs to the second
        // token, the first token is only the space.
        let is_only_space = encoded.offsets.get(1).is_some_and(|(from, _)| *from == shift);
        if let Some((from, to)) = encoded.offsets.first_mut().filter(|(from, _)| *from == shift) {
            *from = self.end as u32;
            if is_only_space {
                *to = shift;
            }
        }
    }
}

/// The kinds of places at which texts can be split for one tokenizer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SplitPoints {
    space: Option<SpaceHandling>,
    line: bool,
}

/// Treatment of the space between two words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SpaceHandling {
    /// The space begins the second part.
    Kept,
    /// The space is left out, because the tokenizer adds one in front of each text.
    Dropped,
}

/// The empty string, and one character of each class that pre-tokenizers distinguish.
const NEIGHBORS: [&str; 14] = ["", "a", "Z", "7", ".", "'", "-", "<", " ", "\n", "\t", "中", "é", "😀"];
const LETTERS: [&str; 4] = ["e", "s", "T", "Q"];
const LINE_ENDS: [&str; 4] = ["e", "7", ".", ")"];

/// A space and a line break as they are, and as vocabularies write them.
const SPACE_FORMS: [&str; 3] = [" ", "▁", "Ġ"];
const LINE_BREAK_FORMS: [&str; 2] = ["\n", "Ċ"];

impl SplitPoints {
    /// Determines the kinds that are safe for a tokenizer. `encode` adds no special tokens.
    pub(super) fn of<'a>(
        encode: impl Fn(&str) -> Option<EncodedText>,
        tokens: impl Iterator<Item = &'a [u8]>,
    ) -> SplitPoints {
        let (mut token_spans_space, mut token_spans_line) = (false, false);
        for token in tokens {
            for (at, _) in token.iter().enumerate().filter(|(_, byte)| byte.is_ascii_alphabetic()) {
                token_spans_space |=
                    SPACE_FORMS.iter().any(|space| token[at + 1..].starts_with(space.as_bytes()));
                token_spans_line |=
                    LINE_BREAK_FORMS.iter().any(|line| token[..at].ends_with(line.as_bytes()));
            }
        }
        let pairs = |ends: &[&str], end: &str| -> Vec<String> {
            let each = NEIGHBORS.iter().flat_map(|c| ends.iter().map(move |e| format!("{c}{e}")));
            each.map(|text| text + end).collect()
        };
        let words: Vec<String> =
            NEIGHBORS.iter().flat_map(|c| LETTERS.iter().map(move |letter| format!("{letter}{c}"))).collect();
        let all = |lefts: &[String], space: Option<SpaceHandling>| {
            let rights = if space == Some(SpaceHandling::Kept) {
                words.iter().map(|word| format!(" {word}")).collect()
            } else {
                words.clone()
            };
            let first: Option<Vec<_>> = lefts.iter().map(|left| Some((left, encode(left)?))).collect();
            let second: Option<Vec<_>> = rights.iter().map(|right| Some((right, encode(right)?))).collect();
            let (Some(first), Some(second)) = (first, second) else { return false };
            let between = usize::from(space == Some(SpaceHandling::Dropped));
            first.iter().all(|(left, tokens)| {
                let cut = SplitPoint { end: left.len(), begin: left.len() + between };
                second.iter().all(|(right, more)| {
                    let (mut parts, mut more) = (tokens.clone(), more.clone());
                    cut.shift(&mut more);
                    parts.append(more);
                    encode(&format!("{left}{}{right}", &" "[..between])).as_ref() == Some(&parts)
                })
            })
        };
        let (before_space, before_line) = (pairs(&LETTERS, ""), pairs(&LINE_ENDS, "\n"));
        let spaces = [SpaceHandling::Kept, SpaceHandling::Dropped].into_iter().filter(|_| !token_spans_space);
        SplitPoints {
            space: spaces.into_iter().find(|&space| all(&before_space, Some(space))),
            line: !token_spans_line && all(&before_line, None),
        }
    }

    /// Whether any kind of split point is safe.
    #[cfg(test)]
    pub(super) fn any(self) -> bool {
        self.space.is_some() || self.line
    }

    /// Returns the first split point in a range of a text.
    pub(super) fn first(self, text: &str, range: Range<usize>) -> Option<SplitPoint> {
        (range.start..range.end.min(text.len())).find_map(|at| self.at(text.as_bytes(), at))
    }

    fn at(self, text: &[u8], at: usize) -> Option<SplitPoint> {
        let is_letter = |at: usize| text.get(at).is_some_and(u8::is_ascii_alphabetic);
        match (text.get(at.checked_sub(1)?)?, text[at]) {
            (before, b' ') if before.is_ascii_alphabetic() && is_letter(at + 1) => {
                Some(SplitPoint { end: at, begin: at + usize::from(self.space? == SpaceHandling::Dropped) })
            }
            (b'\n', c) if c.is_ascii_alphabetic() && self.line => {
                let end_of_line = text.get(at.checked_sub(2)?)?;
                end_of_line.is_ascii_graphic().then_some(SplitPoint { end: at, begin: at })
            }
            _ => None,
        }
    }
}
