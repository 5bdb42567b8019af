//! Single properties, one test each.

use std::sync::Arc;

use super::pair::Pair;
use super::{LIMITS, request};
use crate::test_support::alone;
use crate::{
    Admitted, Finish, InfeasibleRequest, PlannedStep, Request, Scheduler, SchedulerLimits, SchedulerOptions,
};

fn counts(plan: &PlannedStep) -> Vec<u32> {
    plan.step.rows.iter().map(|row| row.count).collect()
}

#[test]
fn decodes_go_first_and_prompts_share_the_rest() {
    let mut pair = Pair::new(LIMITS);
    pair.add(&request(8, 50));
    pair.step();
    pair.add(&request(100, 5));
    let (plan, _) = pair.step().unwrap();
    assert_eq!(counts(&plan), [1, 31], "a prompt alone gets all tokens that the decode leaves");
    pair.add(&request(9, 5));
    let (plan, outputs) = pair.step().unwrap();
    assert_eq!(counts(&plan), [1, 22, 9], "the short prompt does not wait behind the long one");
    assert_eq!(outputs.len(), 2);
}

#[test]
fn length_wins_over_a_stop_token() {
    let stops_at = |position: usize, max_new_tokens: u32| {
        let mut request = request(5, max_new_tokens);
        let (tokens, _) = alone(&request, LIMITS.vocab_size);
        request.stop_tokens = Arc::new([tokens[position]]);
        let mut pair = Pair::new(LIMITS);
        let id = pair.add(&request);
        pair.run(&[id]).0.remove(0)
    };
    let (tokens, finish) = stops_at(0, 10);
    assert_eq!((tokens.len(), finish), (1, Some(Finish::StopToken)));
    let (tokens, finish) = stops_at(0, 1);
    assert_eq!((tokens.len(), finish), (1, Some(Finish::Length)));
}

#[test]
fn two_sequences_near_the_limit_both_finish() {
    // Each sequence alone fills the KV cache to the last block.
    let limits = SchedulerLimits { num_blocks: 8, ..LIMITS };
    for (prompt, new) in [(1, 128), (64, 65), (100, 29), (127, 2)] {
        let (mut pair, request) = (Pair::new(limits), request(prompt, new));
        let ids = [pair.add(&request), pair.add(&request)];
        let (got, steps) = pair.run(&ids);
        let (tokens, finish) = alone(&request, limits.vocab_size);
        assert_eq!(got, vec![(tokens, Some(finish)); 2]);
        assert!(steps <= 2 * (prompt + new as usize), "{steps} steps");
    }
}

#[test]
fn the_youngest_sequence_is_preempted_and_readmitted_before_later_arrivals() {
    let mut pair = Pair::new(SchedulerLimits { num_blocks: 8, ..LIMITS });
    let ids: Vec<_> = (0..2).map(|_| pair.add(&request(16, 100))).collect();
    let mut later = None;
    while pair.scheduler.stats().preemptions == 0 {
        pair.step().unwrap();
        later = later.or_else(|| Some(pair.add(&request(16, 50))));
    }
    let mut admitted = Vec::new();
    while let Some((plan, _)) = pair.step() {
        admitted.extend(plan.admitted.into_iter().map(|admitted| admitted.sequence));
    }
    assert!(!admitted.contains(&ids[0]), "the oldest is never preempted");
    let first = |id| admitted.iter().position(|&other| other == id);
    assert!(first(ids[1]).unwrap() < first(later.unwrap()).unwrap());
}

#[test]
fn cancelling_frees_slot_and_blocks_for_the_next_plan() {
    let limits = SchedulerLimits { max_sequences: 1, num_blocks: 4, ..LIMITS };
    let mut pair = Pair::new(limits);
    let running = pair.add(&request(40, 20));
    let queued = pair.add(&request(30, 20));
    let next = pair.add(&request(50, 10));
    let unanswered = pair.scheduler.plan().unwrap();
    pair.scheduler.cancel(running);
    pair.scheduler.cancel(queued);
    pair.scheduler.cancel(queued);
    // The step of the cancelled sequence is still in flight. The new sequence gets its slot and its
    // blocks.
    let plan = pair.scheduler.plan().unwrap();
    assert_eq!((plan.step.release.as_slice(), plan.step.admit.len()), ([0].as_slice(), 1));
    assert_eq!(plan.admitted, [Admitted { sequence: next, cached_tokens: 0 }]);
    for plan in [unanswered, plan] {
        let output = pair.shard.run(&plan.step).unwrap();
        assert!(pair.scheduler.apply(output).unwrap().is_empty());
    }
    let (got, _) = pair.run(&[next]);
    assert_eq!(got[0].0, alone(&request(50, 10), limits.vocab_size).0);
    assert_eq!(pair.scheduler.stats().used_blocks, 0);
}

#[test]
fn a_request_that_can_never_fit_is_refused_with_an_explanation() {
    let mut scheduler =
        Scheduler::new(SchedulerLimits { num_blocks: 8, ..LIMITS }, SchedulerOptions::default());
    let text = scheduler.add(request(100, 30)).unwrap_err().to_string();
    assert!(text.contains("need 9 cache blocks of 16") && text.contains("only 8 (128 tokens)"), "{text}");
    assert!(scheduler.add(request(100, 29)).is_ok());
    assert!(matches!(scheduler.add(request(990, 11)), Err(InfeasibleRequest::TooLong { limit: 1000, .. })));
    assert_eq!(scheduler.add(request(0, 1)), Err(InfeasibleRequest::EmptyPrompt));
    assert!(scheduler.add(request(128, 0)).is_ok());
    let unknown = Request { prompt: vec![100], ..request(1, 1) };
    assert_eq!(scheduler.add(unknown), Err(InfeasibleRequest::UnknownToken { token: 100, vocab_size: 100 }));
}

#[test]
fn limits_of_zero_are_refused_and_every_sequence_can_decode_in_each_step() {
    let mut ready = millrace_proto::Ready {
        vocab_size: 10,
        max_sequence_tokens: 20,
        block_size: 16,
        num_blocks: 5,
        max_sequences: 64,
        max_step_tokens: 8,
        ..Default::default()
    };
    assert_eq!(SchedulerLimits::new(&ready).unwrap().max_sequences, 8);
    ready.block_size = 0;
    assert!(SchedulerLimits::new(&ready).unwrap_err().to_string().contains("block_size"));
}
