//! Compares texts encoded in pieces with the library's tokens of the whole text, for tokenizers of
//! all kinds, and tests that a text which grows keeps its pieces.
#![allow(clippy::single_range_in_vec_init, reason = "a single literal range is intended")]

use std::cell::Cell;

use proptest::prelude::*;

use super::*;
use crate::SpecialTokens;
use crate::assets::{TextAssets, Vocabulary};
use crate::test_support::{self, test_data, tokenizers_of_all_kinds};

/// The texts of some special tokens, which may be marks.
fn special_texts(tokenizer: &Tokenizer) -> Vec<String> {
    let texts = tokenizer.special_ids().iter().filter_map(|&id| tokenizer.vocabulary_text(id));
    texts.filter(|text| !text.is_empty()).take(6).chain(["<|im_end|>".to_owned()]).collect()
}

/// Texts of special tokens with white space, words, lines and other scripts around them.
fn texts(specials: Vec<String>) -> impl Strategy<Value = String> {
    let part = prop_oneof![
        4 => "[a-zA-Z]{1,8}",
        4 => Just(" ".to_owned()),
        2 => "[ \n\t]{1,3}",
        1 => "[0-9.,'<>|/_-]{1,4}",
        1 => "[éü中文😀\u{301}]{1,3}",
        3 => prop::sample::select(specials),
    ];
    prop::collection::vec(part, 0..60).prop_map(|parts| parts.concat())
}

/// Makes some of the special tokens of a text literal, by the bits of `chosen`.
fn with_literals(text: String, specials: &[String], chosen: u32) -> RenderedPrompt {
    let mut found: Vec<_> = specials.iter().flat_map(|mark| text.match_indices(mark.as_str())).collect();
    found.sort_unstable();
    let mut literal: Vec<Range<usize>> = Vec::new();
    for (index, (at, mark)) in found.into_iter().enumerate() {
        let is_free = literal.last().is_none_or(|last| last.end <= at);
        if is_free && chosen.rotate_right(index as u32) & 1 == 1 {
            literal.push(at..at + mark.len());
        }
    }
    RenderedPrompt { text, literal }
}

/// Encodes the pieces of a text one after the other.
fn encode_in_pieces(tokenizer: &Tokenizer, text: &RenderedPrompt, sizes: PieceSizes) -> Option<EncodedText> {
    let mut all = EncodedText::default();
    for chunk in tokenizer.pieces(text, sizes) {
        all.append(tokenizer.encode_chunk(text, chunk).ok()?);
    }
    Some(all)
}

/// Checks texts of one tokenizer. Returns the number of pieces.
fn check(name: &str, tokenizer: &Tokenizer, cases: u32) -> usize {
    let (specials, count) = (special_texts(tokenizer), Cell::new(0));
    let inputs = (texts(specials.clone()), 1usize..30, 1usize..30, any::<u32>());
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let test = |(text, to_mark, to_word, chosen): (String, usize, usize, u32)| {
        let sizes = PieceSizes { to_mark, to_word };
        for chosen in [0, chosen] {
            let text = with_literals(text.clone(), &specials, chosen);
            let whole = tokenizer.encode_rendered_now(&text, SpecialTokens::Omit).ok();
            prop_assert_eq!(encode_in_pieces(tokenizer, &text, sizes), whole);
            let pieces = tokenizer.pieces(&text, sizes);
            count.set(count.get() + pieces.len());
            // A longer text has all of these pieces but the last one.
            let longer = RenderedPrompt { text: text.text.clone() + "\nuser: and more", ..text.clone() };
            let grown = tokenizer.pieces(&longer, sizes);
            let kept = pieces.len() - 1;
            prop_assert_eq!(&grown[..kept.min(grown.len())], &pieces[..kept]);
        }
        Ok(())
    };
    runner.run(&inputs, test).unwrap_or_else(|error| panic!("{name}: {error}"));
    count.get()
}

#[test]
fn pieces_have_the_tokens_of_the_whole_text() {
    let (exact, inexact): (Vec<_>, Vec<_>) =
        tokenizers_of_all_kinds().into_iter().partition(|(_, tokenizer)| tokenizer.has_exact_pieces());
    // Unigram models of SentencePiece do not separate words.
    assert!(inexact.iter().all(|(name, _)| name.starts_with("unigram")) && exact.len() >= 15);
    assert!(exact.iter().any(|(name, _)| name == "xlm_roberta_classes"), "a unigram model of words");
    for (name, tokenizer) in exact {
        let cases = 100;
        let count = check(&name, &tokenizer, cases);
        eprintln!("{name}: {count} pieces");
        assert!(count > 3 * cases as usize, "{name}: {count} pieces");
    }
}

#[test]
#[ignore = "needs the published tokenizers of MILLRACE_TEST_DATA"]
fn pieces_of_published_tokenizers_have_the_tokens_of_the_whole_text() {
    assert!(check("stories260k", &test_support::published_tokenizer(), 400) > 1500);
    for name in ["ggml-vocab-llama-spm.gguf", "ggml-vocab-gpt-2.gguf"] {
        let file = millrace_formats::Source::File(test_data("tokenizers").join(name));
        let vocabulary = Vocabulary::from_gguf(file.tokenizer_data().unwrap().unwrap()).unwrap();
        let assets = TextAssets { tokenizer: vocabulary.into(), ..TextAssets::default() };
        assert!(check(name, &Tokenizer::new(&assets).unwrap(), 400) > 1500, "{name}");
    }
}

#[test]
fn pieces_end_in_front_of_marks_and_between_words() {
    let tokenizer = test_support::tokenizer();
    let pieces = |text: &str, literal: Vec<Range<usize>>| -> Vec<String> {
        let text = RenderedPrompt { text: text.into(), literal };
        let sizes = PieceSizes { to_mark: 4, to_word: 8 };
        tokenizer.pieces(&text, sizes).into_iter().map(|piece| piece.text(&text).to_owned()).collect()
    };
    assert_eq!(
        pieces("<s>a</s><s>long words here</s>", vec![]),
        ["<s>a", "</s>", "<s>long words", " here", "</s>"]
    );
    // The first mark is literal, and the text behind it is too short for a piece.
    assert_eq!(pieces("<s>abc</s><s>b", vec![6..10]), ["<s>abc</s>", "<s>b"]);
    assert_eq!(pieces("", vec![]), [""]);
}
