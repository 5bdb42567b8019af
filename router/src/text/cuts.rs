//! Places at which a text can be cut so that its parts have the tokens of the whole.
//!
//! Two kinds of places come into question: between two words of ASCII letters with one space between them, and between the
//! end of a line and a letter. A kind is used for a tokenizer only if both of these hold:
//!
//! - No token of the vocabulary reaches across such a place. No merge of BPE and no path of a unigram model does, then.
//! - Texts that were tried, with characters of every class around such a place, have the same tokens in two parts as in one.
//!   This shows what normalizer, pre-tokenizer, and added tokens do there.
//!
//! Whether the space belongs to the second part depends on the tokenizer: some put a space in front of every text.

use super::tokenizer::Encoded;

/// A place at which a text is cut.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Cut {
    /// Where the first part ends.
    pub(super) end: usize,
    /// Where the second part begins: there, or after the space that the tokenizer adds again by itself.
    pub(super) begin: usize,
}

impl Cut {
    /// The second part's tokens as tokens of the whole text.
    pub(super) fn shift(self, encoded: &mut Encoded) {
        // At most the length of the whole text, which is a u32.
        let shift = self.begin as u32;
        encoded.offsets.iter_mut().for_each(|(from, to)| (*from, *to) = (*from + shift, *to + shift));
        if self.begin == self.end {
            return;
        }
        // The first token has the space that was left out, and the library takes it for the first letter. If that letter
        // begins another token, the space is all that the first one has.
        let is_only_space = encoded.offsets.get(1).is_some_and(|(from, _)| *from == shift);
        if let Some((from, to)) = encoded.offsets.first_mut().filter(|(from, _)| *from == shift) {
            *from = self.end as u32;
            if is_only_space {
                *to = shift;
            }
        }
    }
}

/// Which places are safe for a tokenizer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Cuts {
    space: Option<Space>,
    line: bool,
}

/// What becomes of the space between two words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Space {
    /// It begins the second part.
    Kept,
    /// It is left out, since the tokenizer puts one in front of each text.
    Dropped,
}

/// One character of each class that pre-tokenizers tell apart, and none.
const AROUND: [&str; 14] = ["", "a", "Z", "7", ".", "'", "-", "<", " ", "\n", "\t", "中", "é", "😀"];
const LETTERS: [&str; 4] = ["e", "s", "T", "Q"];
const ENDS_OF_LINES: [&str; 4] = ["e", "7", ".", ")"];

/// A space and the end of a line as they are, and as vocabularies write them.
const SPACES: [&str; 3] = [" ", "▁", "Ġ"];
const LINES: [&str; 2] = ["\n", "Ċ"];

impl Cuts {
    /// Finds out what is safe. `encode` adds no tokens around a text.
    pub(super) fn of<'a>(
        encode: impl Fn(&str) -> Option<Encoded>,
        tokens: impl Iterator<Item = &'a [u8]>,
    ) -> Cuts {
        let (mut over_space, mut over_line) = (false, false);
        for token in tokens {
            for (at, _) in token.iter().enumerate().filter(|(_, byte)| byte.is_ascii_alphabetic()) {
                over_space |= SPACES.iter().any(|space| token[at + 1..].starts_with(space.as_bytes()));
                over_line |= LINES.iter().any(|line| token[..at].ends_with(line.as_bytes()));
            }
        }
        let pairs = |ends: &[&str], end: &str| -> Vec<String> {
            let each = AROUND.iter().flat_map(|c| ends.iter().map(move |e| format!("{c}{e}")));
            each.map(|text| text + end).collect()
        };
        let words: Vec<String> =
            AROUND.iter().flat_map(|c| LETTERS.iter().map(move |letter| format!("{letter}{c}"))).collect();
        let all = |lefts: &[String], space: Option<Space>| {
            let rights = if space == Some(Space::Kept) {
                words.iter().map(|word| format!(" {word}")).collect()
            } else {
                words.clone()
            };
            let first: Option<Vec<_>> = lefts.iter().map(|left| Some((left, encode(left)?))).collect();
            let second: Option<Vec<_>> = rights.iter().map(|right| Some((right, encode(right)?))).collect();
            let (Some(first), Some(second)) = (first, second) else { return false };
            let between = usize::from(space == Some(Space::Dropped));
            first.iter().all(|(left, tokens)| {
                let cut = Cut { end: left.len(), begin: left.len() + between };
                second.iter().all(|(right, more)| {
                    let (mut parts, mut more) = (tokens.clone(), more.clone());
                    cut.shift(&mut more);
                    parts.append(more);
                    encode(&format!("{left}{}{right}", &" "[..between])).as_ref() == Some(&parts)
                })
            })
        };
        let (before_space, before_line) = (pairs(&LETTERS, ""), pairs(&ENDS_OF_LINES, "\n"));
        let spaces = [Space::Kept, Space::Dropped].into_iter().filter(|_| !over_space);
        Cuts {
            space: spaces.into_iter().find(|&space| all(&before_space, Some(space))),
            line: !over_line && all(&before_line, None),
        }
    }

    /// Whether there can be any safe place.
    #[cfg(test)]
    pub(super) fn any(self) -> bool {
        self.space.is_some() || self.line
    }

    /// The first safe place at or after `from`.
    pub(super) fn first(self, text: &str, from: usize) -> Option<Cut> {
        (from..text.len()).find_map(|at| self.at(text.as_bytes(), at))
    }

    fn at(self, text: &[u8], at: usize) -> Option<Cut> {
        let is_letter = |at: usize| text.get(at).is_some_and(u8::is_ascii_alphabetic);
        match (text.get(at.checked_sub(1)?)?, text[at]) {
            (before, b' ') if before.is_ascii_alphabetic() && is_letter(at + 1) => {
                Some(Cut { end: at, begin: at + usize::from(self.space? == Space::Dropped) })
            }
            (b'\n', c) if c.is_ascii_alphabetic() && self.line => {
                let end_of_line = text.get(at.checked_sub(2)?)?;
                end_of_line.is_ascii_graphic().then_some(Cut { end: at, begin: at })
            }
            _ => None,
        }
    }
}
