//! Requests that go well, go away, or are drained.

use std::time::Duration;

use super::fake::{FakeShard, engine_over, serving};
use super::{config, each_gets_what_it_gets_alone, listen, request, soon, told_alone, until, until_ready};
use crate::engine::{EngineConfig, Event, Pooling, Refused, Request, State};

const OPEN: usize = 1 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_at_once_get_what_each_gets_alone() {
    let (engine, ..) = serving(OPEN).await;
    let requests: Vec<_> =
        (0..64).map(|i| request(i, 1 + (i as usize * 37) % 300, 1 + (i as u32 * 13) % 90)).collect();
    each_gets_what_it_gets_alone(&engine, &requests).await;
}

#[tokio::test]
async fn prompts_are_scored_once_and_may_be_all_that_is_wanted() {
    let (engine, ..) = serving(OPEN).await;
    let scored = |i: u64| Request {
        prompt_logprobs: (!i.is_multiple_of(3)).then_some(i as u32 % 4),
        pooling: [None, None, Some(Pooling::Last), Some(Pooling::Mean)][(i / 4 % 4) as usize],
        ..request(i % 5, 1 + (i as usize * 37) % 300, i as u32 % 4)
    };
    let requests: Vec<_> = (0..64).map(scored).collect();
    each_gets_what_it_gets_alone(&engine, &requests).await;
}

#[tokio::test]
async fn over_the_limit_is_refused_at_once() {
    let (engine, _task, control, _shard) = serving(0).await;
    let held: Vec<_> = (0..64).map(|i| engine.submit(request(i, 10, 10)).unwrap()).collect();
    let refused = engine.submit(request(99, 10, 10)).unwrap_err();
    assert!(matches!(refused, Refused::Overloaded { .. }), "{refused}");
    let too_large = engine.submit(request(0, 395, 6)).unwrap_err();
    assert!(matches!(&too_large, Refused::TooLarge(text) if text.contains("400")), "{too_large}");
    control.gate.add_permits(OPEN);
    for generation in held {
        assert!(listen(generation).await.finish.is_some());
    }
    assert!(engine.submit(request(99, 10, 10)).is_ok());
}

#[tokio::test]
async fn dropped_requests_hold_nothing_in_the_next_plan() {
    let (engine, _task, mut control, _shard) = serving(0).await;
    // Eight run (in all slots), the others wait.
    let mut leaving: Vec<_> = (0..30).map(|i| engine.submit(request(i, 60, 300)).unwrap()).collect();
    for _ in 0..12 {
        soon("a step", control.steps.recv()).await.unwrap();
        control.gate.add_permits(1);
    }
    soon("a step", control.steps.recv()).await.unwrap();
    assert!(matches!(leaving[0].next().await, Some(Event::Started(_))));
    assert!(matches!(leaving[0].next().await, Some(Event::Token(..))));
    drop(leaving);
    let staying = request(7, 100, 20);
    let generation = engine.submit(staying.clone()).unwrap();
    control.gate.add_permits(2);
    // This one was on its way already.
    soon("a step", control.steps.recv()).await.unwrap();
    let step = soon("a step", control.steps.recv()).await.unwrap();
    // The fake shard checks that whoever is not released keeps its slot and its blocks.
    assert_eq!((step.admit.len(), step.rows.len()), (1, 1), "{step:?}");
    assert!(!step.release.is_empty());
    control.gate.add_permits(OPEN);
    assert_eq!(listen(generation).await, told_alone(&staying));
    assert_eq!(engine.in_flight(), 0);
}

#[tokio::test]
async fn draining_ends_what_runs_and_waits_then_the_shards() {
    let (engine, task, control, shard) = serving(2).await;
    let requests: Vec<_> = (0..20).map(|i| request(i, 50, 40)).collect();
    let held: Vec<_> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    engine.drain();
    assert_eq!(until(&engine, "draining", |state| *state == State::Draining).await, State::Draining);
    let refused = engine.submit(request(0, 10, 10)).unwrap_err();
    assert!(matches!(refused, Refused::Unavailable(_)), "{refused}");
    control.gate.add_permits(OPEN);
    for (request, generation) in requests.iter().zip(held) {
        assert_eq!(listen(generation).await, told_alone(request));
    }
    soon("the shard's end", shard).await.expect("it was told to shut down");
    soon("the engine's end", task).await.unwrap();
}

#[tokio::test]
async fn draining_has_a_deadline() {
    let (shard, _control, stream) = FakeShard::new(3);
    let shard = tokio::spawn(shard.serve());
    let short = EngineConfig {
        drain_timeout: Duration::from_millis(100),
        shutdown_grace: Duration::from_millis(100),
        ..config()
    };
    let (engine, task) = engine_over(short, stream);
    until_ready(&engine).await;
    let held: Vec<_> = (0..20).map(|i| engine.submit(request(i, 50, 40)).unwrap()).collect();
    engine.drain();
    for generation in held {
        assert_eq!(listen(generation).await.failed.as_deref(), Some("Server is shutting down"));
    }
    soon("the engine's end", task).await.unwrap();
    assert_eq!(engine.in_flight(), 0);
    shard.abort();
}

#[tokio::test]
async fn dropping_every_handle_is_a_drain() {
    let (engine, task, _control, shard) = serving(OPEN).await;
    let wanted = request(3, 20, 30);
    let generation = engine.submit(wanted.clone()).unwrap();
    drop(engine);
    assert_eq!(listen(generation).await, told_alone(&wanted));
    soon("the engine's end", task).await.unwrap();
    soon("the shard's end", shard).await.unwrap();
}
