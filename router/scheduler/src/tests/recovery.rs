//! Recovery: the shards are lost, and the sequences continue with new ones.

use super::pair::{Pair, cached_tokens};
use super::{LIMITS, request, token};
use crate::test_support::{PretendShard, alone};
use crate::{AdapterId, InfeasibleRequest, Request, SchedulerLimits};

#[test]
fn streams_continue_with_the_same_text() {
    let mut pair = Pair::new(LIMITS);
    let requests: Vec<_> = (0..7).map(|i| request(10 + 9 * i, 30)).collect();
    let ids: Vec<_> = requests.iter().map(|request| pair.add(request)).collect();
    let mut got = vec![Vec::new(); ids.len()];
    let mut finished = 0;
    for tick in 1.. {
        if tick % 20 == 0 && tick < 100 {
            // Two steps in flight are lost.
            let lost = [pair.scheduler.plan(), pair.scheduler.plan()];
            assert!(lost[0].is_some());
            assert_eq!(pair.scheduler.recover(LIMITS), []);
            assert_eq!(pair.scheduler.check_integrity(), Ok(()));
            pair.shard = PretendShard::new(LIMITS);
            let stats = pair.scheduler.stats();
            assert_eq!((stats.running, stats.used_blocks, stats.cached_blocks), (0, 0, 0));
            assert_eq!(pair.scheduler.in_flight(), 0);
        }
        let Some((_, outputs)) = pair.step() else { break };
        for output in outputs {
            got[ids.iter().position(|&id| id == output.sequence).unwrap()].push(token(&output));
            finished += usize::from(output.finish.is_some());
        }
    }
    assert_eq!(finished, ids.len());
    for (request, got) in requests.iter().zip(got) {
        assert_eq!(got, alone(request, LIMITS.vocab_size).0);
    }
}

#[test]
fn sequences_keep_their_order_and_nothing_is_cached() {
    let mut pair = Pair::new(SchedulerLimits { max_sequences: 2, ..LIMITS });
    let ids: Vec<_> = (0..4).map(|_| pair.add(&request(40, 30))).collect();
    pair.step();
    pair.step();
    pair.step();
    assert_eq!(pair.scheduler.recover(LIMITS), []);
    pair.shard = PretendShard::new(LIMITS);
    assert_eq!(pair.scheduler.stats().waiting, 4);
    let (plan, _) = pair.step().unwrap();
    assert_eq!(plan.admitted[0].sequence, ids[0]);
    assert_eq!(cached_tokens(&plan, ids[0]), Some(0));
    assert_eq!(plan.step.admit[0].prompt_len, 40);
    assert!(plan.step.release.is_empty());
}

#[test]
fn sequences_keep_their_adapters() {
    let limits = SchedulerLimits { adapters: 2, num_blocks: 8, ..LIMITS };
    let mut pair = Pair::new(limits);
    let adapters = [Some(AdapterId(1)), None, Some(AdapterId(0))];
    let requests = adapters.map(|adapter| Request { adapter, ..request(20, 30) });
    let ids = requests.each_ref().map(|request| pair.add(request));
    (0..5).for_each(|_| drop(pair.step()));
    assert_eq!(pair.scheduler.recover(limits), []);
    pair.shard = PretendShard::new(limits);
    let (got, _) = pair.run(&ids);
    assert!(pair.scheduler.stats().preemptions > 0, "three sequences of 50 tokens need 12 blocks of 8");
    let new: Vec<_> = got.iter().map(|(tokens, _)| tokens.clone()).collect();
    for (new, request) in new.iter().zip(&requests) {
        let expected = alone(request, LIMITS.vocab_size).0;
        assert_eq!(new[..], expected[expected.len() - new.len()..]);
        assert!(!new.is_empty());
    }
}

#[test]
fn an_adapter_is_refused_if_the_shards_have_no_place_for_any() {
    let mut pair = Pair::new(SchedulerLimits { adapters: 1, ..LIMITS });
    let adapted = |number| Request { adapter: Some(AdapterId(number)), ..request(20, 30) };
    // Numbers of adapters grow while the server runs, and the places stay.
    let ids = [0, 7].map(|number| pair.add(&adapted(number)));
    pair.add(&request(20, 30));
    let refused = pair.scheduler.recover(LIMITS);
    assert_eq!(refused, ids.map(|id| (id, InfeasibleRequest::NoAdapters)));
    assert_eq!(pair.scheduler.add(adapted(0)), Err(InfeasibleRequest::NoAdapters));
}

#[test]
fn sequences_that_the_new_shards_cannot_run_are_returned() {
    let mut pair = Pair::new(LIMITS);
    let [small, large] = [20, 200].map(|prompt| pair.add(&request(prompt, 30)));
    let (_, outputs) = pair.step().unwrap();
    assert_eq!(outputs[0].sequence, small);
    let limits = SchedulerLimits { num_blocks: 8, ..LIMITS };
    let refused = pair.scheduler.recover(limits);
    assert!(matches!(refused[..], [(id, InfeasibleRequest::ExceedsPool { needed: 15, .. })] if id == large));
    pair.shard = PretendShard::new(limits);
    assert_eq!(pair.run(&[small]).0[0].0, alone(&request(20, 30), 100).0[1..]);
}
