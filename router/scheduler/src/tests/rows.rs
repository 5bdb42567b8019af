//! Rows without a result: their sequences fail alone, and blocks that may be wrong are never
//! reused.

use millrace_proto::{RowError, RowErrorKind, Sampling, StepOutput};

use super::pair::{Pair, cached_tokens};
use super::{LIMITS, request, token};
use crate::test_support::{Trouble, alone, pretend_mask, sampling};
use crate::{
    InfeasibleRequest, MalformedAnswer, Pooling, Request, RowFailure, SequenceEvent, SequenceOutput,
};

fn troubled(prompt: usize, trouble: Trouble) -> Request {
    Request { sampling: sampling(trouble.seed()), ..request(prompt, 20) }
}

/// Runs until nothing is left to run. Returns all outputs.
fn run(pair: &mut Pair) -> Vec<SequenceOutput> {
    std::iter::from_fn(|| pair.step()).flat_map(|(_, outputs)| outputs).collect()
}

#[test]
fn a_sequence_without_a_result_fails_and_the_others_continue() {
    for (trouble, first_tokens) in [(Trouble::Refused, 0), (Trouble::Broken(3), 0), (Trouble::Broken(14), 5)]
    {
        let mut pair = Pair::new(LIMITS);
        let sick = pair.add(&troubled(10, trouble));
        let sound = pair.add(&request(12, 20));
        let outputs = run(&mut pair);
        let of = |id| outputs.iter().filter(move |output| output.sequence == id);
        let tokens: Vec<u32> = of(sound).map(token).collect();
        assert_eq!(tokens, alone(&request(12, 20), LIMITS.vocab_size).0);
        assert_eq!(of(sick).count(), first_tokens + 1, "{trouble:?}");
        let last = of(sick).next_back().unwrap();
        let expected = match trouble {
            Trouble::Refused => {
                matches!(&last.event, SequenceEvent::Failed(RowFailure::Refused(why)) if why.contains('!'))
            }
            _ => matches!(&last.event, SequenceEvent::Failed(RowFailure::NotFinite(_))),
        };
        assert!(expected && last.finish.is_none(), "{last:?}");
        assert!(pair.scheduler.is_idle());
        assert_eq!(pair.scheduler.stats().used_blocks, 0);
    }
}

#[test]
fn answers_to_rows_sent_before_the_failure_are_ignored() {
    let mut pair = Pair::new(LIMITS);
    pair.add(&troubled(10, Trouble::Broken(3)));
    let steps = [pair.scheduler.plan().unwrap().step, pair.scheduler.plan().unwrap().step];
    let answers = steps.map(|step| pair.shard.run(&step).unwrap());
    let [first, second] = answers.map(|answer| pair.scheduler.apply(answer).unwrap());
    assert_eq!((first.len(), second.len()), (1, 0));
    assert_eq!(pair.scheduler.check_integrity(), Ok(()));
    // The slot has been released and can be used again.
    let next = pair.add(&request(10, 20));
    let outputs = run(&mut pair);
    assert!(outputs.iter().all(|output| output.sequence == next));
}

#[test]
fn blocks_computed_before_a_number_that_is_not_finite_are_never_reused() {
    let mut pair = Pair::new(LIMITS);
    assert_eq!(pair.complete(&request(50, 3)), 0);
    assert_eq!(pair.complete(&request(50, 3)), 48);
    // A request with the same beginning, most of which comes from the cache.
    let mut sick = troubled(50, Trouble::Broken(55));
    sick.prompt.extend([1, 2, 3]);
    let id = pair.add(&sick);
    let (plan, _) = pair.step().unwrap();
    assert_eq!(cached_tokens(&plan, id), Some(48));
    assert!(matches!(run(&mut pair).last().unwrap().event, SequenceEvent::Failed(RowFailure::NotFinite(_))));
    assert_eq!(pair.complete(&request(50, 3)), 0, "any of the cached blocks may be wrong");
    assert_eq!(pair.complete(&request(50, 3)), 48, "blocks that are computed again are cached again");
    // Prompts with another beginning are not affected, and a refusal does not affect computed
    // blocks.
    assert_eq!(pair.complete(&request(40, 3)), 0);
    assert_eq!(pair.complete(&request(40, 3)), 32);
    pair.add(&troubled(50, Trouble::Refused));
    run(&mut pair);
    assert_eq!((pair.complete(&request(50, 3)), pair.complete(&request(40, 3))), (48, 32));
    // Forgotten blocks are available for other sequences.
    assert_eq!(pair.scheduler.stats().used_blocks, 0);
    pair.complete(&request(200, 3));
}

#[test]
fn a_sequence_that_uses_forgotten_blocks_continues() {
    let mut pair = Pair::new(LIMITS);
    pair.complete(&request(50, 3));
    let sound = pair.add(&request(50, 60));
    pair.step().unwrap();
    let mut sick = troubled(50, Trouble::Broken(51));
    sick.prompt.extend([1, 2, 3]);
    pair.add(&sick);
    let outputs = run(&mut pair);
    let tokens = outputs.iter().filter(|output| output.sequence == sound).map(token);
    // The first token came with the first step.
    assert!(tokens.eq(alone(&request(50, 60), LIMITS.vocab_size).0[1..].iter().copied()));
    assert_eq!(pair.complete(&request(50, 3)), 0);
}

#[test]
fn errors_for_missing_rows_are_malformed() {
    let error = |slot| RowError { slot, kind: RowErrorKind::Refused.into(), message: "no".into() };
    for errors in [vec![error(1)], vec![error(0), error(0)], vec![error(u32::MAX)]] {
        let mut pair = Pair::new(LIMITS);
        pair.add(&request(4, 4));
        pair.scheduler.plan().unwrap();
        let slot = errors.last().unwrap().slot;
        let refused = pair.scheduler.apply(StepOutput { errors, ..Default::default() }).unwrap_err();
        assert_eq!(refused, MalformedAnswer::StrayError { step: 0, slot });
    }
    // A row has either an error or a token.
    let mut pair = Pair::new(LIMITS);
    pair.add(&request(4, 4));
    let step = pair.scheduler.plan().unwrap().step;
    let both = StepOutput { errors: vec![error(0)], ..pair.shard.run(&step).unwrap() };
    assert_eq!(
        pair.scheduler.apply(both).unwrap_err(),
        MalformedAnswer::TokenCount { step: 0, expected: 0, got: 1 }
    );
}

#[test]
fn requests_that_shards_would_refuse_are_refused_early() {
    let mut pair = Pair::new(LIMITS);
    let mut refuse = |request: Request| pair.scheduler.add(request).unwrap_err();
    let with = |sampling: Sampling| Request { sampling, ..request(4, 4) };
    let early = refuse(with(Sampling { end_tokens: vec![3, 100], min_new_tokens: 2, ..sampling(0) }));
    assert!(matches!(early, InfeasibleRequest::Sampling(wrong) if wrong.field == "end_tokens"), "{early}");
    let many = refuse(with(Sampling { top_n: 101, ..sampling(0) }));
    assert!(matches!(many, InfeasibleRequest::Sampling(wrong) if wrong.field == "top_n"), "{many}");
    assert_eq!(
        refuse(Request { prompt_logprobs: Some(101), ..request(4, 4) }),
        InfeasibleRequest::TooManyAlternatives { given: 101, limit: 100 }
    );
    for mask in [&[0, 0, 0, 0][..], &[0, 0, 0, 1 << 4], &[0, 0, 0, 0, 1]] {
        assert_eq!(
            refuse(Request { mask: Some(mask.into()), ..request(4, 4) }),
            InfeasibleRequest::EmptyMask
        );
    }
    assert_eq!(
        refuse(Request { prompt: vec![5, 100], ..request(4, 4) }),
        InfeasibleRequest::UnknownToken { token: 100, vocab_size: 100 }
    );
    pair.add(&Request { mask: Some(pretend_mask(&[], 100)), pooling: Some(Pooling::Last), ..request(4, 4) });
}
