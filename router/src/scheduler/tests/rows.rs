//! Rows without a result: the sequence fails, alone, and what may be wrong is never reused.

use millrace_proto::{RowError, RowErrorKind, Sampling, StepOutput};

use super::pair::{Pair, cached_tokens};
use super::pretend::{Trouble, alone, pretend_mask};
use super::{LIMITS, request, sampling, token};
use crate::scheduler::{Impossible, Malformed, News, Output, Pooling, Request, RowFailure};

fn troubled(prompt: usize, trouble: Trouble) -> Request {
    Request { sampling: sampling(trouble.seed()), ..request(prompt, 20) }
}

/// Steps until there is nothing to do; all that comes back.
fn run(pair: &mut Pair) -> Vec<Output> {
    std::iter::from_fn(|| pair.step()).flat_map(|(_, outputs)| outputs).collect()
}

#[test]
fn a_sequence_without_a_result_fails_and_the_others_go_on() {
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
                matches!(&last.news, News::Failed(RowFailure::Refused(why)) if why.contains('!'))
            }
            _ => matches!(&last.news, News::Failed(RowFailure::NotFinite(_))),
        };
        assert!(expected && last.finish.is_none(), "{last:?}");
        assert!(pair.scheduler.is_idle());
        assert_eq!(pair.scheduler.stats().used_blocks, 0);
    }
}

#[test]
fn rows_that_were_sent_before_it_failed_are_answered_and_forgotten() {
    let mut pair = Pair::new(LIMITS);
    pair.add(&troubled(10, Trouble::Broken(3)));
    let steps = [pair.scheduler.plan().unwrap().step, pair.scheduler.plan().unwrap().step];
    let answers = steps.map(|step| pair.shard.run(&step).unwrap());
    let [first, second] = answers.map(|answer| pair.scheduler.apply(answer).unwrap());
    assert_eq!((first.len(), second.len()), (1, 0));
    assert_eq!(pair.scheduler.check_integrity(), Ok(()));
    // The slot is released, and can be had again.
    let next = pair.add(&request(10, 20));
    let outputs = run(&mut pair);
    assert!(outputs.iter().all(|output| output.sequence == next));
}

#[test]
fn what_was_computed_for_numbers_that_are_none_is_never_reused() {
    let mut pair = Pair::new(LIMITS);
    assert_eq!(pair.complete(&request(50, 3)), 0);
    assert_eq!(pair.complete(&request(50, 3)), 48);
    // The same beginning, most of which comes from the cache.
    let mut sick = troubled(50, Trouble::Broken(55));
    sick.prompt.extend([1, 2, 3]);
    let id = pair.add(&sick);
    let (plan, _) = pair.step().unwrap();
    assert_eq!(cached_tokens(&plan, id), Some(48));
    assert!(matches!(run(&mut pair).last().unwrap().news, News::Failed(RowFailure::NotFinite(_))));
    assert_eq!(pair.complete(&request(50, 3)), 0, "nobody knows where it began");
    assert_eq!(pair.complete(&request(50, 3)), 48, "what is computed anew is cached again");
    // Another beginning was never in doubt, and a refusal says nothing about what was computed.
    assert_eq!(pair.complete(&request(40, 3)), 0);
    assert_eq!(pair.complete(&request(40, 3)), 32);
    pair.add(&troubled(50, Trouble::Refused));
    run(&mut pair);
    assert_eq!((pair.complete(&request(50, 3)), pair.complete(&request(40, 3))), (48, 32));
    // Forgotten blocks are there for others.
    assert_eq!(pair.scheduler.stats().used_blocks, 0);
    pair.complete(&request(200, 3));
}

#[test]
fn whoever_runs_on_forgotten_blocks_goes_on() {
    let mut pair = Pair::new(LIMITS);
    pair.complete(&request(50, 3));
    let sound = pair.add(&request(50, 60));
    pair.step().unwrap();
    let mut sick = troubled(50, Trouble::Broken(51));
    sick.prompt.extend([1, 2, 3]);
    pair.add(&sick);
    let outputs = run(&mut pair);
    let tokens = outputs.iter().filter(|output| output.sequence == sound).map(token);
    // The first one came with the first step.
    assert!(tokens.eq(alone(&request(50, 60), LIMITS.vocab_size).0[1..].iter().copied()));
    assert_eq!(pair.complete(&request(50, 3)), 0);
}

#[test]
fn errors_for_rows_that_there_are_not_are_malformed() {
    let error = |slot| RowError { slot, kind: RowErrorKind::Refused.into(), message: "no".into() };
    for errors in [vec![error(1)], vec![error(0), error(0)], vec![error(u32::MAX)]] {
        let mut pair = Pair::new(LIMITS);
        pair.add(&request(4, 4));
        pair.scheduler.plan().unwrap();
        let slot = errors.last().unwrap().slot;
        let refused = pair.scheduler.apply(StepOutput { errors, ..Default::default() }).unwrap_err();
        assert_eq!(refused, Malformed::StrayError { step: 0, slot });
    }
    // A row has an error or a token.
    let mut pair = Pair::new(LIMITS);
    pair.add(&request(4, 4));
    let step = pair.scheduler.plan().unwrap().step;
    let both = StepOutput { errors: vec![error(0)], ..pair.shard.run(&step).unwrap() };
    assert_eq!(pair.scheduler.apply(both).unwrap_err(), Malformed::Count { step: 0, expected: 0, got: 1 });
}

#[test]
fn what_shards_refuse_never_gets_to_them() {
    let mut pair = Pair::new(LIMITS);
    let mut refuse = |request: Request| pair.scheduler.add(request).unwrap_err();
    let with = |sampling: Sampling| Request { sampling, ..request(4, 4) };
    let early = refuse(with(Sampling { end_tokens: vec![3, 100], min_new_tokens: 2, ..sampling(0) }));
    assert!(matches!(early, Impossible::Sampling(wrong) if wrong.field == "end_tokens"), "{early}");
    let many = refuse(with(Sampling { top_n: 101, ..sampling(0) }));
    assert!(matches!(many, Impossible::Sampling(wrong) if wrong.field == "top_n"), "{many}");
    assert_eq!(
        refuse(Request { prompt_logprobs: Some(101), ..request(4, 4) }),
        Impossible::Scores { given: 101, limit: 100 }
    );
    for mask in [&[0, 0, 0, 0][..], &[0, 0, 0, 1 << 4], &[0, 0, 0, 0, 1]] {
        assert_eq!(refuse(Request { mask: Some(mask.into()), ..request(4, 4) }), Impossible::Mask);
    }
    assert_eq!(
        refuse(Request { prompt: vec![5, 100], ..request(4, 4) }),
        Impossible::UnknownToken { token: 100, vocab_size: 100 }
    );
    pair.add(&Request { mask: Some(pretend_mask(&[], 100)), pooling: Some(Pooling::Last), ..request(4, 4) });
}
