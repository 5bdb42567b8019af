//! Answers of a broken shard.

use millrace_proto::{Pooled, PromptToken, Sampled, Scored, StepOutput, TokenLogprob};
use proptest::prelude::*;

use super::{LIMITS, request, token};
use crate::{Finish, MalformedAnswer, Pooling, Request, Scheduler, SchedulerOptions, SequenceEvent};

fn sampled(slot: u32, token: u32) -> Sampled {
    Sampled { slot, token, logprob: 0.0, top: Vec::new() }
}

fn output(step: u64, sampled: Vec<Sampled>) -> StepOutput {
    StepOutput { step, sampled, ..Default::default() }
}

#[test]
fn each_malformed_answer_has_an_error_and_changes_nothing() {
    let mut scheduler = Scheduler::new(LIMITS, SchedulerOptions::default());
    assert_eq!(scheduler.apply(output(0, vec![])).unwrap_err(), MalformedAnswer::NoStepInFlight(0));
    scheduler.add(Request { prompt_logprobs: Some(1), ..request(3, 5) }).unwrap();
    scheduler.add(request(4, 5)).unwrap();
    scheduler.plan().unwrap();
    let scores = |slot, tokens, token| {
        let top = vec![TokenLogprob { token, logprob: -1.0 }];
        vec![Scored { slot, tokens: vec![PromptToken { logprob: -1.0, rank: 1, top }; tokens] }]
    };
    let output = |step, sampled| StepOutput { scored: scores(0, 2, 7), ..output(step, sampled) };
    let scored = |scored| StepOutput { scored, ..output(0, vec![sampled(0, 1), sampled(1, 2)]) };
    let good = vec![sampled(0, 1), sampled(1, 2)];
    let top = vec![TokenLogprob { token: 100, logprob: 0.0 }];
    for (bad, expected) in [
        (output(1, good.clone()), MalformedAnswer::OutOfOrder { expected: 0, got: 1 }),
        (output(0, vec![sampled(0, 1)]), MalformedAnswer::TokenCount { step: 0, expected: 2, got: 1 }),
        (output(0, vec![]), MalformedAnswer::TokenCount { step: 0, expected: 2, got: 0 }),
        (
            output(0, vec![sampled(1, 1), sampled(0, 2)]),
            MalformedAnswer::WrongSlot { step: 0, expected: 0, got: 1 },
        ),
        (
            output(0, vec![sampled(0, 1), sampled(1, 100)]),
            MalformedAnswer::UnknownToken { step: 0, token: 100, vocab_size: 100 },
        ),
        (
            output(0, vec![Sampled { top, ..sampled(0, 1) }, sampled(1, 2)]),
            MalformedAnswer::UnknownToken { step: 0, token: 100, vocab_size: 100 },
        ),
        (scored(vec![]), MalformedAnswer::Scores { step: 0 }),
        (scored(scores(0, 3, 7)), MalformedAnswer::Scores { step: 0 }),
        (scored(scores(1, 2, 7)), MalformedAnswer::Scores { step: 0 }),
        (scored(scores(0, 2, 100)), MalformedAnswer::UnknownToken { step: 0, token: 100, vocab_size: 100 }),
    ] {
        assert_eq!(scheduler.apply(bad).unwrap_err(), expected);
    }
    let outputs = scheduler.apply(output(0, good.clone())).unwrap();
    assert!(matches!(&outputs[0].event, SequenceEvent::Prompt(tokens) if tokens.len() == 2));
    assert_eq!(outputs[1..].iter().map(token).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(scheduler.apply(output(0, good)).unwrap_err(), MalformedAnswer::NoStepInFlight(0));
}

#[test]
fn missing_and_unexpected_vectors_are_malformed() {
    let mut scheduler = Scheduler::new(LIMITS, SchedulerOptions::default());
    scheduler.add(Request { pooling: Some(Pooling::Mean), ..request(3, 5) }).unwrap();
    scheduler.add(request(4, 5)).unwrap();
    scheduler.plan().unwrap();
    let answer = |slots: &[u32]| StepOutput {
        pooled: slots.iter().map(|&slot| Pooled { slot, values: vec![0.5] }).collect(),
        ..output(0, vec![sampled(1, 2)])
    };
    for wrong in [&[][..], &[1], &[0, 0]] {
        assert_eq!(scheduler.apply(answer(wrong)).unwrap_err(), MalformedAnswer::Vectors { step: 0 });
    }
    let outputs = scheduler.apply(answer(&[0])).unwrap();
    assert_eq!(
        (&outputs[0].event, outputs[0].finish),
        (&SequenceEvent::Vector(vec![0.5]), Some(Finish::Length))
    );
    assert_eq!(scheduler.stats().running, 1);
}

proptest! {
    #[test]
    fn no_answer_causes_a_panic(
        answers in prop::collection::vec(
            (0u64..6, prop::collection::vec((0u32..5, 0u32..120), 0..4)), 1..60),
        prompts in prop::collection::vec(1usize..60, 1..6),
    ) {
        let mut scheduler = Scheduler::new(LIMITS, SchedulerOptions::default());
        for prompt in prompts {
            scheduler.add(request(prompt, 4)).unwrap();
        }
        for (step, tokens) in answers {
            if scheduler.in_flight() < 2 {
                scheduler.plan();
            }
            let sampled = tokens.into_iter().map(|(slot, token)| sampled(slot, token)).collect();
            // Most answers are refused. An accepted answer must keep the invariants.
            let _ = scheduler.apply(output(step, sampled));
            prop_assert_eq!(scheduler.check_integrity(), Ok(()));
        }
    }
}
