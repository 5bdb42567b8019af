//! Drafts from the answers of sequences that have ended.

use std::sync::Arc;

use super::pair::Pair;
use super::{LIMITS, request};
use crate::test_support::alone;
use crate::{AdapterId, Request, SchedulerLimits, SchedulerOptions};

fn pair(earlier_tokens: usize) -> Pair {
    let limits = SchedulerLimits { max_drafts: 20, adapters: 1, ..LIMITS };
    let options =
        SchedulerOptions { drafts: 4, earlier_tokens, always_draft: true, ..SchedulerOptions::default() };
    Pair::with(limits, options)
}

/// Runs a request alone and checks its answer. Returns how many drafts were right.
fn right_drafts(pair: &mut Pair, request: &Request) -> u64 {
    let before = pair.scheduler.stats().accepted_drafts;
    let id = pair.add(request);
    let (texts, _) = pair.run(&[id]);
    let (text, finish) = alone(request, LIMITS.vocab_size);
    assert_eq!(texts, [(text, Some(finish))]);
    assert_eq!(pair.scheduler.check_integrity(), Ok(()));
    pair.scheduler.stats().accepted_drafts - before
}

#[test]
fn a_request_that_comes_again_has_the_drafts_of_its_earlier_answer() {
    let again = request(20, 30);
    let mut without = pair(0);
    let (first, second) = (right_drafts(&mut without, &again), right_drafts(&mut without, &again));
    assert_eq!(first, second, "each sequence has its own repetitions alone");
    let mut with = pair(1000);
    assert_eq!(right_drafts(&mut with, &again), first);
    // Steps have a token and up to four right drafts.
    assert!(right_drafts(&mut with, &again) >= 20);
}

#[test]
fn requests_with_another_salt_or_adapter_have_no_part_in_it() {
    let plain = request(20, 30);
    let salted = Request { cache_salt: Some(Arc::from("a")), ..plain.clone() };
    let adapted = Request { adapter: Some(AdapterId(0)), ..plain.clone() };
    let mut pair = pair(1000);
    let own = right_drafts(&mut pair, &plain);
    for other in [&salted, &adapted] {
        assert_eq!(right_drafts(&mut pair, other), own);
        assert!(right_drafts(&mut pair, other) > own, "its own earlier answer");
    }
    assert!(right_drafts(&mut pair, &plain) > own);
}
