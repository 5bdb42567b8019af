//! Added tokens in front of which a text can be split, such as the marks at which turns begin.
//!
//! The library finds added tokens before it does anything else, and it treats the text between two
//! of them by itself. Therefore a text can be split in front of an added token without a change of
//! its tokens, if the following holds for that token:
//!
//! - The library looks for it in the text that is not normalized, and whatever surrounds it. It
//!   takes no white space from its neighbors.
//! - It begins with punctuation. Then the end of the first part looks to other added tokens as the
//!   place before the mark did.
//! - It does not overlap a token that the library finds in the normalized text.
//! - Sample texts around it have the same tokens in two parts as in one.
//!
//! The second part begins with the mark itself, and not after it: some tokenizers treat the
//! beginning of a whole text differently.

use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::AddedToken;

use super::encoded::EncodedText;
use super::split_points::SplitPoint;
use super::vocabulary::Library;

/// The maximum number of tokens that are tried. Vocabularies list the marks of turns among the
/// first ones, and reserve further tokens that no template uses.
const MAX_TRIED: usize = 512;

/// The texts around a mark in the samples.
const NEIGHBORS: [&str; 8] = ["", "a", "Z ", " .", "\n", "\n\n7", " é", "中"];

/// The added tokens of a tokenizer in front of which texts can be split.
#[derive(Debug, Default)]
pub(super) struct CutMarks {
    /// Finds all added tokens that the library finds in the text that is not normalized, as the
    /// library does. `None` if no text can be split in front of any of them.
    matcher: Option<AhoCorasick>,
    /// Whether texts can be split in front of a token, by its number in the automaton.
    is_cut: Vec<bool>,
}

impl CutMarks {
    /// Determines the marks of a tokenizer. `encode` adds no special tokens.
    pub(super) fn of(library: &Library, encode: impl Fn(&str) -> Option<EncodedText>) -> CutMarks {
        let mut added: Vec<(u32, AddedToken)> = library.get_added_tokens_decoder().into_iter().collect();
        added.sort_unstable_by_key(|(id, _)| *id);
        let (normalized, plain): (Vec<_>, Vec<_>) =
            added.into_iter().map(|(_, token)| token).partition(|token| token.normalized);
        if plain.iter().any(|token| token.content.is_empty()) {
            return CutMarks::default();
        }
        let neighbors: Option<Vec<_>> = NEIGHBORS.iter().map(|text| Some((*text, encode(text)?))).collect();
        let Some(neighbors) = neighbors else { return CutMarks::default() };
        let is_free =
            |mark: &AddedToken| !normalized.iter().any(|token| overlaps(&token.content, &mark.content));
        let is_cut: Vec<bool> = plain
            .iter()
            .enumerate()
            .map(|(number, mark)| {
                let is_tried = number < MAX_TRIED && stands_alone(mark) && is_free(mark);
                is_tried && splits_samples(&mark.content, &neighbors, &encode)
            })
            .collect();
        if !is_cut.contains(&true) {
            return CutMarks::default();
        }
        let builder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(plain.iter().map(|token| &token.content));
        CutMarks { matcher: builder.ok(), is_cut }
    }

    /// Returns the places in front of the marks of a text, in ascending order. A mark that overlaps
    /// one of the `literal` ranges is ordinary text.
    pub(super) fn places(&self, text: &str, literal: &[Range<usize>]) -> impl Iterator<Item = usize> {
        let found = self.matcher.iter().flat_map(move |matcher| matcher.find_iter(text));
        let is_cut = |number: usize| self.is_cut.get(number).copied().unwrap_or(false);
        found
            .filter(move |found| is_cut(found.pattern().as_usize()))
            .map(|found| found.range())
            .filter(move |mark| {
                let near = literal.partition_point(|range| range.end <= mark.start);
                literal.get(near).is_none_or(|range| range.start >= mark.end)
            })
            .map(|mark| mark.start)
    }
}

/// Whether the library finds a token whatever surrounds it, and its neighbors do not depend on it.
fn stands_alone(token: &AddedToken) -> bool {
    let is_punctuation = |c: char| c.is_ascii_punctuation() && c != '_';
    let takes_nothing = !token.lstrip && !token.rstrip && !token.single_word;
    takes_nothing && token.content.chars().next().is_some_and(is_punctuation)
}

/// Whether an occurrence of `token` that begins before a `mark` can reach into it.
fn overlaps(token: &str, mark: &str) -> bool {
    token
        .char_indices()
        .skip(1)
        .any(|(at, _)| token[at..].starts_with(mark) || mark.starts_with(&token[at..]))
}

/// Whether the samples around a mark have the same tokens if they are split in front of it.
fn splits_samples(
    mark: &str,
    neighbors: &[(&str, EncodedText)],
    encode: &impl Fn(&str) -> Option<EncodedText>,
) -> bool {
    neighbors.iter().all(|(right, _)| {
        let second = format!("{mark}{right}");
        let Some(tokens) = encode(&second) else { return false };
        neighbors.iter().all(|(left, first)| {
            let place = SplitPoint::at_mark(left.len());
            let (mut parts, mut tokens) = (first.clone(), tokens.clone());
            place.shift(&mut tokens);
            parts.append(tokens);
            encode(&format!("{left}{second}")).as_ref() == Some(&parts)
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::assets::{TextAssets, TokenizerSource};
    use crate::{Tokenizer, test_support};

    /// Returns the byte tokenizer whose added token `</s>` has another property.
    fn with_property(name: &str, value: Value) -> Tokenizer {
        let mut assets = test_support::assets();
        let TokenizerSource::Json(json) = &assets.tokenizer else { panic!("not a tokenizer.json") };
        let mut file: Value = serde_json::from_slice(json).unwrap();
        file["added_tokens"][1][name] = value;
        assets.tokenizer = serde_json::to_vec(&file).unwrap().into();
        Tokenizer::new(&TextAssets { eos_token: None, eos_ids: vec![], ..assets }).unwrap()
    }

    fn places(tokenizer: &Tokenizer, text: &str, literal: &[std::ops::Range<usize>]) -> Vec<usize> {
        tokenizer.cut_marks().places(text, literal).collect()
    }

    #[test]
    fn texts_are_split_in_front_of_marks_that_stand_alone() {
        let text = "a</s> <s>b</s>";
        let plain = with_property("special", json!(true));
        assert_eq!(places(&plain, text, &[]), [1, 6, 10]);
        for name in ["lstrip", "rstrip", "single_word", "normalized"] {
            assert_eq!(places(&with_property(name, json!(true)), text, &[]), [6], "{name}");
        }
    }

    #[test]
    fn marks_in_literal_ranges_are_text() {
        let text = "a</s><s>b</s>";
        let literal = [1..5, 12..13];
        assert_eq!(places(&test_support::tokenizer(), text, &literal), [5]);
    }

    #[test]
    fn a_token_that_reaches_into_a_mark_is_found() {
        assert!(super::overlaps("x<|im", "<|im_start|>"));
        assert!(super::overlaps("x<s>y", "<s>"));
        assert!(!super::overlaps("<s>", "<s>"));
        assert!(!super::overlaps("<tool>", "<s>"));
    }
}
