//! Requests under a constraint, and what becomes of the others.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use super::fake::{engine_over_all, serving};
use super::recovery::{forgiving, mortal, sound};
use super::{limits, listen, request, soon, told_alone, until_ready};
use crate::engine::{Constraint, Engine, Generation, Mask, Request};
use crate::scheduler::tests::pretend::pretend_mask;

/// The scheduler's pretend grammar.
#[derive(Default)]
struct Pretend {
    generated: Vec<u32>,
    takes: Duration,
    /// It takes until this is dropped.
    held: Option<mpsc::Receiver<()>>,
    fails_after: Option<usize>,
    panics_after: Option<usize>,
}

impl Constraint for Pretend {
    fn advance(&mut self, token: u32) -> Result<Mask, String> {
        self.generated.push(token);
        std::thread::sleep(self.takes);
        if let Some(held) = &self.held {
            let _ = held.recv();
        }
        let so_far = Some(self.generated.len());
        assert_ne!(so_far, self.panics_after, "as the test wants it");
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

fn submit(engine: &Engine, request: &Request, pretend: Pretend) -> Generation {
    engine.submit_constrained(request.clone(), Box::new(pretend)).unwrap()
}

async fn all_get_what_they_get_alone(engine: &Engine) {
    let requests: Vec<_> =
        (0..30).map(|i| if i % 3 == 0 { request(i, 40, 50) } else { constrained(i) }).collect();
    let listeners: Vec<_> = requests
        .iter()
        .map(|request| match request.mask {
            None => tokio::spawn(listen(engine.submit(request.clone()).unwrap())),
            Some(_) => tokio::spawn(listen(submit(engine, request, Pretend::default()))),
        })
        .collect();
    for (request, listener) in requests.iter().zip(listeners) {
        assert_eq!(listener.await.unwrap(), told_alone(request));
    }
}

#[tokio::test]
async fn constrained_and_free_requests_run_together() {
    let (engine, _task, _control, _shard) = serving(1 << 20).await;
    all_get_what_they_get_alone(&engine).await;
}

#[tokio::test]
async fn a_constraint_goes_on_with_other_shards() {
    let streams = vec![mortal(7), mortal(20), mortal(3), mortal(40), sound()];
    let (engine, _task) = engine_over_all(forgiving(), streams);
    until_ready(&engine).await;
    all_get_what_they_get_alone(&engine).await;
}

#[tokio::test]
async fn a_slow_constraint_holds_up_nobody() {
    let (engine, _task, _control, _shard) = serving(1 << 20).await;
    let (hold, held) = mpsc::channel();
    let slow = Pretend { held: Some(held), ..Pretend::default() };
    let waiting = constrained(3);
    let mut generation = submit(&engine, &waiting, slow);
    generation.next().await.unwrap();
    let free = request(5, 20, 300);
    let told = soon("another's answer", listen(engine.submit(free.clone()).unwrap())).await;
    assert_eq!(told, told_alone(&free));
    drop(hold);
    generation.next().await.unwrap();
}

#[tokio::test]
async fn a_fault_of_a_constraint_ends_its_request_only() {
    let (engine, _task, _control, _shard) = serving(1 << 20).await;
    let fails = Pretend { fails_after: Some(3), ..Pretend::default() };
    let panics = Pretend { panics_after: Some(3), ..Pretend::default() };
    let held = [submit(&engine, &constrained(7), fails), submit(&engine, &constrained(7), panics)];
    let whys = ["too complex", "the grammar could not be followed"];
    for (generation, why) in held.into_iter().zip(whys) {
        let told = listen(generation).await;
        assert_eq!((told.tokens.len(), told.failed.as_deref()), (3, Some(why)));
    }
    all_get_what_they_get_alone(&engine).await;
    assert_eq!(engine.in_flight(), 0);
}

#[tokio::test]
async fn who_leaves_while_held_leaves_nothing() {
    let (engine, _task, _control, _shard) = serving(1 << 20).await;
    let slow = || Pretend { takes: Duration::from_millis(50), ..Pretend::default() };
    let held: Vec<_> = (0..8).map(|i| submit(&engine, &constrained(i), slow())).collect();
    tokio::time::sleep(Duration::from_millis(60)).await;
    drop(held);
    all_get_what_they_get_alone(&engine).await;
    engine.drain();
    soon("the engine's end", engine.ended()).await;
}

/// Takes CPU time for each token.
struct Spin(Duration);

impl Constraint for Spin {
    fn advance(&mut self, _: u32) -> Result<Mask, String> {
        let since = crate::engine::thread_time();
        while crate::engine::thread_time() - since < self.0 {
            std::hint::spin_loop();
        }
        Ok(pretend_mask(&[], limits().vocab_size))
    }
}

/// A constrained request of few blocks that ends with its last token only.
fn endless(seed: u64) -> Request {
    let mask = Some(pretend_mask(&[], limits().vocab_size));
    Request { mask, stop_tokens: Arc::default(), ..request(seed, 10, 60) }
}

/// Heavy requests held up all others: each token of a light one waited for a token of each heavy one.
#[tokio::test]
async fn light_requests_do_not_wait_for_heavy_ones() {
    let (engine, _task, _control, _shard) = serving(1 << 20).await;
    let cost = Duration::from_millis(30);
    let heavy = |seed| engine.submit_constrained(endless(seed), Box::new(Spin(cost))).unwrap();
    let heavies: Vec<_> = (100..105).map(heavy).collect();
    let mut busy: Vec<_> = heavies.into_iter().map(|generation| tokio::spawn(listen(generation))).collect();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let light = constrained(5);
    let before = busy.iter().filter(|heavy| !heavy.is_finished()).count();
    let told = soon("a light answer", listen(submit(&engine, &light, Pretend::default()))).await;
    assert_eq!(told, told_alone(&light));
    // It has had 60 tokens meanwhile; in turn with the others all would have ended by now.
    let after = busy.iter().filter(|heavy| !heavy.is_finished()).count();
    assert!(before == 5 && after >= 3, "{before} heavy requests before, {after} after");
    busy.iter_mut().for_each(|heavy| heavy.abort());
}

#[tokio::test]
async fn a_request_whose_masks_take_too_much_time_ends_with_an_error() {
    let (engine, _task, _control, _shard) = serving(1 << 20).await;
    let spin = Box::new(Spin(Duration::from_millis(300)));
    let told = listen(engine.submit_constrained(endless(7), spin).unwrap()).await;
    assert_eq!(told.tokens.len(), 7);
    let why = told.failed.unwrap_or_default();
    assert!(why.starts_with("grammar is too complex: its masks took"), "{why}");
    assert_eq!(engine.in_flight(), 0);
}
