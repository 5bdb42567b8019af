//! Compares chunked encoding with the library's tokens of the whole text, and tests special tokens
//! in literal ranges.
#![allow(clippy::single_range_in_vec_init, reason = "a single literal range is intended")]

use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::*;
use crate::SpecialTokens;
use crate::assets::TextAssets;
use crate::split_points::SplitPoints;
use crate::test_support::{self, BOS, EOS};

fn demo() -> Tokenizer {
    let tokenizer = include_bytes!("../../../../models/demo/tokenizer.json").to_vec();
    Tokenizer::new(&TextAssets { tokenizer: tokenizer.into(), ..TextAssets::default() }).unwrap()
}

/// Texts of words, lines, punctuation, other scripts and special tokens.
fn texts() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        4 => "[a-zA-Z]{1,8}",
        4 => Just(" ".to_owned()),
        1 => Just("\n".to_owned()),
        1 => Just("  ".to_owned()),
        1 => "[0-9.,'<>|/]{1,4}",
        1 => "[éü中文😀]{1,3}",
        1 => Just("<|im_end|>".to_owned()),
        1 => Just("<s>".to_owned()),
    ];
    prop::collection::vec(part, 0..80).prop_map(|parts| parts.concat())
}

/// Encodes the chunks of a text one after the other. Returns their tokens and the number of chunks.
fn encode_in_chunks(tokenizer: &Tokenizer, text: &RenderedPrompt, min_bytes: usize) -> (EncodedText, usize) {
    let chunks = tokenizer.chunks(&text.text, min_bytes);
    let mut all = EncodedText::default();
    for &chunk in &chunks {
        all.append(tokenizer.encode_chunk(text, chunk).unwrap());
    }
    (all, chunks.len())
}

fn check_chunks_match_whole(tokenizer: &Tokenizer) {
    let cut = AtomicBool::new(false);
    proptest!(ProptestConfig::with_cases(300), |(text in texts(), min_bytes in 1usize..40)| {
        let whole = tokenizer.encode_now(&text, SpecialTokens::Omit).unwrap();
        let (parts, count) = encode_in_chunks(tokenizer, &text.into(), min_bytes);
        prop_assert_eq!(parts, whole);
        cut.fetch_or(count > 3, Ordering::Relaxed);
    });
    assert!(cut.load(Ordering::Relaxed), "nothing was cut");
}

#[test]
fn chunks_of_a_byte_tokenizer_match_the_whole() {
    check_chunks_match_whole(&test_support::tokenizer());
}

#[test]
fn chunks_of_the_demo_tokenizer_match_the_whole() {
    check_chunks_match_whole(&demo());
}

#[test]
#[ignore = "needs the published tokenizer of MILLRACE_TEST_DATA"]
fn chunks_of_published_tokenizers_match_the_whole() {
    let tokenizer = test_support::published_tokenizer();
    assert!(tokenizer.split_points().any());
    check_chunks_match_whole(&tokenizer);
}

#[test]
fn a_token_that_spans_words_forbids_splits_between_words() {
    let tokenizer = test_support::tokenizer();
    let encode = |text: &str| tokenizer.encode_now(text, SpecialTokens::Omit).ok();
    let split_points = |token: &'static [u8]| SplitPoints::of(encode, [token].into_iter());
    assert!(split_points(b"of").first("a b of the c", 4..20).is_some());
    assert_eq!(split_points(b"of the").first("a b of the c", 4..20), None);
    assert!(split_points(b"of the").first("a b of\nthe c", 4..20).is_some());
    assert!(!split_points(b"of the\nx").any());
}

#[test]
fn literal_special_tokens_are_ordinary_text() {
    let tokenizer = test_support::tokenizer();
    let text = "<s>a</s>b</s>";
    let encode = |literal: Vec<_>| {
        let text = RenderedPrompt { text: text.into(), literal };
        tokenizer.encode_rendered_now(&text, SpecialTokens::Omit).unwrap()
    };
    let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    assert_eq!(encode(vec![]).ids, [BOS, 97, EOS, 98, EOS]);
    assert_eq!(encode(vec![4..8]).ids, [&[BOS, 97][..], &bytes("</s>b"), &[EOS]].concat());
    assert_eq!(encode(vec![0..3, 4..8, 9..13]).ids, bytes(text));
    let encoded = encode(vec![4..8]);
    let covered: String =
        encoded.offsets.iter().map(|&(from, to)| &text[from as usize..to as usize]).collect();
    assert_eq!(covered, text);
    // The tokens that the tokenizer adds are not affected by literal ranges.
    let rendered = RenderedPrompt { text: text.into(), literal: vec![0..3] };
    assert_eq!(tokenizer.encode_rendered_now(&rendered, SpecialTokens::Add).unwrap().ids[0], BOS);
}

fn literal_ranges_change_nothing_else(tokenizer: &Tokenizer) {
    proptest!(ProptestConfig::with_cases(200), |(text in texts(), places in prop::collection::vec(any::<prop::sample::Index>(), 1..4))| {
        let whole = tokenizer.encode_now(&text, SpecialTokens::Omit).unwrap();
        // Literal ranges without special tokens do not change the tokens, with and without chunks.
        let specials: Vec<_> = ["<|im_end|>", "<s>", "</s>"].iter().flat_map(|mark| text.match_indices(mark)).collect();
        let mut literal: Vec<usize> = places.iter().map(|place| place.index(text.len() + 1)).collect();
        literal.sort_unstable();
        literal.dedup();
        let free = |at: &usize| text.is_char_boundary(*at) && *at < text.len()
            && !specials.iter().any(|(from, mark)| (*from..from + mark.len()).contains(at));
        let literal: Vec<_> = literal.into_iter().filter(free).map(|at| at..at + 1).collect();
        let rendered = RenderedPrompt { text, literal };
        prop_assert_eq!(&tokenizer.encode_rendered_now(&rendered, SpecialTokens::Omit).unwrap(), &whole);
        prop_assert_eq!(encode_in_chunks(tokenizer, &rendered, 20).0, whole);
    });
}

#[test]
fn literal_ranges_without_special_tokens_change_nothing() {
    literal_ranges_change_nothing_else(&test_support::tokenizer());
    literal_ranges_change_nothing_else(&demo());
}

#[test]
#[ignore = "needs the published tokenizer of MILLRACE_TEST_DATA"]
fn published_tokenizers_are_not_changed_by_literal_ranges() {
    literal_ranges_change_nothing_else(&test_support::published_tokenizer());
}
