//! Compares ids from the cache with those of whole texts, for tokenizers of all kinds, and tests
//! which texts share ids.

use millrace_text::PieceSizes;
use millrace_text::assets::TextAssets;
use millrace_text::test_support::{self, tokenizers_of_all_kinds};
use proptest::prelude::*;
use proptest::test_runner::{TestCaseResult, TestRunner};

use super::cached::Group;
use super::*;

const SIZES: PieceSizes = PieceSizes { to_mark: 8, to_word: 24 };

fn with_cache(tokenizer: &Tokenizer, limit: usize) -> TextEncoder {
    let mut encoder = TextEncoder::new(tokenizer.clone(), 2, 0);
    encoder.cache = Some(PieceCache::with_sizes(limit, SIZES));
    encoder
}

fn asked(text: impl Into<RenderedPrompt>, specials: SpecialTokens, salt: Option<&str>) -> TextToEncode {
    TextToEncode { text: text.into(), specials, salt: salt.map(Into::into) }
}

async fn ids(encoder: &TextEncoder, text: TextToEncode, needed: NeededTokens) -> Result<Vec<u32>, TextError> {
    encoder.ids(text, needed, &Tenant::default()).await
}

/// The messages of a conversation: special tokens with white space, words and other scripts.
fn messages(specials: Vec<String>) -> impl Strategy<Value = Vec<String>> {
    let part = prop_oneof![
        4 => "[a-zA-Z]{1,8}",
        4 => Just(" ".to_owned()),
        1 => "[ \n\t]{1,3}",
        1 => "[0-9.,'<>|/_-]{1,4}",
        1 => "[éü中文😀\u{301}]{1,3}",
        2 => prop::sample::select(specials),
    ];
    let message = prop::collection::vec(part, 1..30).prop_map(|parts| parts.concat());
    prop::collection::vec(message, 1..5)
}

/// Makes the first occurrence of `mark` literal.
fn with_literal(text: String, mark: &str) -> RenderedPrompt {
    let literal = text.find(mark).map(|at| at..at + mark.len()).into_iter().collect();
    RenderedPrompt { text, literal }
}

/// Checks the turns of a conversation, each of which is the text of the turn before and one more
/// message. The caches are shared with other conversations.
async fn check_turns(encoders: &[TextEncoder], messages: &[String], mark: &str) -> TestCaseResult {
    let tokenizer = &encoders[0].tokenizer;
    for turn in 1..=messages.len() {
        let plain: RenderedPrompt = messages[..turn].concat().into();
        for text in [with_literal(plain.text.clone(), mark), plain] {
            for (specials, salt) in [(SpecialTokens::Omit, None), (SpecialTokens::Add, Some("a"))] {
                let Ok(whole) = tokenizer.encode_rendered_now(&text, specials) else { continue };
                for encoder in encoders {
                    let asked = || asked(text.clone(), specials, salt);
                    let all = ids(encoder, asked(), NeededTokens::First(usize::MAX)).await;
                    prop_assert_eq!(all.as_ref(), Ok(&whole.ids));
                    for keep in [0, 1, whole.ids.len() / 2, whole.ids.len()] {
                        let last = ids(encoder, asked(), NeededTokens::Last(keep)).await.unwrap();
                        prop_assert!(whole.ids.ends_with(&last) && last.len() >= keep.min(whole.ids.len()));
                        let first = ids(encoder, asked(), NeededTokens::First(keep)).await.unwrap();
                        prop_assert!(whole.ids.starts_with(&first));
                        prop_assert!(first.len() > keep || first.len() == whole.ids.len());
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn conversations_have_the_ids_of_their_whole_texts() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for (name, tokenizer) in tokenizers_of_all_kinds() {
        if !tokenizer.has_exact_pieces() {
            continue;
        }
        let texts = tokenizer.special_ids().iter().filter_map(|&id| tokenizer.vocabulary_text(id));
        let specials: Vec<String> =
            texts.filter(|text| !text.is_empty()).take(5).chain(["<x>".to_owned()]).collect();
        // The second cache forgets pieces of the same text.
        let encoders = [1_000_000, 1000].map(|limit| with_cache(&tokenizer, limit));
        let config = ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() };
        let test = |messages: Vec<String>| runtime.block_on(check_turns(&encoders, &messages, &specials[0]));
        TestRunner::new(config)
            .run(&messages(specials.clone()), test)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// Returns the numbers of groups that are known and missing.
async fn groups(encoder: &TextEncoder, text: &RenderedPrompt, salt: Option<&str>) -> (usize, usize) {
    let cache = encoder.cache.clone().unwrap();
    let (_, groups) = encoder.look_up(cache, text.clone(), salt.map(Into::into)).await.unwrap();
    let known = groups.iter().filter(|group| matches!(group, Group::Known(_))).count();
    (known, groups.len() - known)
}

/// Encodes a text and returns the numbers of groups that were known and missing before.
async fn groups_and_encode(
    encoder: &TextEncoder,
    text: &RenderedPrompt,
    salt: Option<&str>,
) -> (usize, usize) {
    let found = groups(encoder, text, salt).await;
    let text = asked(text.clone(), SpecialTokens::Omit, salt);
    ids(encoder, text, NeededTokens::First(usize::MAX)).await.unwrap();
    found
}

#[tokio::test]
async fn only_texts_of_the_same_salt_and_literals_share_ids() {
    let encoder = with_cache(&test_support::tokenizer(), 1_000_000);
    let text: RenderedPrompt = "<s>some words of a user</s><s>and an answer</s>".to_owned().into();
    for salt in [None, Some(""), Some("a"), Some("b")] {
        assert_eq!(groups_and_encode(&encoder, &text, salt).await, (0, 1), "{salt:?}");
        assert_eq!(groups_and_encode(&encoder, &text, salt).await, (3, 0), "{salt:?}");
    }
    let literal = with_literal(text.text.clone(), "</s>");
    assert_eq!(groups_and_encode(&encoder, &literal, None).await.0, 0);
    assert_eq!(groups_and_encode(&encoder, &literal, None).await.1, 0);
}

#[tokio::test]
async fn only_new_pieces_of_a_conversation_are_encoded() {
    let encoder = with_cache(&test_support::tokenizer(), 1_000_000);
    let turn = |number: usize| format!("<s>user {number}</s><s>answer {number}</s>");
    let first = (0..20).map(turn).collect::<String>();
    assert_eq!(groups_and_encode(&encoder, &first.clone().into(), None).await, (0, 1));
    let known = groups(&encoder, &first.clone().into(), None).await.0;
    assert!(known >= 40, "{known}");
    // One more turn: only the last piece of the text before has changed.
    let second = first.clone() + &turn(20);
    let found = groups_and_encode(&encoder, &second.into(), None).await;
    assert!(found.0 + 1 >= known && found.1 == 1, "{found:?} of {known}");
    // Another beginning: the pieces behind it are the same.
    let other = format!("<s>another beginning</s>{first}");
    let found = groups_and_encode(&encoder, &other.into(), None).await;
    assert!(found.0 + 1 >= known && found.1 == 1, "{found:?} of {known}");
}

#[tokio::test]
async fn tokenizers_whose_pieces_are_not_exact_and_a_limit_of_zero_have_no_cache() {
    let folder = "../integration-tests/golden/tokenizers/unigram_unused";
    let unigram = Tokenizer::new(&TextAssets::from_dir(folder.as_ref()).unwrap()).unwrap();
    assert!(TextEncoder::new(unigram, 1, 1_000_000).cache.is_none());
    assert!(TextEncoder::new(test_support::tokenizer(), 1, 0).cache.is_none());
    assert!(TextEncoder::new(test_support::tokenizer(), 1, 1_000_000).cache.is_some());
}

#[tokio::test]
async fn a_prompt_that_fills_several_turns_has_the_ids_of_its_whole_text() {
    let encoder = TextEncoder::new(test_support::tokenizer(), 1, 1_000_000);
    let text: String = (0..8000).map(|i| format!("word{i} and some more, \n")).collect();
    assert!(text.len() > 4 * CHUNK_BYTES);
    let whole = encoder.tokenizer.encode_now(&text, SpecialTokens::Add).unwrap().ids;
    for missing in [4..8, 0..1] {
        let found = groups(&encoder, &text.clone().into(), None).await.1;
        assert!(missing.contains(&found), "{found}");
        let asked = asked(text.clone(), SpecialTokens::Add, None);
        assert_eq!(ids(&encoder, asked, NeededTokens::First(usize::MAX)).await.unwrap(), whole);
    }
}
