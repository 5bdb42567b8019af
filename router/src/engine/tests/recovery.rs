//! Recovery from lost shards. The clock is paused, so that time passes only while the engine and
//! the fake shards wait.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use millrace_proto::{Fault, Ready, from_shard};
use millrace_scheduler::test_support::Trouble;
use millrace_scheduler::test_support::sampling;
use tokio::io::DuplexStream;
use tokio::task::JoinHandle;

use super::fake::{FakeShard, engine_over_all};
use super::{
    assert_results_equal_runs_alone, config, listen, ready, received_alone, request, soon, until, until_ready,
};
use crate::engine::baseline::GroupBaseline;
use crate::engine::group::{ShardGroup, StartError};
use crate::engine::loss::GroupLoss;
use crate::engine::{
    AdmissionBounds, Engine, EngineConfig, EngineState, GenerationEvent, GenerationFailure, Request,
    SubmitError, start_with,
};

pub(super) const OPEN: usize = 1 << 20;

/// A shard that dies after it has answered `steps` steps.
pub(super) fn mortal(steps: usize) -> DuplexStream {
    let (mut shard, _control, stream) = FakeShard::new(OPEN);
    tokio::spawn(async move {
        shard.announce().await;
        shard.answer(steps).await;
    });
    stream
}

/// A shard that receives every step and answers only the first `steps`.
fn hanging(steps: usize) -> DuplexStream {
    let (mut shard, control, stream) = FakeShard::new(steps);
    tokio::spawn(async move {
        shard.announce().await;
        shard.answer(OPEN).await;
        drop(control);
    });
    stream
}

/// A shard that answers every step.
pub(super) fn sound() -> DuplexStream {
    let (shard, _control, stream) = FakeShard::new(OPEN);
    tokio::spawn(shard.serve());
    stream
}

pub(super) fn forgiving() -> EngineConfig {
    EngineConfig { max_failures: 3, ..config() }
}

/// A request without stop tokens.
pub(super) fn endless(seed: u64) -> Request {
    Request { stop_tokens: Arc::default(), ..request(seed, 10, 300) }
}

async fn until_recovering(engine: &Engine) {
    until(engine, "the loss", |state| matches!(state, EngineState::Recovering(_))).await;
}

async fn assert_all_continue(engine: Engine, task: JoinHandle<()>) {
    until_ready(&engine).await;
    let requests: Vec<_> = (0..30)
        .map(|i| Request {
            prompt_logprobs: (i % 3 == 0).then_some(1),
            ..request(i, 1 + (i as usize * 37) % 200, 90)
        })
        .collect();
    assert_results_equal_runs_alone(&engine, &requests).await;
    engine.drain();
    soon("the engine's end", task).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn streams_continue_after_any_number_of_losses() {
    // A sequence that was in flight in two losses runs alone for a few steps, and is blamed for a
    // loss in this time. The later shards live long enough that this does not happen.
    let streams = vec![mortal(7), mortal(20), mortal(150), mortal(150), sound()];
    let (engine, task) = engine_over_all(forgiving(), streams);
    assert_all_continue(engine, task).await;
}

#[tokio::test(start_paused = true)]
async fn a_hanging_shard_counts_as_lost() {
    let quick = EngineConfig { step_timeout: Some(Duration::from_millis(500)), ..forgiving() };
    let (engine, task) = engine_over_all(quick, vec![hanging(9), hanging(4), sound()]);
    assert_all_continue(engine, task).await;
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_hangs_without_work_is_detected() {
    let (mut silent, _control, stream) = FakeShard::new(0);
    let quick = EngineConfig { heartbeat_timeout: Duration::from_millis(500), ..forgiving() };
    let (engine, task) = engine_over_all(quick, vec![stream, sound()]);
    silent.announce().await;
    until_ready(&engine).await;
    // The silent shard answers no step, so requests complete only after it is lost.
    assert_all_continue(engine, task).await;
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_answers_pings_keeps_running() {
    let quick = EngineConfig { heartbeat_timeout: Duration::from_secs(2), ..forgiving() };
    let (engine, _task) = engine_over_all(quick, vec![sound()]);
    until_ready(&engine).await;
    tokio::time::sleep(Duration::from_millis(4500)).await;
    assert!(matches!(&*engine.state().borrow(), EngineState::Ready(_)));
}

#[tokio::test(start_paused = true)]
async fn losses_without_a_token_between_them_end_the_engine() {
    let streams = vec![mortal(5), mortal(0), mortal(0), mortal(0), sound()];
    let (engine, task) = engine_over_all(EngineConfig { max_failures: 2, ..config() }, streams);
    until_ready(&engine).await;
    let held: Vec<_> = (0..12).map(|i| engine.submit(endless(i)).unwrap()).collect();
    for generation in held {
        let failed = listen(generation).await.failed.expect("every request gets an event");
        assert!(failed.starts_with("Engine failed: "), "{failed}");
    }
    soon("the engine's end", task).await.unwrap();
    let EngineState::Failed(reason) = engine.state().borrow().clone() else { panic!("not failed") };
    assert!(reason.starts_with("the shards were lost 2 times in a row"), "{reason}");
    assert_eq!(engine.in_flight(), 0);
}

/// An engine whose groups come from `group`. Its argument is the baseline of the first group.
fn engine_from(
    config: EngineConfig,
    mut group: impl FnMut(Option<GroupBaseline>) -> Result<DuplexStream, StartError> + Send + 'static,
) -> (Engine, JoinHandle<()>) {
    let connect = move |baseline| {
        let group = group(baseline).map(|stream| ShardGroup::connected(vec![stream]));
        std::future::ready(group).boxed()
    };
    start_with(config, Box::new(connect))
}

/// The error of a system without free file descriptors.
fn shortage() -> StartError {
    let source = std::io::Error::from_raw_os_error(24);
    StartError::Spawn { program: "millrace".into(), source }
}

fn broken() -> StartError {
    StartError::Lost(GroupLoss::of_shards("the volume is gone"))
}

#[tokio::test(start_paused = true)]
async fn many_failures_in_a_short_time_do_not_end_the_engine() {
    let window = EngineConfig { max_failures: 2, failure_window: Duration::from_secs(30), ..config() };
    let mut attempts = 0;
    let (engine, task) = engine_from(window, move |_| {
        attempts += 1;
        match attempts {
            1 => Ok(mortal(7)),
            2..=4 => Err(broken()),
            _ => Ok(sound()),
        }
    });
    assert_all_continue(engine, task).await;
}

#[tokio::test(start_paused = true)]
async fn a_shortage_of_file_descriptors_does_not_end_the_engine() {
    // Two losses in a row would end the engine.
    let strict = EngineConfig { max_failures: 2, failure_window: Duration::from_secs(30), ..config() };
    let mut attempts = 0;
    let (engine, task) = engine_from(strict, move |_| {
        attempts += 1;
        match attempts {
            1 | 3 | 4 => Err(shortage()),
            2 => Ok(mortal(7)),
            _ => Ok(sound()),
        }
    });
    assert_all_continue(engine, task).await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_first_start_ends_the_engine_at_once() {
    let patient = EngineConfig { max_failures: 3, failure_window: Duration::from_secs(3600), ..config() };
    let (engine, task) = engine_from(patient, |_| Err(broken()));
    soon("the engine's end", task).await.unwrap();
    assert_eq!(*engine.state().borrow(), EngineState::Failed("the volume is gone".into()));
}

#[tokio::test(start_paused = true)]
async fn later_groups_get_the_baseline_of_the_first_one() {
    let (sent, mut baselines) = tokio::sync::mpsc::unbounded_channel();
    let (engine, task) = engine_from(forgiving(), move |baseline| {
        let is_first = baseline.is_none();
        sent.send(baseline).unwrap();
        Ok(if is_first { mortal(7) } else { sound() })
    });
    assert_all_continue(engine, task).await;
    assert_eq!(baselines.recv().await.unwrap(), None);
    let Some(Some(baseline)) = baselines.recv().await else { panic!("no second group") };
    assert_eq!((baseline.pool_tokens, baseline.sequence_tokens), (40 * 16, 400));
    assert_eq!(baseline.checkpoints, [""]);
}

/// After one loss the next shard sends `message`, and the engine must give up at once, whatever the
/// window. Returns the reason.
async fn gives_up_after(message: from_shard::Message) -> String {
    let patient = EngineConfig { max_failures: 100, failure_window: Duration::from_secs(3600), ..config() };
    let mut attempts = 0;
    let (engine, task) = engine_from(patient, move |_| {
        attempts += 1;
        if attempts == 1 {
            return Ok(mortal(0));
        }
        assert_eq!(attempts, 2, "a third group was started");
        let (mut shard, _control, stream) = FakeShard::new(OPEN);
        let message = message.clone();
        tokio::spawn(async move { shard.send(message).await });
        Ok(stream)
    });
    soon("the engine's end", task).await.unwrap();
    match engine.state().borrow().clone() {
        EngineState::Failed(reason) => reason,
        state => panic!("{state:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_lasting_fault_and_another_model_end_the_engine() {
    let fault = Fault { message: "model.safetensors has been changed".into(), lasting: true };
    let reason = gives_up_after(from_shard::Message::Fault(fault)).await;
    assert_eq!(reason, "shard 0: model.safetensors has been changed");
    let other = Ready { checkpoint: "9 9 model.safetensors".into(), ..ready() };
    let reason = gives_up_after(from_shard::Message::Ready(other)).await;
    assert!(reason.starts_with("shard 0 has loaded other files than before"), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn requests_are_accepted_while_there_are_no_shards() {
    let (late, _control, stream) = FakeShard::new(OPEN);
    let bounds = AdmissionBounds { in_flight: 64, queued: 4, queued_tokens: 1000 };
    let (engine, _task) = engine_over_all(EngineConfig { bounds, ..forgiving() }, vec![mortal(0), stream]);
    until_recovering(&engine).await;
    let requests: Vec<_> = (0..4).map(|i| request(i, 20, 20)).collect();
    let held: Vec<_> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    let refused = engine.submit(request(9, 20, 20)).unwrap_err();
    assert!(matches!(refused, SubmitError::Overloaded { .. }), "{refused}");
    tokio::spawn(late.serve());
    for (request, generation) in requests.iter().zip(held) {
        assert_eq!(listen(generation).await, received_alone(request));
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_queued_for_too_long_fails() {
    let short = EngineConfig { queue_timeout: Some(Duration::from_millis(80)), ..forgiving() };
    let (engine, _task) = engine_over_all(short, vec![hanging(20)]);
    until_ready(&engine).await;
    // Eight requests run, in all slots.
    let running: Vec<_> = (0..8).map(|i| engine.submit(endless(i)).unwrap()).collect();
    let waiting = engine.submit(request(9, 10, 10)).unwrap();
    let received = listen(waiting).await;
    assert!(
        received.failed.as_deref().is_some_and(|reason| reason.contains("--queue-timeout")),
        "{received:?}"
    );
    assert_eq!((received.started, engine.in_flight()), (0, 8));
    drop(running);
}

#[tokio::test(start_paused = true)]
async fn a_drain_without_shards_has_a_deadline() {
    let short = EngineConfig { drain_timeout: Duration::from_millis(100), ..forgiving() };
    let (_silent, _control, stream) = FakeShard::new(0);
    let (engine, task) = engine_over_all(short, vec![mortal(3), stream]);
    until_ready(&engine).await;
    let generation = engine.submit(endless(1)).unwrap();
    until_recovering(&engine).await;
    engine.drain();
    assert_eq!(listen(generation).await.failed.as_deref(), Some("Server is shutting down"));
    soon("the engine's end", task).await.unwrap();
}

pub(super) fn troubled(trouble: Trouble) -> Request {
    Request { sampling: sampling(trouble.seed()), ..request(3, 10, 40) }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_causes_losses_fails_alone() {
    // The engine gives up after three losses in a row, and each of these requests causes three.
    let (engine, _task) = engine_over_all(forgiving(), (0..10).map(|_| sound()).collect());
    until_ready(&engine).await;
    for round in 0..3 {
        // In the last round there is no progress between the losses.
        let others: Vec<_> = (0..if round < 2 { 9 } else { 0 }).map(|i| request(i, 20, 60)).collect();
        let held: Vec<_> = others.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
        let held: Vec<_> = held.into_iter().map(|generation| tokio::spawn(listen(generation))).collect();
        let deadly = engine.submit(troubled(Trouble::Deadly(10 + 5 * round))).unwrap();
        let received = listen(deadly).await;
        assert_eq!(
            received.failed.as_deref(),
            Some("this request ended the shards three times"),
            "{received:?}"
        );
        for (request, listener) in others.iter().zip(held) {
            assert_eq!(listener.await.unwrap(), received_alone(request), "round {round}");
        }
    }
    let after = request(8, 20, 20);
    assert_results_equal_runs_alone(&engine, &[after]).await;
}

#[tokio::test(start_paused = true)]
async fn a_row_without_a_result_ends_only_its_request() {
    let (engine, _task) = engine_over_all(config(), vec![sound()]);
    until_ready(&engine).await;
    let beside = engine.submit(endless(1)).unwrap();
    let beside = tokio::spawn(listen(beside));
    for (trouble, tokens) in [(Trouble::Refused, 0), (Trouble::Broken(5), 0), (Trouble::Broken(12), 3)] {
        let mut generation = engine.submit(troubled(trouble)).unwrap();
        let mut events = Vec::new();
        while let Some(event) = soon("an event", generation.next()).await {
            events.push(event);
        }
        assert!(matches!(events[0], GenerationEvent::Started(_)));
        assert_eq!(events.len(), tokens + 2, "{events:?}");
        match (trouble, events.last().unwrap()) {
            (Trouble::Refused, GenerationEvent::Failed(GenerationFailure::Refused(_))) => {}
            (Trouble::Broken(_), GenerationEvent::Failed(GenerationFailure::Broken(_))) => {}
            (_, other) => panic!("{trouble:?}: {other:?}"),
        }
    }
    assert_eq!(beside.await.unwrap(), received_alone(&endless(1)));
    assert_eq!(engine.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_infeasible_request_is_refused() {
    let (engine, _task) = engine_over_all(config(), vec![sound()]);
    until_ready(&engine).await;
    // The prompt has a token outside the vocabulary.
    let unknown = Request { prompt: vec![1, 1000], ..request(1, 2, 5) };
    let mut generation = engine.submit(unknown).unwrap();
    let event = soon("an event", generation.next()).await;
    assert!(matches!(event, Some(GenerationEvent::Failed(GenerationFailure::Refused(_)))), "{event:?}");
}
