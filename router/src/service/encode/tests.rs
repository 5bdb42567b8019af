//! Compares chunked encoding with the library's tokens of the whole text, and tests that short
//! texts do not wait.

use millrace_text::assets::TextAssets;
use millrace_text::test_support;

use super::*;

fn demo() -> Tokenizer {
    let tokenizer = include_bytes!("../../../../models/demo/tokenizer.json").to_vec();
    Tokenizer::new(&TextAssets { tokenizer: tokenizer.into(), ..TextAssets::default() }).unwrap()
}

/// Encodes a whole text.
async fn encode(
    encoder: &TextEncoder,
    text: impl Into<RenderedPrompt>,
    specials: SpecialTokens,
) -> EncodedText {
    encoder.encode_last(text, specials, usize::MAX, &Tenant::default()).await.unwrap()
}

#[tokio::test]
async fn long_texts_and_their_ends_have_the_librarys_tokens() {
    for tokenizer in [test_support::tokenizer(), demo()] {
        let encoder = TextEncoder::new(tokenizer.clone(), 2, 0);
        let text: String = (0..5_000).map(|i| format!("word{i} and some more, \n")).collect();
        assert!(text.len() > 3 * CHUNK_BYTES);
        for specials in [SpecialTokens::Add, SpecialTokens::Omit] {
            let whole = tokenizer.encode_now(&text, specials).unwrap();
            assert_eq!(encode(&encoder, text.clone(), specials).await, whole);
            for keep in [1, 1000, 20_000, whole.ids.len() - 1, whole.ids.len(), whole.ids.len() + 1] {
                let end =
                    encoder.encode_last(text.clone(), specials, keep, &Tenant::default()).await.unwrap();
                assert!(end.ids.len() >= keep.min(whole.ids.len()));
                assert!(whole.ids.ends_with(&end.ids) && whole.offsets.ends_with(&end.offsets), "{keep}");
                let first =
                    encoder.encode_first(text.clone(), specials, keep, &Tenant::default()).await.unwrap();
                assert!(first == whole || first.ids.len() > keep, "{keep}");
                assert!(whole.ids.starts_with(&first.ids) && whole.offsets.starts_with(&first.offsets));
            }
            // Tokens that are not requested are not computed.
            let end = encoder.encode_last(text.clone(), specials, 10, &Tenant::default()).await.unwrap();
            assert!(end.ids.len() < whole.ids.len() / 2, "{} of {}", end.ids.len(), whole.ids.len());
            let first = encoder.encode_first(text.clone(), specials, 10, &Tenant::default()).await.unwrap();
            assert!(first.ids.len() < whole.ids.len() / 2, "{} of {}", first.ids.len(), whole.ids.len());
        }
    }
}

#[tokio::test]
async fn a_short_text_does_not_wait_for_long_ones() {
    // There is one worker and much work for it.
    let encoder = TextEncoder::new(test_support::tokenizer(), 1, 0);
    let words = "some words and ".repeat(30_000);
    let run = "x".repeat(400_000);
    let long = [words.clone(), run.clone(), words, run];
    let long = long.map(|text| {
        tokio::spawn({
            let encoder = encoder.clone();
            async move { encode(&encoder, text, SpecialTokens::Omit).await.ids.len() }
        })
    });
    tokio::task::yield_now().await;
    for _ in 0..10 {
        assert_eq!(encode(&encoder, "short".to_owned(), SpecialTokens::Omit).await.ids.len(), 5);
    }
    assert!(long.iter().any(|task| !task.is_finished()), "nothing was left to do for the long texts");
    for task in long {
        assert!(task.await.unwrap() >= 400_000);
    }
}
