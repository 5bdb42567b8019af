//! From text to text, without HTTP.

use proptest::prelude::*;

use super::*;
use crate::test_support::{self, FakeEngine, Script};
use crate::text::StopText;

fn service(engine: &FakeEngine) -> Service {
    let model = ModelInfo { id: "m".into(), sha: None, pipeline_tag: None };
    Service::new(&test_support::assets(), engine.engine.clone(), Limits::default(), model).unwrap()
}

fn prompt() -> Prompt {
    Prompt::Text("p".into(), Specials::Add)
}

/// The answer by a plain search of the whole text, each stop string by itself.
fn expected(said: &str, stops: &[String], mode: StopText) -> String {
    let ends = (1..=said.len()).filter(|&end| said.is_char_boundary(end));
    for end in ends {
        let found = stops.iter().filter(|stop| said[..end].ends_with(*stop)).map(String::len).max();
        if let Some(length) = found {
            return said[..if mode == StopText::Keep { end } else { end - length }].to_owned();
        }
    }
    said.to_owned()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_parts_of_a_stream_are_the_whole_answer(
        said in "[abü€😀]{0,12}",
        stops in proptest::collection::vec("[abü€]{1,3}", 0..4),
        keep in any::<bool>(),
    ) {
        let mode = if keep { StopText::Keep } else { StopText::Remove };
        let params = Params { stop: stops.clone(), stop_text: mode, ..Params::default() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (parts, whole) = runtime.block_on(async {
            let engine = FakeEngine::new(Script::Say(said.clone()), 8);
            let stream = service(&engine).generate(prompt(), params).await.unwrap();
            let answer = stream.collect().await.unwrap();
            let parts: Vec<_> = answer.tokens.iter().map(|event| event.text.clone()).collect();
            (parts, answer.finished.text)
        });
        prop_assert_eq!(&parts.concat(), &whole);
        prop_assert_eq!(whole, expected(&said, &stops, mode));
    }
}

#[tokio::test]
async fn an_answer_cut_within_a_character_is_flushed() {
    let engine = FakeEngine::new(Script::Say("a€".into()), 8);
    let params = Params { max_new_tokens: Some(3), ..Params::default() };
    let answer = service(&engine).generate(prompt(), params).await.unwrap().collect().await.unwrap();
    assert_eq!((answer.finished.text.as_str(), answer.finished.reason), ("a\u{FFFD}", FinishReason::Length));
    assert_eq!(answer.finished.generated_tokens, 3);
}

#[tokio::test]
async fn a_stop_string_may_name_a_special_token() {
    let mut engine = FakeEngine::new(Script::Say("a".into()), 8);
    let params = Params { stop: vec!["<s>".into(), "x".into()], ..Params::default() };
    service(&engine).generate(prompt(), params).await.unwrap();
    let request = engine.requests.recv().await.unwrap();
    assert_eq!(&*request.stop_tokens, [test_support::EOS, test_support::BOS]);
}

#[tokio::test]
async fn nothing_waits_beyond_the_limit() {
    let engine = FakeEngine::new(Script::Say("a".into()), 8);
    let service = service(&engine);
    let places = service.0.entrance.try_acquire_many(128).unwrap();
    let refused = service.prepare(prompt(), Params::default()).await.unwrap_err();
    assert_eq!(refused, ServiceError::Overloaded { retry_after: std::time::Duration::from_secs(1) });
    drop(places);
    assert!(service.prepare(prompt(), Params::default()).await.is_ok());
}
