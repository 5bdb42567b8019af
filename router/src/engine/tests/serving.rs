//! Requests that complete, are cancelled, or are drained. The clock is paused where one thread
//! runs.

use std::time::Duration;

use millrace_proto::{Ready, from_shard};

use super::fake::{FakeShard, engine_over, serving};
use super::{
    assert_results_equal_runs_alone, config, listen, ready, received_alone, request, soon, until, until_ready,
};
use crate::engine::{Engine, EngineConfig, EngineState, GenerationEvent, Pooling, Request, SubmitError};

const OPEN: usize = 1 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_requests_at_once_get_the_results_of_runs_alone() {
    let (engine, ..) = serving(OPEN).await;
    let requests: Vec<_> =
        (0..64).map(|i| request(i, 1 + (i as usize * 37) % 300, 1 + (i as u32 * 13) % 90)).collect();
    assert_results_equal_runs_alone(&engine, &requests).await;
}

#[tokio::test(start_paused = true)]
async fn prompts_are_scored_once_with_and_without_new_tokens() {
    let (engine, ..) = serving(OPEN).await;
    let scored = |i: u64| Request {
        prompt_logprobs: (!i.is_multiple_of(3)).then_some(i as u32 % 4),
        pooling: [None, None, Some(Pooling::Last), Some(Pooling::Mean)][(i / 4 % 4) as usize],
        ..request(i % 5, 1 + (i as usize * 37) % 300, i as u32 % 4)
    };
    let requests: Vec<_> = (0..64).map(scored).collect();
    assert_results_equal_runs_alone(&engine, &requests).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_over_the_limit_is_refused_at_once() {
    let (engine, _task, control, _shard) = serving(0).await;
    let held: Vec<_> = (0..64).map(|i| engine.submit(request(i, 10, 10)).unwrap()).collect();
    let refused = engine.submit(request(99, 10, 10)).unwrap_err();
    assert!(matches!(refused, SubmitError::Overloaded { .. }), "{refused}");
    let too_large = engine.submit(request(0, 395, 6)).unwrap_err();
    assert!(matches!(&too_large, SubmitError::TooLarge(text) if text.contains("400")), "{too_large}");
    control.gate.add_permits(OPEN);
    for generation in held {
        assert!(listen(generation).await.finish.is_some());
    }
    assert!(engine.submit(request(99, 10, 10)).is_ok());
}

#[tokio::test(start_paused = true)]
async fn on_a_slow_device_a_new_request_is_part_of_the_next_step() {
    let (mut shard, mut control, stream) = FakeShard::new(0);
    let shard = tokio::spawn(async move {
        // Each step is expected to take minutes.
        let slow = Ready { warm_up_tokens: 1, warm_up_micros: 60_000_000, ..ready() };
        shard.send(from_shard::Message::Ready(slow)).await;
        shard.answer(3).await
    });
    let (engine, _task) = engine_over(config(), stream);
    until_ready(&engine).await;
    let _first = engine.submit(request(1, 20, 100)).unwrap();
    let step = soon("the first step", control.steps.recv()).await.unwrap();
    assert_eq!(step.admit.len(), 1);
    // If the second step were sent now, the shard would still have the first one.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let _newcomer = engine.submit(request(2, 20, 100)).unwrap();
    control.gate.add_permits(1);
    let step = soon("the second step", control.steps.recv()).await.unwrap();
    assert_eq!((step.admit.len(), step.rows.len()), (1, 2), "the newcomer is in the second step");
    control.gate.add_permits(1);
    let step = soon("the third step", control.steps.recv()).await.unwrap();
    assert_eq!(step.rows.len(), 2);
    shard.abort();
}

#[tokio::test(start_paused = true)]
async fn dropped_requests_hold_nothing_in_the_next_step() {
    let (engine, _task, mut control, _shard) = serving(0).await;
    // Eight requests run, in all slots. The others wait.
    let mut leaving: Vec<_> = (0..30).map(|i| engine.submit(request(i, 60, 300)).unwrap()).collect();
    for _ in 0..12 {
        soon("a step", control.steps.recv()).await.unwrap();
        control.gate.add_permits(1);
    }
    soon("a step", control.steps.recv()).await.unwrap();
    assert!(matches!(leaving[0].next().await, Some(GenerationEvent::Started(_))));
    assert!(matches!(leaving[0].next().await, Some(GenerationEvent::Token(..))));
    drop(leaving);
    let staying = request(7, 100, 20);
    let generation = engine.submit(staying.clone()).unwrap();
    control.gate.add_permits(2);
    // This step was in flight already.
    soon("a step", control.steps.recv()).await.unwrap();
    let step = soon("a step", control.steps.recv()).await.unwrap();
    // The fake shard checks that a slot is released before it is used again.
    assert_eq!((step.admit.len(), step.rows.len()), (1, 1), "{step:?}");
    assert!(!step.release.is_empty());
    control.gate.add_permits(OPEN);
    assert_eq!(listen(generation).await, received_alone(&staying));
    assert_eq!(engine.in_flight(), 0);
}

/// Waits until so many requests are queued or running.
async fn until_in_flight(engine: &Engine, requests: usize) {
    let wait = async {
        while engine.in_flight() != requests {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    soon(&format!("{requests} requests in flight"), wait).await;
}

#[tokio::test(start_paused = true)]
async fn dropped_requests_return_their_places_while_no_step_is_answered() {
    // The shard answers no step, so two steps stay in flight.
    let (engine, _task, mut control, _shard) = serving(0).await;
    let mut held: Vec<_> = (0..64).map(|i| engine.submit(request(i, 10, 10)).unwrap()).collect();
    soon("a step", control.steps.recv()).await.unwrap();
    assert!(engine.has_room().is_err());
    // Some of these run in slots, and others are queued.
    held.drain(4..20);
    until_in_flight(&engine, 48).await;
    // A request whose reader leaves before the event loop has seen it.
    drop(engine.submit(request(0, 10, 10)).unwrap());
    until_in_flight(&engine, 48).await;
    assert!(engine.has_room_for(16).is_ok());
    // The slots are free for the next step, which the shard gets after its first answer.
    control.gate.add_permits(1);
    let in_flight = soon("the second step", control.steps.recv()).await.unwrap();
    control.gate.add_permits(1);
    let next = soon("the third step", control.steps.recv()).await.unwrap();
    assert!(next.release.len() >= 4 && next.admit.len() >= 4, "{in_flight:?} and then {next:?}");
    control.gate.add_permits(OPEN);
    for generation in held {
        assert!(listen(generation).await.finish.is_some());
    }
    until_in_flight(&engine, 0).await;
}

#[tokio::test(start_paused = true)]
async fn draining_completes_all_requests_and_then_ends_the_shards() {
    let (engine, task, control, shard) = serving(2).await;
    let requests: Vec<_> = (0..20).map(|i| request(i, 50, 40)).collect();
    let held: Vec<_> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    engine.drain();
    assert_eq!(
        until(&engine, "draining", |state| *state == EngineState::Draining).await,
        EngineState::Draining
    );
    let refused = engine.submit(request(0, 10, 10)).unwrap_err();
    assert!(matches!(refused, SubmitError::Unavailable(_)), "{refused}");
    control.gate.add_permits(OPEN);
    for (request, generation) in requests.iter().zip(held) {
        assert_eq!(listen(generation).await, received_alone(request));
    }
    soon("the shard's end", shard).await.expect("the shard has received a shutdown");
    soon("the engine's end", task).await.unwrap();
}

#[tokio::test(start_paused = true)]
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

#[tokio::test(start_paused = true)]
async fn dropping_every_handle_is_a_drain() {
    let (engine, task, _control, shard) = serving(OPEN).await;
    let wanted = request(3, 20, 30);
    let generation = engine.submit(wanted.clone()).unwrap();
    drop(engine);
    assert_eq!(listen(generation).await, received_alone(&wanted));
    soon("the engine's end", task).await.unwrap();
    soon("the shard's end", shard).await.unwrap();
}
