//! Sequences that must hear, after each token, what may come next.

use super::pair::Pair;
use super::pretend::{PretendShard, alone, pretend_mask};
use super::{LIMITS, request, token};
use crate::scheduler::{Finish, Limits, Request, SeqId};

fn constrained(prompt: usize, max_new_tokens: u32) -> Request {
    Request { mask: Some(pretend_mask(&[], LIMITS.vocab_size)), ..request(prompt, max_new_tokens) }
}

/// A constrained sequence as its owner sees it.
struct Walk {
    id: SeqId,
    got: Vec<u32>,
    finish: Option<Finish>,
}

impl Walk {
    fn release(&self, pair: &mut Pair) {
        pair.scheduler.release(self.id, self.got.len(), pretend_mask(&self.got, LIMITS.vocab_size));
    }

    /// One step; its own token if it had one.
    fn step(&mut self, pair: &mut Pair) -> Option<usize> {
        let (plan, outputs) = pair.step()?;
        for output in outputs.into_iter().filter(|output| output.sequence == self.id) {
            self.got.push(token(&output));
            self.finish = output.finish;
        }
        Some(plan.step.rows.len())
    }
}

#[test]
fn it_waits_for_its_mask_and_nobody_waits_for_it() {
    let mut pair = Pair::new(LIMITS);
    let free = pair.add(&request(5, 100));
    let request = constrained(9, 10);
    let mut walk = Walk { id: pair.add(&request), got: Vec::new(), finish: None };
    while walk.finish.is_none() {
        assert_eq!(walk.step(&mut pair), Some(2));
        // However long it takes.
        for _ in 0..walk.got.len() % 4 {
            assert_eq!(walk.step(&mut pair), Some(1));
        }
        walk.release(&mut pair);
    }
    assert_eq!((walk.got, walk.finish.unwrap()), alone(&request, LIMITS.vocab_size));
    pair.scheduler.cancel(free);
}

#[test]
fn only_one_of_its_tokens_is_in_flight() {
    let mut pair = Pair::new(LIMITS);
    let id = pair.add(&constrained(40, 10));
    let chunk = pair.scheduler.plan().unwrap();
    assert_eq!((chunk.step.rows[0].sample, chunk.step.rows[0].allowed.len()), (false, 0));
    let last = pair.scheduler.plan().unwrap();
    assert_eq!((last.step.rows[0].sample, last.step.rows[0].allowed.len()), (true, 4));
    assert!(pair.scheduler.plan().is_none(), "its token is not known");
    // It may be said early, and means nothing then.
    pair.scheduler.release(id, 1, pretend_mask(&[], 100));
    assert!(pair.scheduler.plan().is_none());
    for step in [chunk.step, last.step] {
        let output = pair.shard.run(&step).unwrap();
        pair.scheduler.apply(output).unwrap();
    }
    assert!(pair.scheduler.plan().is_none(), "what may follow is not known");
    pair.scheduler.release(id, 1, pretend_mask(&[], 100));
    assert!(pair.scheduler.plan().is_some());
}

#[test]
fn a_death_between_mask_and_token_costs_neither() {
    let mut pair = Pair::new(LIMITS);
    let request = constrained(20, 12);
    let mut walk = Walk { id: pair.add(&request), got: Vec::new(), finish: None };
    for round in 0.. {
        if round % 2 == 0 && round < 12 {
            // Lost with a token in flight; or held, with what may follow still to be said.
            let planned = pair.scheduler.plan().is_some();
            assert_eq!(planned, round % 4 == 0);
            assert_eq!(pair.scheduler.recover(LIMITS), []);
            assert_eq!(pair.scheduler.check_integrity(), Ok(()));
            pair.shard = PretendShard::new(LIMITS);
        }
        if round % 4 != 2 {
            while walk.step(&mut pair).is_some() {}
        }
        if walk.finish.is_some() {
            break;
        }
        if round % 4 != 1 {
            walk.release(&mut pair);
        }
    }
    assert_eq!((walk.got, walk.finish.unwrap()), alone(&request, LIMITS.vocab_size));
}

#[test]
fn one_that_is_held_is_passed_in_the_queue() {
    let mut pair = Pair::new(Limits { max_sequences: 1, ..LIMITS });
    let held = pair.add(&constrained(10, 10));
    pair.step().unwrap();
    assert_eq!(pair.scheduler.recover(Limits { max_sequences: 1, ..LIMITS }), []);
    pair.shard = PretendShard::new(LIMITS);
    let other = pair.add(&request(10, 2));
    let (plan, _) = pair.step().unwrap();
    assert_eq!(plan.admitted[0].sequence, other);
    pair.step().unwrap();
    assert!(pair.step().is_none());
    let first = alone(&constrained(10, 10), 100).0[0];
    pair.scheduler.release(held, 1, pretend_mask(&[first], 100));
    assert_eq!(pair.step().unwrap().0.admitted[0].sequence, held);
}
