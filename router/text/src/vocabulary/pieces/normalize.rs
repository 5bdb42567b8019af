//! SentencePiece's normalization of a text.

use millrace_formats::vocabulary::PieceNormalization;
use tokenizers::NormalizedString;

use super::Symbols;
use crate::assets::Substitution;

/// The character that stands for a space.
const SPACE: char = '\u{2581}';

/// Normalizes texts as SentencePiece does.
#[derive(Debug, Clone)]
pub(crate) struct PieceNormalizer {
    options: PieceNormalization,
    symbols: Symbols,
    substitutions: Vec<Substitution>,
}

/// A normalized text, and for each of its characters the range of the original text that it
/// replaces.
#[derive(Debug, Default)]
struct Output {
    chars: Vec<(char, usize, usize)>,
}

impl PieceNormalizer {
    /// Creates a normalizer. A text is compared to the substitutions in their order.
    pub(crate) fn new(
        options: PieceNormalization,
        symbols: Symbols,
        substitutions: Vec<Substitution>,
    ) -> Self {
        PieceNormalizer { options, symbols, substitutions }
    }

    /// Normalizes a text in place and keeps its alignment with the original.
    pub(crate) fn normalize(&self, text: &mut NormalizedString) {
        let source = text.get().to_owned();
        let output = self.output(&source);
        if output.is_empty() {
            text.clear();
            return;
        }
        let (changes, removed) = changes(&source, &output);
        text.transform(changes, removed);
    }

    /// Returns the normalized characters, each with the range of the source for which it stands.
    fn output(&self, source: &str) -> Vec<(char, usize, usize)> {
        let trims = self.options.remove_extra_whitespaces;
        let space = if self.options.escape_whitespaces { SPACE } else { ' ' };
        let mut output = Output::default();
        let mut at = 0;
        if trims {
            while at < source.len() {
                let (text, length) = self.next(source, at);
                if text != " " {
                    break;
                }
                at += length;
            }
        }
        if at == source.len() {
            return Vec::new();
        }
        if self.options.add_dummy_prefix {
            output.chars.push((space, at, at));
        }
        let mut after_space = trims;
        while at < source.len() {
            let (text, length) = self.next(source, at);
            let text = if after_space { text.trim_start_matches(' ') } else { text };
            for c in text.chars() {
                output.chars.push((if c == ' ' { space } else { c }, at, at + length));
            }
            if !text.is_empty() {
                after_space = trims && text.ends_with(' ');
            }
            at += length;
        }
        while trims && output.chars.last().is_some_and(|&(c, ..)| c == space) {
            output.chars.pop();
        }
        output.chars
    }

    /// Returns the normalized text of the next characters of a text, and their length.
    fn next<'a>(&'a self, text: &'a str, at: usize) -> (&'a str, usize) {
        let rest = &text[at..];
        if let Some(found) = self.substitutions.iter().find(|item| rest.starts_with(&item.from)) {
            return (&found.to, found.from.len());
        }
        if let Some(length) = self.symbols.longest_at(text, at) {
            return (&rest[..length], length);
        }
        if let Some((length, replacement)) =
            self.options.chars_map.as_ref().and_then(|chars_map| chars_map.longest(rest))
        {
            return (replacement, length);
        }
        let length = rest.chars().next().map_or(0, char::len_utf8);
        (&rest[..length], length)
    }
}

/// Converts the characters to the changes that the library expects: 1 for an inserted character,
/// and `-n` for one that replaces itself and `n` more. Also returns the number of characters that
/// are removed from the beginning.
fn changes(source: &str, output: &[(char, usize, usize)]) -> (Vec<(char, isize)>, usize) {
    let count = |from: usize, to: usize| source[from..to].chars().count();
    let mut changes: Vec<(char, isize)> = Vec::with_capacity(output.len());
    // The end of the source that is consumed, and the last character that consumes some of it.
    let (mut consumed, mut last) = (0, None::<usize>);
    let mut removed = 0;
    for &(c, from, to) in output {
        if to <= consumed {
            changes.push((c, 1));
            continue;
        }
        let skipped = count(consumed, from);
        if skipped > 0 {
            match last {
                Some(last) => changes[last].1 -= skipped as isize,
                None => removed += skipped,
            }
            consumed = from;
        }
        if from == to {
            changes.push((c, 1));
            continue;
        }
        changes.push((c, 1 - count(from, to) as isize));
        (consumed, last) = (to, Some(changes.len() - 1));
    }
    let rest = count(consumed, source.len());
    if let Some(last) = last {
        changes[last].1 -= rest as isize;
    }
    (changes, removed)
}
