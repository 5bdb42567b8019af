//! Constrained sequences, which need a mask after each token.

use std::collections::VecDeque;

use millrace_proto::{Masks, Sampled, Step, StepOutput};

use super::pair::Pair;
use super::{LIMITS, request, token};
use crate::test_support::{PretendShard, alone, pretend_mask};
use crate::{Finish, MalformedAnswer, Request, SchedulerLimits, SeqId};

fn constrained(prompt: usize, max_new_tokens: u32) -> Request {
    Request { mask: Some(pretend_mask(&[], LIMITS.vocab_size)), ..request(prompt, max_new_tokens) }
}

/// A constrained sequence and its tokens.
struct ConstrainedRun {
    id: SeqId,
    got: Vec<u32>,
    finish: Option<Finish>,
}

impl ConstrainedRun {
    fn release(&self, pair: &mut Pair) {
        pair.scheduler.release(self.id, self.got.len(), pretend_mask(&self.got, LIMITS.vocab_size));
    }

    /// Runs one step and collects the sequence's own tokens. Returns the number of rows.
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
fn a_constrained_sequence_waits_for_its_mask_and_others_do_not_wait_for_it() {
    let mut pair = Pair::new(LIMITS);
    let free = pair.add(&request(5, 100));
    let request = constrained(9, 10);
    let mut run = ConstrainedRun { id: pair.add(&request), got: Vec::new(), finish: None };
    while run.finish.is_none() {
        assert_eq!(run.step(&mut pair), Some(2));
        // The mask may take several steps.
        for _ in 0..run.got.len() % 4 {
            assert_eq!(run.step(&mut pair), Some(1));
        }
        run.release(&mut pair);
    }
    assert_eq!((run.got, run.finish.unwrap()), alone(&request, LIMITS.vocab_size));
    pair.scheduler.cancel(free);
}

/// A constraint that allows every token changes no answer.
#[test]
fn an_empty_mask_allows_every_token() {
    let free = request(9, 10);
    let mut pair = Pair::new(LIMITS);
    let request = Request { mask: Some([].into()), ..free.clone() };
    let mut run = ConstrainedRun { id: pair.add(&request), got: Vec::new(), finish: None };
    while run.finish.is_none() {
        assert_eq!(run.step(&mut pair), Some(1));
        pair.scheduler.release(run.id, run.got.len(), [].into());
    }
    assert_eq!((run.got, run.finish.unwrap()), alone(&free, LIMITS.vocab_size));
}

/// A scheduler with two steps in flight, one constrained sequence, and its shard.
struct TwoSteps {
    pair: Pair,
    run: ConstrainedRun,
    sent: VecDeque<Step>,
}

impl TwoSteps {
    /// Plans until two steps are in flight, of which the first one samples the first token.
    fn new(request: &Request) -> Self {
        let mut pair = Pair::new(LIMITS);
        let run = ConstrainedRun { id: pair.add(request), got: Vec::new(), finish: None };
        let mut both = TwoSteps { pair, run, sent: VecDeque::new() };
        both.plan();
        both
    }

    fn plan(&mut self) {
        while self.sent.len() < 2 {
            let Some(plan) = self.pair.scheduler.plan() else { return };
            self.sent.push_back(plan.step);
        }
    }

    /// The first position of the row of each step in flight, and whether its mask follows.
    fn rows(&self) -> Vec<(u32, bool)> {
        self.sent.iter().map(|step| (step.rows[0].start, step.rows[0].mask_follows)).collect()
    }

    /// Runs the oldest step with the masks that follow it, if there are any, and plans the next
    /// one.
    fn answer(&mut self, masks: Option<Masks>) {
        let step = self.sent.pop_front().unwrap();
        let output = match masks {
            Some(masks) => self.pair.shard.run_masked(&step, &masks),
            None => self.pair.shard.run(&step),
        };
        for output in self.pair.scheduler.apply(output.unwrap()).unwrap() {
            self.run.got.push(token(&output));
            self.run.finish = output.finish;
        }
        self.plan();
        assert_eq!(self.pair.scheduler.check_integrity(), Ok(()));
    }

    fn release(&mut self) {
        self.run.release(&mut self.pair);
    }
}

#[test]
fn a_constrained_sequence_runs_ahead_of_its_masks() {
    let request = constrained(20, 12);
    let mut both = TwoSteps::new(&request);
    assert_eq!(both.sent[0].rows[0].allowed.len(), 4);
    assert_eq!(both.rows(), [(0, false), (20, true)]);
    assert_eq!(both.pair.scheduler.masks(true), None, "no masks follow the oldest step");
    both.answer(None);
    let mut steps = 1;
    while both.run.finish.is_none() {
        assert_eq!(both.pair.scheduler.step_without_masks(), Some(both.sent[0].id));
        assert_eq!(both.pair.scheduler.masks(false), None, "the mask is not known");
        // A mask for another number of tokens is ignored.
        both.pair.scheduler.release(both.run.id, both.run.got.len() + 1, pretend_mask(&[], 100));
        assert_eq!(both.pair.scheduler.masks(false), None);
        both.release();
        let masks = both.pair.scheduler.masks(false).unwrap();
        assert_eq!(masks.rows.len(), 1);
        assert_eq!(both.pair.scheduler.masks(true), None, "masks are sent once");
        both.answer(Some(masks));
        steps += 1;
    }
    assert_eq!(steps, 12, "one token per step");
    assert_eq!((both.run.got, both.run.finish.unwrap()), alone(&request, LIMITS.vocab_size));
    assert_eq!(both.pair.scheduler.stats().deferred_rows, 0);
}

#[test]
fn a_deferred_row_runs_again_in_the_next_step() {
    let request = constrained(20, 12);
    let mut both = TwoSteps::new(&request);
    both.answer(None);
    assert_eq!(both.rows(), [(20, true), (21, true)]);
    // The mask comes too late for the first step, and in time for the second one.
    let masks = both.pair.scheduler.masks(true).unwrap();
    assert_eq!(masks.rows, []);
    both.answer(Some(masks));
    assert_eq!((both.run.got.len(), both.sent.len()), (1, 1));
    both.release();
    let masks = both.pair.scheduler.masks(false).unwrap();
    assert_eq!(masks.rows.len(), 1);
    both.answer(Some(masks));
    assert_eq!(both.run.got.len(), 2);
    // For some tokens the sequence does not run ahead of its masks.
    let mut tokens_without_running_ahead = 0;
    while both.run.finish.is_none() {
        if both.sent.is_empty() {
            both.release();
            both.plan();
            tokens_without_running_ahead += 1;
            both.answer(None);
        } else {
            both.release();
            let masks = both.pair.scheduler.masks(false);
            both.answer(masks);
        }
    }
    assert_eq!((both.run.got, both.run.finish.unwrap()), alone(&request, LIMITS.vocab_size));
    assert_eq!(tokens_without_running_ahead, 2);
    assert_eq!(both.pair.scheduler.stats().deferred_rows, 1);
}

#[test]
fn a_sequence_without_its_mask_runs_at_most_twice_in_vain() {
    let request = constrained(20, 12);
    let mut both = TwoSteps::new(&request);
    both.answer(None);
    for _ in 0..2 {
        let masks = both.pair.scheduler.masks(true).unwrap();
        both.answer(Some(masks));
    }
    assert_eq!((both.sent.len(), both.run.got.len()), (0, 1));
    both.release();
    both.plan();
    assert_eq!(both.rows()[0], (20, false));
    both.answer(None);
    let expected = alone(&request, LIMITS.vocab_size).0;
    assert_eq!(both.run.got, expected[..2]);
}

#[test]
fn nobody_waits_for_the_mask_of_a_sequence_that_has_ended() {
    let mut both = TwoSteps::new(&constrained(20, 12));
    both.answer(None);
    assert_eq!(both.pair.scheduler.masks(false), None);
    both.pair.scheduler.cancel(both.run.id);
    let masks = both.pair.scheduler.masks(false).unwrap();
    assert_eq!(masks.rows, []);
    both.answer(Some(masks));
    assert_eq!(both.pair.scheduler.stats().deferred_rows, 0);
}

#[test]
fn others_wait_for_masks_only_if_they_have_a_row_in_the_step() {
    let mut both = TwoSteps::new(&constrained(20, 12));
    both.answer(None);
    assert!(!both.pair.scheduler.others_wait_for_masks());
    both.pair.add(&request(5, 10));
    for _ in 0..2 {
        both.release();
        let masks = both.pair.scheduler.masks(false);
        both.answer(masks);
    }
    assert!(both.pair.scheduler.others_wait_for_masks());
}

#[test]
fn an_answer_before_the_masks_is_malformed() {
    let mut both = TwoSteps::new(&constrained(20, 12));
    both.answer(None);
    let step = both.sent[0].id;
    let sampled = vec![Sampled { slot: both.sent[0].rows[0].slot, ..Default::default() }];
    let output = StepOutput { step, sampled, ..Default::default() };
    assert_eq!(both.pair.scheduler.apply(output.clone()).unwrap_err(), MalformedAnswer::BeforeMasks { step });
    // Nor may a deferred row have a token.
    both.pair.scheduler.masks(true).unwrap();
    assert!(matches!(both.pair.scheduler.apply(output), Err(MalformedAnswer::TokenCount { .. })));
}

#[test]
fn a_loss_between_mask_and_token_loses_neither() {
    let mut pair = Pair::new(LIMITS);
    let request = constrained(20, 12);
    let mut run = ConstrainedRun { id: pair.add(&request), got: Vec::new(), finish: None };
    for round in 0.. {
        if round % 2 == 0 && round < 12 {
            // The shards are lost with a token in flight, or while the sequence waits for its mask.
            let planned = pair.scheduler.plan().is_some();
            assert_eq!(planned, round % 4 == 0);
            assert_eq!(pair.scheduler.recover(LIMITS), []);
            assert_eq!(pair.scheduler.check_integrity(), Ok(()));
            pair.shard = PretendShard::new(LIMITS);
        }
        if round % 4 != 2 {
            while run.step(&mut pair).is_some() {}
        }
        if run.finish.is_some() {
            break;
        }
        if round % 4 != 1 {
            run.release(&mut pair);
        }
    }
    assert_eq!((run.got, run.finish.unwrap()), alone(&request, LIMITS.vocab_size));
}

#[test]
fn a_sequence_that_waits_for_its_mask_is_overtaken_in_the_queue() {
    let mut pair = Pair::new(SchedulerLimits { max_sequences: 1, ..LIMITS });
    let held = pair.add(&constrained(10, 10));
    pair.step().unwrap();
    assert_eq!(pair.scheduler.recover(SchedulerLimits { max_sequences: 1, ..LIMITS }), []);
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
