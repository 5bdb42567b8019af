//! Models whose prompts cannot be shared or divided.

use millrace_proto::{PromptHandling, Ready};

use super::pair::Pair;
use super::{LIMITS, request};
use crate::test_support::{alone, pretend_mask};
use crate::{InfeasibleRequest, InvalidAnnouncement, PlannedStep, Request, SchedulerLimits};

const UNSHARED: SchedulerLimits =
    SchedulerLimits { prompt_handling: PromptHandling::Unshared, num_blocks: 64, ..LIMITS };
const WHOLE: SchedulerLimits = SchedulerLimits { prompt_handling: PromptHandling::Whole, ..UNSHARED };

/// The positions and lengths of a step's rows.
fn rows(plan: &PlannedStep) -> Vec<(u32, u32)> {
    plan.step.rows.iter().map(|row| (row.start, row.count)).collect()
}

#[test]
fn no_blocks_are_shared_and_none_are_kept() {
    for limits in [UNSHARED, WHOLE] {
        let mut pair = Pair::new(limits);
        for _ in 0..2 {
            assert_eq!(pair.complete(&request(29, 5)), 0);
            assert_eq!(pair.scheduler.stats().cached_blocks, 0);
        }
        // Two equal prompts do not wait for each other.
        let ids = [(); 2].map(|()| pair.add(&request(13, 5)));
        assert_eq!(pair.step().unwrap().0.admitted.len(), 2);
        let (got, _) = pair.run(&ids);
        assert_eq!(got[0].0[..], alone(&request(13, 5), LIMITS.vocab_size).0[1..]);
    }
}

#[test]
fn a_prompt_that_can_be_divided_is_divided() {
    let mut pair = Pair::new(UNSHARED);
    pair.add(&request(100, 5));
    assert_eq!(rows(&pair.step().unwrap().0), [(0, 32)]);
    assert_eq!(rows(&pair.step().unwrap().0), [(32, 32)]);
}

#[test]
fn a_whole_prompt_waits_for_a_step_in_which_it_fits() {
    let mut pair = Pair::new(WHOLE);
    let ids = [29, 20, 12].map(|prompt| pair.add(&request(prompt, 4)));
    // The second prompt does not fit beside the first one, and shares its step with the third one.
    assert_eq!(rows(&pair.step().unwrap().0), [(0, 29)]);
    assert_eq!(rows(&pair.step().unwrap().0)[1..], [(0, 20)]);
    assert_eq!(rows(&pair.step().unwrap().0)[2..], [(0, 12)]);
    let (got, _) = pair.run(&ids);
    assert!(got.iter().all(|(_, finish)| finish.is_some()));
}

#[test]
fn a_prompt_that_exceeds_a_step_beside_the_other_sequences_is_refused() {
    let mut pair = Pair::new(WHOLE);
    pair.add(&request(29, 5));
    let refused = pair.scheduler.add(request(30, 5)).unwrap_err();
    assert_eq!(refused, InfeasibleRequest::ExceedsStep { prompt: 30, limit: 29 });
    let scored = Request { prompt_logprobs: Some(0), ..request(5, 1) };
    assert_eq!(pair.scheduler.add(scored).unwrap_err(), InfeasibleRequest::NoPromptScores);
}

#[test]
fn a_preempted_sequence_computes_its_prompt_as_a_whole_again() {
    let limits = SchedulerLimits { num_blocks: 8, max_sequence_tokens: 128, ..WHOLE };
    let mut pair = Pair::new(limits);
    let requests = [request(17, 90), request(23, 90)];
    let ids = [0, 1].map(|index: usize| pair.add(&requests[index]));
    let mut restarts = Vec::new();
    let mut tokens = [Vec::new(), Vec::new()];
    while let Some((plan, outputs)) = pair.step() {
        restarts.extend(rows(&plan).into_iter().filter(|&(start, count)| start == 0 && count > 23));
        for output in outputs {
            let of = ids.iter().position(|&id| id == output.sequence).unwrap();
            tokens[of].push(super::token(&output));
        }
    }
    assert!(pair.scheduler.stats().preemptions > 0 && !restarts.is_empty(), "{restarts:?}");
    for (tokens, request) in tokens.iter().zip(&requests) {
        assert_eq!(*tokens, alone(request, LIMITS.vocab_size).0);
    }
}

#[test]
fn no_position_is_run_twice() {
    for limits in [UNSHARED, WHOLE] {
        let mut pair = Pair::new(limits);
        let mask = Some(pretend_mask(&[], LIMITS.vocab_size));
        pair.add(&Request { mask, ..request(9, 5) });
        assert!(pair.scheduler.plan().is_some());
        // The row after it would need a mask that follows, and might be deferred.
        assert!(pair.scheduler.plan().is_none());
    }
    let mut shared = Pair::new(SchedulerLimits { prompt_handling: PromptHandling::Shared, ..UNSHARED });
    shared.add(&Request { mask: Some(pretend_mask(&[], LIMITS.vocab_size)), ..request(9, 5) });
    shared.scheduler.plan().unwrap();
    // A prompt may be followed by a row whose mask follows, if positions can be run again.
    assert!(shared.scheduler.plan().is_some_and(|plan| plan.step.rows[0].mask_follows));
}

#[test]
fn an_unknown_handling_is_refused() {
    let ready = |prompt_handling| Ready {
        max_sequence_tokens: 1,
        max_step_tokens: 1,
        max_sequences: 1,
        block_size: 1,
        num_blocks: 1,
        vocab_size: 1,
        prompt_handling,
        ..Ready::default()
    };
    assert_eq!(SchedulerLimits::new(&ready(2)).unwrap().prompt_handling, PromptHandling::Whole);
    let unknown = SchedulerLimits::new(&ready(3)).unwrap_err();
    assert_eq!(unknown, InvalidAnnouncement::UnknownPromptHandling(3));
}
