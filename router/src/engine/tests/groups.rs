//! Several groups of shards: requests move when a group is lost or restarted, and nobody notices.
//! The clock is paused.

use std::time::Duration;

use millrace_scheduler::test_support::Trouble;
use tokio::io::DuplexStream;

use super::constrained::assert_all_equal_runs_alone;
use super::fake::{Control, FakeShard, engine_over_groups};
use super::recovery::{OPEN, endless, forgiving, mortal, sound, troubled};
use super::{
    assert_results_equal_runs_alone, config, listen, received_alone, request, soon, until, until_ready,
};
use crate::engine::{Engine, EngineConfig, EngineState, Request, RestartError, SubmitError};

/// Requests of all kinds.
fn mixed(count: u64) -> Vec<Request> {
    let scored = |i| (i % 3 == 0).then_some(1);
    (0..count)
        .map(|i| Request { prompt_logprobs: scored(i), ..request(i, 1 + (i as usize * 37) % 200, 90) })
        .collect()
}

/// A shard that answers the first `steps` steps, and its control.
fn controlled(steps: usize) -> (Control, DuplexStream) {
    let (shard, control, stream) = FakeShard::new(steps);
    tokio::spawn(shard.serve());
    (control, stream)
}

async fn end(engine: Engine, task: tokio::task::JoinHandle<()>) {
    engine.drain();
    soon("the engine's end", task).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn streams_of_lost_groups_continue_on_others() {
    let first = vec![mortal(7), mortal(30), mortal(100), sound()];
    let second = vec![mortal(15), mortal(60), sound()];
    let (engine, task) = engine_over_groups(forgiving(), vec![first, second, vec![sound()]]);
    until_ready(&engine).await;
    assert_results_equal_runs_alone(&engine, &mixed(40)).await;
    end(engine, task).await;
}

#[tokio::test]
async fn constrained_streams_of_lost_groups_continue_on_others() {
    let groups = vec![vec![mortal(9), mortal(40), sound()], vec![mortal(25), sound()]];
    let (engine, task) = engine_over_groups(forgiving(), groups);
    until_ready(&engine).await;
    assert_all_equal_runs_alone(&engine).await;
    end(engine, task).await;
}

/// All requests wait on shards that answer nothing. Then one group is lost for good.
#[tokio::test(start_paused = true)]
async fn a_group_that_does_not_come_back_ends_nothing() {
    let (second, stream) = controlled(0);
    let config = EngineConfig { max_failures: 2, ..config() };
    let (engine, task) = engine_over_groups(config, vec![vec![mortal(3)], vec![stream]]);
    until_ready(&engine).await;
    let requests = mixed(20);
    let held: Vec<_> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    tokio::time::sleep(Duration::from_secs(5)).await;
    second.gate.add_permits(OPEN);
    for (request, generation) in requests.iter().zip(held) {
        assert_eq!(listen(generation).await, received_alone(request));
    }
    assert!(matches!(&*engine.state().borrow(), EngineState::Ready(_)));
    assert_results_equal_runs_alone(&engine, &mixed(9)).await;
    assert_eq!(engine.in_flight(), 0);
    end(engine, task).await;
}

#[tokio::test(start_paused = true)]
async fn the_engine_ends_when_no_group_is_left() {
    let config = EngineConfig { max_failures: 1, ..config() };
    let (engine, task) = engine_over_groups(config, vec![vec![mortal(4)], vec![mortal(9)]]);
    until_ready(&engine).await;
    let held: Vec<_> = (0..8).map(|i| engine.submit(endless(i)).unwrap()).collect();
    for generation in held {
        let failed = listen(generation).await.failed.expect("every request gets an event");
        assert!(failed.starts_with("Engine failed: "), "{failed}");
    }
    soon("the engine's end", task).await.unwrap();
    assert!(matches!(&*engine.state().borrow(), EngineState::Failed(_)));
    assert!(matches!(engine.submit(endless(1)), Err(SubmitError::Unavailable(_))));
}

/// A request that ends the shards ends some of two groups at most, and fails alone.
#[tokio::test(start_paused = true)]
async fn a_request_that_causes_losses_fails_alone() {
    let groups = (0..3).map(|_| (0..4).map(|_| sound()).collect()).collect();
    let (engine, task) = engine_over_groups(forgiving(), groups);
    until_ready(&engine).await;
    let others: Vec<_> = (0..12).map(|i| request(i, 20, 60)).collect();
    let held: Vec<_> = others.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    let held: Vec<_> = held.into_iter().map(|generation| tokio::spawn(listen(generation))).collect();
    let received = listen(engine.submit(troubled(Trouble::Deadly(15))).unwrap()).await;
    assert_eq!(received.failed.as_deref(), Some("this request ended the shards three times"));
    for (request, listener) in others.iter().zip(held) {
        assert_eq!(listener.await.unwrap(), received_alone(request));
    }
    end(engine, task).await;
}

#[tokio::test(start_paused = true)]
async fn groups_are_restarted_while_requests_run() {
    for groups in 1..4 {
        let streams = (0..groups).map(|_| (0..3).map(|_| sound()).collect()).collect();
        // One loss would end the engine.
        let (engine, task) = engine_over_groups(config(), streams);
        until_ready(&engine).await;
        let restarting = engine.clone();
        let restarts = tokio::spawn(async move {
            let mut restarted = Vec::new();
            for _ in 0..2 {
                tokio::task::yield_now().await;
                restarted.push(restarting.restart_groups().await);
            }
            restarted
        });
        assert_results_equal_runs_alone(&engine, &mixed(40)).await;
        for times in soon("the restarts", restarts).await.unwrap() {
            assert_eq!(times.map(|times| times.len()), Ok(groups));
        }
        assert_results_equal_runs_alone(&engine, &mixed(5)).await;
        end(engine, task).await;
    }
}

/// While a group is restarted, its new shards come late: the requests do not wait for them.
#[tokio::test(start_paused = true)]
async fn requests_do_not_wait_for_a_group_that_restarts() {
    let (mut late, _control, stream) = FakeShard::new(OPEN);
    let groups = vec![vec![sound(), stream], vec![sound(), sound()]];
    let (engine, task) = engine_over_groups(config(), groups);
    until_ready(&engine).await;
    let restarting = engine.clone();
    let restart = tokio::spawn(async move { restarting.restart_groups().await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(engine.restart_groups().await, Err(RestartError::Busy));
    assert_results_equal_runs_alone(&engine, &mixed(12)).await;
    assert!(!restart.is_finished());
    late.announce().await;
    tokio::spawn(async move { while late.answer(1).await {} });
    assert_eq!(soon("the restart", restart).await.unwrap().map(|times| times.len()), Ok(2));
    assert_results_equal_runs_alone(&engine, &mixed(12)).await;
    end(engine, task).await;
}

#[tokio::test(start_paused = true)]
async fn a_group_that_cannot_be_restarted_is_named() {
    let (engine, task) = engine_over_groups(config(), vec![vec![sound(), sound()], vec![sound()]]);
    until_ready(&engine).await;
    let error = engine.restart_groups().await.unwrap_err().to_string();
    assert_eq!(error, "group 2 of 2 was not restarted: no shard is left");
    assert_results_equal_runs_alone(&engine, &mixed(5)).await;
    end(engine, task).await;
}

/// The reader of a request that has moved leaves: the request ends where it is now.
#[tokio::test(start_paused = true)]
async fn a_request_that_has_moved_can_be_cancelled() {
    let (second, stream) = controlled(0);
    let (engine, task) = engine_over_groups(forgiving(), vec![vec![mortal(2), sound()], vec![stream]]);
    until_ready(&engine).await;
    let held: Vec<_> = (0..6).map(|i| engine.submit(endless(i)).unwrap()).collect();
    until(&engine, "the loss and the recovery", |state| matches!(state, EngineState::Ready(_))).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(engine.in_flight(), 6);
    drop(held);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(engine.in_flight(), 0);
    second.gate.add_permits(OPEN);
    assert_results_equal_runs_alone(&engine, &mixed(5)).await;
    end(engine, task).await;
}

/// Many requests wait on one group when another one comes back: it gets its part of them.
#[tokio::test(start_paused = true)]
async fn a_group_that_comes_back_shares_the_queue() {
    let (second, stream) = controlled(0);
    let (mut third, back) = controlled(OPEN);
    let config = EngineConfig { failure_window: Duration::from_secs(60), ..forgiving() };
    let (engine, task) = engine_over_groups(config, vec![vec![mortal(1), back], vec![stream]]);
    until_ready(&engine).await;
    // The second group answers nothing, so the requests can end on the first one only.
    let requests: Vec<_> = (0..40).map(|i| request(i, 50, 30)).collect();
    let held: Vec<_> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(third.steps.try_recv().is_ok(), "the new shard has work");
    assert!(engine.in_flight() < 40, "requests have ended there");
    second.gate.add_permits(OPEN);
    for (request, generation) in requests.iter().zip(held) {
        assert_eq!(listen(generation).await, received_alone(request));
    }
    end(engine, task).await;
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_all_groups_after_their_requests() {
    let (engine, task) = engine_over_groups(config(), vec![vec![sound()], vec![sound()]]);
    until_ready(&engine).await;
    let requests = mixed(10);
    let held: Vec<_> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    engine.drain();
    for (request, generation) in requests.iter().zip(held) {
        assert_eq!(listen(generation).await, received_alone(request));
    }
    soon("the engine's end", task).await.unwrap();
    soon("the engine's end, for its handles", engine.ended()).await;
    assert_eq!(
        engine.restart_groups().await.unwrap_err().to_string(),
        "group 1 of 2 was not restarted: the server is shutting down"
    );
}

#[tokio::test(start_paused = true)]
async fn a_group_that_cannot_be_loaded_ends_the_start() {
    let (engine, task) = engine_over_groups(forgiving(), vec![vec![sound()], vec![]]);
    let failed = until(&engine, "the failure", |state| matches!(state, EngineState::Failed(_))).await;
    assert_eq!(failed, EngineState::Failed("no shard is left".into()));
    end(engine, task).await;
}
