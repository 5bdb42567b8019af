//! Steps and answers that would exceed a frame.

use millrace_proto::frame::encoded_len;
use millrace_proto::{FromShard, LogitBias, MAX_FRAME, Sampling, StepOutput, ToShard, from_shard, to_shard};
use proptest::prelude::*;

use super::pair::Pair;
use super::{LIMITS, request};
use crate::test_support::{pretend_mask, sampling};
use crate::{InfeasibleRequest, Pooling, Request, Scheduler, SchedulerLimits, SchedulerOptions};

fn sent(step: millrace_proto::Step) -> usize {
    encoded_len(&ToShard { message: Some(to_shard::Message::Step(step)) })
}

fn answered(output: StepOutput) -> usize {
    encoded_len(&FromShard { message: Some(from_shard::Message::Output(output)) })
}

/// 128 sequences that begin with a cached prompt of 399 000 tokens have 153 MB of admissions.
#[test]
fn many_answers_to_a_long_cached_prompt_are_admitted_a_few_at_a_time() {
    let limits = SchedulerLimits {
        max_sequence_tokens: 400_000,
        max_step_tokens: 400_000,
        max_sequences: 128,
        block_size: 16,
        num_blocks: 30_000,
        vocab_size: 150_000,
        max_vector_len: 64,
        max_frame_bytes: MAX_FRAME,
        ..LIMITS
    };
    let mut scheduler = Scheduler::new(limits, SchedulerOptions::default());
    let prompt: Vec<u32> = (0..399_000).map(|at| 20_000 + at % 100_000).collect();
    let request = |seed| Request { prompt: prompt.clone(), sampling: sampling(seed), ..request(1, 4) };
    let answer = |scheduler: &mut Scheduler, step: &millrace_proto::Step| {
        let sampled =
            |row: &millrace_proto::Row| millrace_proto::Sampled { slot: row.slot, ..Default::default() };
        let sampled = step.rows.iter().filter(|row| row.sample).map(sampled).collect();
        scheduler.apply(StepOutput { step: step.id, sampled, ..Default::default() }).unwrap();
    };
    scheduler.add(request(0)).unwrap();
    while let Some(plan) = scheduler.plan() {
        answer(&mut scheduler, &plan.step);
    }
    for seed in 0..128 {
        scheduler.add(request(seed)).unwrap();
    }
    let (mut admitted, mut most) = (0, 0);
    while let Some(plan) = scheduler.plan() {
        admitted += plan.admitted.len();
        most = most.max(plan.admitted.len());
        assert!(plan.admitted.iter().all(|admitted| admitted.cached_tokens > 398_000));
        answer(&mut scheduler, &plan.step);
        assert!(sent(plan.step) <= MAX_FRAME);
    }
    assert_eq!(admitted, 128);
    assert!((20..128).contains(&most), "{most} in one step");
}

#[test]
fn a_sequence_whose_admission_exceeds_a_frame_is_refused() {
    let limits = SchedulerLimits {
        max_sequence_tokens: 100_000,
        num_blocks: 10_000,
        max_frame_bytes: 40_000,
        ..LIMITS
    };
    let mut scheduler = Scheduler::new(limits, SchedulerOptions::default());
    let refused = scheduler.add(request(50_000, 10)).unwrap_err();
    assert!(matches!(refused, InfeasibleRequest::ExceedsFrame { tokens: 50_010, .. }), "{refused}");
    scheduler.add(request(5_000, 10)).unwrap();
}

fn requests() -> impl Strategy<Value = Request> {
    let extras = (0usize..120, 0u32..100, prop::option::of(0u32..100), 0u8..4);
    (1usize..150, 0u32..6, any::<bool>(), extras).prop_map(
        |(prompt, new, masked, (biases, top_n, scored, kind))| {
            let logit_bias = vec![LogitBias { token: 99, bias: 1.0 }; biases];
            let pooling = [None, None, Some(Pooling::Last), Some(Pooling::Mean)][kind as usize];
            Request {
                sampling: Sampling { logit_bias, top_n, ..sampling(0) },
                mask: masked.then(|| pretend_mask(&[], 100)),
                prompt_logprobs: scored,
                pooling,
                ..request(prompt, new.max(u32::from(scored.is_none())))
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// No mix of requests exceeds a frame in either direction, and all requests end.
    #[test]
    fn no_mix_of_requests_exceeds_a_frame(
        requests in prop::collection::vec(requests(), 1..20),
        max_frame_bytes in 10_000usize..30_000,
        max_sequences in 1usize..12,
    ) {
        let limits = SchedulerLimits { max_frame_bytes, max_sequences, max_step_tokens: 200, num_blocks: 64, max_vector_len: 2, ..LIMITS };
        let mut pair = Pair::new(limits);
        let taken = requests.iter().filter(|request| pair.scheduler.add((*request).clone()).is_ok()).count();
        prop_assert_eq!(taken, requests.len());
        let mut held: Vec<(crate::SeqId, Vec<u32>)> = Vec::new();
        let mut ended = 0;
        for _ in 0..10_000 {
            let Some(plan) = pair.scheduler.plan() else { break };
            let output = pair.shard.run(&plan.step).map_err(TestCaseError::fail)?;
            prop_assert!(sent(plan.step) <= max_frame_bytes);
            prop_assert!(answered(output.clone()) <= max_frame_bytes);
            for output in pair.scheduler.apply(output).unwrap() {
                ended += usize::from(output.finish.is_some());
                if let crate::SequenceEvent::Token(sampled) = output.event {
                    let at = held.iter().position(|(id, _)| *id == output.sequence).unwrap_or_else(|| {
                        held.push((output.sequence, Vec::new()));
                        held.len() - 1
                    });
                    held[at].1.push(sampled.token);
                    let (id, tokens) = &held[at];
                    pair.scheduler.release(*id, tokens.len(), pretend_mask(tokens, 100));
                }
            }
        }
        prop_assert!(pair.scheduler.is_idle());
        prop_assert_eq!(ended, requests.len());
    }
}
