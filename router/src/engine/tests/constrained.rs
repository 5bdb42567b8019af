//! Constrained requests, and their effect on other requests.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use millrace_answers::{Constraint, Mask};
use millrace_scheduler::test_support::pretend_mask;
use millrace_test_patience::patience;

use super::fake::{FakeShard, engine_over, engine_over_all, serving};
use super::recovery::{forgiving, mortal, sound};
use super::{config, limits, listen, received_alone, request, soon, until_ready};
use crate::engine::{Engine, Generation, Request};
use crate::test_support::still_clock;

/// A constraint with the pretend grammar of the scheduler's tests.
#[derive(Default)]
pub(super) struct PretendConstraint {
    generated: Vec<u32>,
    takes: Duration,
    /// The constraint blocks until this channel is closed.
    held: Option<mpsc::Receiver<()>>,
    fails_after: Option<usize>,
    panics_after: Option<usize>,
}

impl Constraint for PretendConstraint {
    fn advance(&mut self, token: u32) -> Result<Mask, String> {
        self.generated.push(token);
        std::thread::sleep(self.takes);
        if let Some(held) = &self.held {
            let _ = held.recv();
        }
        let so_far = Some(self.generated.len());
        assert_ne!(so_far, self.panics_after, "this panic is a part of the test");
        if so_far == self.fails_after {
            return Err("too complex".into());
        }
        Ok(pretend_mask(&self.generated, limits().vocab_size))
    }
}

fn constrained(seed: u64) -> Request {
    let mask = Some(pretend_mask(&[], limits().vocab_size));
    Request { mask, ..request(seed, 1 + (seed as usize * 37) % 200, 60) }
}

fn submit(engine: &Engine, request: &Request, pretend: PretendConstraint) -> Generation {
    engine.submit_constrained(request.clone(), Box::new(pretend)).unwrap()
}

pub(super) async fn assert_all_equal_runs_alone(engine: &Engine) {
    let requests: Vec<_> =
        (0..30).map(|i| if i % 3 == 0 { request(i, 40, 50) } else { constrained(i) }).collect();
    let listeners: Vec<_> = requests
        .iter()
        .map(|request| match request.mask {
            None => tokio::spawn(listen(engine.submit(request.clone()).unwrap())),
            Some(_) => tokio::spawn(listen(submit(engine, request, PretendConstraint::default()))),
        })
        .collect();
    for (request, listener) in requests.iter().zip(listeners) {
        assert_eq!(listener.await.unwrap(), received_alone(request));
    }
}

#[tokio::test]
async fn constrained_and_free_requests_run_together() {
    let (engine, _task, _control, _shard) = serving(1 << 20).await;
    assert_all_equal_runs_alone(&engine).await;
}

/// While the token before it is in flight, the next row of a constrained request is in the next
/// step, and its mask follows. This shard waits for masks as long as they take.
#[tokio::test(start_paused = true)]
async fn a_constrained_request_runs_ahead_of_its_masks() {
    let _still = still_clock();
    let (mut shard, mut control, stream) = FakeShard::new(1 << 20);
    shard.asks_for_masks = false;
    let shard = tokio::spawn(shard.serve());
    let (engine, _task) = engine_over(config(), stream);
    until_ready(&engine).await;
    let slow = PretendConstraint { takes: Duration::from_millis(1), ..PretendConstraint::default() };
    let request = Request { stop_tokens: Arc::default(), ..constrained(3) };
    let received = soon("the answer", listen(submit(&engine, &request, slow))).await;
    assert_eq!(received, received_alone(&request));
    engine.drain();
    soon("the engine's end", engine.ended()).await;
    soon("the shard's end", shard).await.unwrap();
    let mut follow = Vec::new();
    while let Some(step) = control.steps.recv().await {
        follow.extend(step.rows.iter().filter(|row| row.sample).map(|row| row.mask_follows));
    }
    assert!(!follow[0] && follow[1..].iter().all(|&follows| follows), "{follow:?}");
    assert_eq!(follow.len(), 60);
}

/// A mask that takes longer than its step defers its row, and the free request beside it has a
/// token in each step.
#[tokio::test]
async fn late_masks_defer_rows_and_lose_no_token() {
    let (engine, _task, mut control, _shard) = serving(1 << 20).await;
    let slow = PretendConstraint { takes: Duration::from_millis(3), ..PretendConstraint::default() };
    let free = Request { stop_tokens: Arc::default(), ..request(5, 20, 300) };
    let waiting = constrained(3);
    let (slow, free) = (submit(&engine, &waiting, slow), (engine.submit(free.clone()).unwrap(), free));
    let slow = tokio::spawn(listen(slow));
    assert_eq!(listen(free.0).await, received_alone(&free.1));
    assert_eq!(soon("the slow answer", slow).await.unwrap(), received_alone(&waiting));
    let mut followed = 0;
    while let Ok(step) = control.steps.try_recv() {
        followed += step.rows.iter().filter(|row| row.mask_follows).count();
    }
    assert!(followed > 0);
}

#[tokio::test]
async fn a_constraint_continues_with_new_shards() {
    let streams = vec![mortal(7), mortal(20), mortal(3), mortal(40), sound()];
    let (engine, _task) = engine_over_all(forgiving(), streams);
    until_ready(&engine).await;
    assert_all_equal_runs_alone(&engine).await;
}

#[tokio::test]
async fn a_slow_constraint_delays_no_other_request() {
    let (engine, _task, _control, _shard) = serving(1 << 20).await;
    let (hold, held) = mpsc::channel();
    let slow = PretendConstraint { held: Some(held), ..PretendConstraint::default() };
    let waiting = constrained(3);
    let mut generation = submit(&engine, &waiting, slow);
    generation.next().await.unwrap();
    let free = request(5, 20, 300);
    let received = soon("another's answer", listen(engine.submit(free.clone()).unwrap())).await;
    assert_eq!(received, received_alone(&free));
    drop(hold);
    generation.next().await.unwrap();
}

#[tokio::test]
async fn a_failed_constraint_ends_only_its_request() {
    let (engine, _task, _control, _shard) = serving(1 << 20).await;
    let fails = PretendConstraint { fails_after: Some(3), ..PretendConstraint::default() };
    let panics = PretendConstraint { panics_after: Some(3), ..PretendConstraint::default() };
    let held = [submit(&engine, &constrained(7), fails), submit(&engine, &constrained(7), panics)];
    let reasons = ["too complex", "the grammar could not be followed"];
    for (generation, reason) in held.into_iter().zip(reasons) {
        let received = listen(generation).await;
        assert_eq!((received.tokens.len(), received.failed.as_deref()), (3, Some(reason)));
    }
    assert_all_equal_runs_alone(&engine).await;
    assert_eq!(engine.in_flight(), 0);
}

#[tokio::test]
async fn a_request_cancelled_while_it_waits_for_its_mask_leaves_nothing() {
    let (engine, _task, _control, _shard) = serving(1 << 20).await;
    let slow = || PretendConstraint { takes: Duration::from_millis(50), ..PretendConstraint::default() };
    let held: Vec<_> = (0..8).map(|i| submit(&engine, &constrained(i), slow())).collect();
    tokio::time::sleep(Duration::from_millis(60)).await;
    drop(held);
    assert_all_equal_runs_alone(&engine).await;
    engine.drain();
    soon("the engine's end", engine.ended()).await;
}

/// A constraint that uses CPU time for each token.
struct Spin(Duration);

impl Constraint for Spin {
    fn advance(&mut self, _: u32) -> Result<Mask, String> {
        let since = millrace_text::thread_time();
        while millrace_text::thread_time() - since < self.0 {
            std::hint::spin_loop();
        }
        Ok(pretend_mask(&[], limits().vocab_size))
    }
}

/// A constrained request with few blocks and without stop tokens.
fn endless(seed: u64) -> Request {
    let mask = Some(pretend_mask(&[], limits().vocab_size));
    Request { mask, stop_tokens: Arc::default(), ..request(seed, 10, 60) }
}

/// A constraint that is known to be heavy, and whose first mask blocks until the test ends.
struct BlockedHeavy {
    begun: mpsc::Sender<()>,
    held: Arc<Mutex<mpsc::Receiver<()>>>,
}

impl Constraint for BlockedHeavy {
    fn advance(&mut self, _: u32) -> Result<Mask, String> {
        let _ = self.begun.send(());
        let _ = self.held.lock().unwrap().recv();
        Err("the test is over".into())
    }

    fn expected_cost(&self) -> Duration {
        Duration::from_secs(1)
    }
}

/// Heavy requests that occupy all threads they may occupy leave one for the light ones.
#[tokio::test]
async fn light_requests_do_not_wait_for_heavy_ones() {
    let (engine, _task, _control, _shard) = serving(1 << 20).await;
    let (begun, has_begun) = mpsc::channel();
    let (hold, held) = mpsc::channel();
    let held = Arc::new(Mutex::new(held));
    let heavy = |seed| {
        let blocked = BlockedHeavy { begun: begun.clone(), held: held.clone() };
        engine.submit_constrained(endless(seed), Box::new(blocked)).unwrap()
    };
    let heavies: Vec<_> = (100..105).map(heavy).collect();
    let mut heavies: Vec<_> =
        heavies.into_iter().map(|generation| tokio::spawn(listen(generation))).collect();
    let limit = patience(Duration::from_secs(30));
    let first = tokio::task::spawn_blocking(move || has_begun.recv_timeout(limit).map(|()| has_begun));
    let _has_begun = first.await.unwrap().expect("a heavy mask is computed");
    let light = constrained(5);
    let received =
        soon("a light answer", listen(submit(&engine, &light, PretendConstraint::default()))).await;
    assert_eq!(received, received_alone(&light));
    assert!(heavies.iter().all(|heavy| !heavy.is_finished()), "heavy requests wait for their masks");
    heavies.iter_mut().for_each(|heavy| heavy.abort());
    drop(hold);
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_masks_take_too_much_time_ends_with_an_error() {
    let _still = still_clock();
    let (engine, _task, _control, _shard) = serving(1 << 20).await;
    let spin = Box::new(Spin(Duration::from_millis(300)));
    let received = listen(engine.submit_constrained(endless(7), spin).unwrap()).await;
    assert_eq!(received.tokens.len(), 7);
    let reason = received.failed.unwrap_or_default();
    assert!(reason.starts_with("grammar is too complex: its masks took"), "{reason}");
    assert_eq!(engine.in_flight(), 0);
}
