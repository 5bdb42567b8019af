//! Tests of the service without HTTP.

use std::sync::Arc;

use millrace_proto::Ready;
use millrace_proto::rules::check_sampling;
use millrace_text::{SpecialTokens, StopText};
use proptest::prelude::*;

use super::*;
use crate::assets::Assets;
use crate::engine::{BlockHashes, EngineState};
use crate::test_support::{self, FakeEngine, Script};

fn service(engine: &FakeEngine) -> Service {
    let model = ModelInfo { id: "m".into(), ..ModelInfo::default() };
    Service::new(&test_support::assets(), engine.engine.clone(), RequestLimits::default(), model).unwrap()
}

fn prompt() -> Prompt {
    Prompt::Text("p".into(), SpecialTokens::Add)
}

/// The expected answer, found by a plain search of the whole text for each stop string.
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
    fn the_parts_of_a_stream_add_up_to_the_whole_answer(
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

/// Two answers to one prompt share its block hashes, which depend on the salt.
#[tokio::test]
async fn answers_to_one_prompt_share_their_block_hashes() {
    for length in [100, 1000] {
        let mut engine = FakeEngine::new(Script::Say("a".into()), 8);
        let service = service(&engine);
        let ids: Vec<u32> = (0..length).map(|id| id % 250).collect();
        let hashes = |salt: Option<Arc<str>>| Some(BlockHashes::of_prompt(&ids, None, salt.as_ref(), 16));
        for salt in [None, Some(Arc::from("me"))] {
            let params = Params { cache_salt: salt.clone(), max_new_tokens: Some(2), ..Params::default() };
            let prepared = service.prepare(Prompt::Ids(ids.clone()), params).await.unwrap();
            service.start_several(&prepared, 2).unwrap();
            for _ in 0..2 {
                let request = engine.requests.recv().await.unwrap();
                assert_eq!((&request.prompt, &request.block_hashes), (&ids, &hashes(salt.clone())));
            }
        }
        assert_ne!(hashes(None), hashes(Some("me".into())));
    }
}

#[tokio::test]
async fn no_request_waits_beyond_the_limit() {
    let engine = FakeEngine::new(Script::Say("a".into()), 8);
    let service = service(&engine);
    let tenant = crate::engine::Tenant::default();
    let places: Vec<_> = (0..128).map(|_| service.0.entrance.enter(&tenant, 128).unwrap()).collect();
    let refused = service.prepare(prompt(), Params::default()).await.unwrap_err();
    assert_eq!(refused, ServiceError::Overloaded { retry_after: std::time::Duration::from_secs(1) });
    drop(places);
    assert!(service.prepare(prompt(), Params::default()).await.is_ok());
}

/// Parameters of all kinds, valid and invalid.
fn any_params() -> impl Strategy<Value = Params> {
    let odd = || {
        prop_oneof![
            Just(0.0f32),
            Just(1.0),
            Just(f32::NAN),
            Just(f32::INFINITY),
            Just(-1.0),
            Just(1e-45),
            any::<f32>()
        ]
    };
    let number = move || prop::option::of(prop_oneof![2 => 0.01f32..0.99, 1 => 1.0f32..2.0, 1 => odd()]);
    let count = || prop_oneof![3 => 0u32..6, 1 => 0u32..400, 1 => any::<u32>()];
    let filters =
        (number(), prop::option::of(prop_oneof![0i64..50, any::<i64>()]), number(), number(), number());
    let penalties = (number(), number(), number());
    let bias = (
        prop_oneof![4 => 0u32..300, 1 => any::<u32>()],
        prop_oneof![4 => -100.0f32..100.0, 1 => any::<f32>()],
    );
    let lists = (prop::collection::vec(bias, 0..4), prop::collection::vec("(</s>|<s>|<x>|[a-c])", 0..5));
    let counts =
        (count(), prop::option::weighted(0.3, count()), count(), prop::option::weighted(0.7, count()));
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), 0u8..4, any::<u64>());
    (filters, penalties, lists, counts, flags).prop_map(|(filters, penalties, lists, counts, flags)| {
        let (temperature, top_k, top_p, typical_p, min_p) = filters;
        let (repetition_penalty, frequency_penalty, presence_penalty) = penalties;
        let (logit_bias, stop) = lists;
        let (top_n, prompt_logprobs, min_new_tokens, max_new_tokens) = counts;
        let (do_sample, warped_logprobs, ignore_eos, watermark, pooled, seed) = flags;
        let pooling = [None, None, None, Some(Pooling::Mean)][pooled as usize];
        Params {
            max_new_tokens: if pooling.is_some() { Some(0) } else { max_new_tokens },
            echoes: pooling.is_some(),
            do_sample,
            temperature,
            top_k,
            top_p,
            typical_p,
            min_p,
            repetition_penalty,
            frequency_penalty,
            presence_penalty,
            logit_bias,
            seed: Some(seed),
            stop,
            top_n,
            warped_logprobs,
            ignore_eos,
            min_new_tokens,
            prompt_logprobs,
            pooling,
            watermark,
            ..Params::default()
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// The rules of the shards and the scheduler accept every request that the service accepts. The
    /// model may have fewer tokens than the tokenizer, even without the end tokens, and the
    /// operator may allow more alternatives than the shards report.
    #[test]
    fn every_accepted_request_is_accepted_by_the_shards(
        params in any_params(),
        prompt in prop_oneof![
            "[a-c\u{e9}]{0,5}(<x>)?".prop_map(|text| Prompt::Text(text, SpecialTokens::Add)),
            prop::collection::vec(0u32..300, 0..5).prop_map(Prompt::Ids),
        ],
        vocab_size in prop_oneof![1u32..300, Just(257), Just(258), Just(259)],
        max_top_n_tokens in prop_oneof![Just(5u32), Just(1000)],
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let checked = runtime.block_on(async {
            let engine = FakeEngine::new(Script::Say("a".into()), 8);
            let ready = Ready { vocab_size, ..(*engine.ready()).clone() };
            engine.state.send_replace(EngineState::Ready(Arc::new(ready.clone())));
            let model = ModelInfo { id: "m".into(), ..ModelInfo::default() };
            let limits = RequestLimits { max_top_n_tokens, ..RequestLimits::default() };
            let text = millrace_text::test_support::assets_with(&["<x>"]);
            let assets = Assets { text, ..Assets::default() };
            let service = Service::new(&assets, engine.engine.clone(), limits, model).unwrap();
            let good = params.check(service.limits(), &ready).is_ok();
            match service.prepare(prompt, params).await {
                Ok(prepared) => Some((prepared.request, ready, good)),
                Err(ServiceError::Validation { param, .. }) => {
                    // The service's own checks must find every error before `check_sampling` does.
                    assert_ne!(param, "parameters");
                    None
                }
                Err(ServiceError::ContextLength(_)) => None,
                Err(other) => panic!("{other}"),
            }
        });
        if let Some((request, ready, good)) = checked {
            prop_assert!(good);
            prop_assert_eq!(check_sampling(&request.sampling, vocab_size as usize), Ok(()));
            prop_assert!(request.prompt.iter().all(|&token| token < vocab_size));
            let limits = millrace_scheduler::SchedulerLimits::new(&ready).unwrap();
            let mut scheduler = millrace_scheduler::Scheduler::new(limits, millrace_scheduler::SchedulerOptions::default());
            prop_assert!(scheduler.add(request.clone()).is_ok(), "{:?}", request);
            prop_assert!(scheduler.plan().is_some());
        }
    }
}

#[tokio::test]
async fn a_prompt_with_a_token_outside_the_vocabulary_is_refused() {
    let engine = FakeEngine::new(Script::Say("a".into()), 8);
    let ready = Ready { vocab_size: 200, ..(*engine.ready()).clone() };
    engine.state.send_replace(EngineState::Ready(Arc::new(ready)));
    let service = service(&engine);
    for pooling in [None, Some(Pooling::Last)] {
        let text = Prompt::Text("a\u{f8ff}".into(), SpecialTokens::Omit);
        let error = service.prepare(text, Params { pooling, ..Params::default() }).await.unwrap_err();
        let ServiceError::Validation { param: "inputs", detail } = error else { panic!("{error:?}") };
        assert!(detail.contains("outside of the vocabulary of 200"), "{detail}");
    }
}

#[test]
fn answers_to_one_prompt_share_no_seeds_with_requests_of_neighbouring_seeds() {
    let mut seeds: Vec<u64> =
        (0..100).flat_map(|seed| (0..16).map(move |index| variant_seed(seed, index))).collect();
    assert_eq!(variant_seed(7, 0), 7);
    seeds.sort_unstable();
    seeds.dedup();
    assert_eq!(seeds.len(), 1600);
}
