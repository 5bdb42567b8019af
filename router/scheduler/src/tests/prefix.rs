//! The prefix cache: computed prefixes are reused, and nothing else is.

use super::pair::{Pair, cached_tokens};
use super::{LIMITS, request};
use crate::test_support::alone;
use crate::{AdapterId, CacheEvent, PlannedStep, Request, SchedulerLimits, SchedulerOptions};

fn with_prompt(prompt: Vec<u32>) -> Request {
    Request { prompt, ..request(1, 5) }
}

#[test]
fn a_prompt_is_computed_once() {
    let mut pair = Pair::new(LIMITS);
    assert_eq!(pair.complete(&request(100, 5)), 0);
    assert_eq!(pair.complete(&request(100, 5)), 96);
    // At least one token is always left to compute.
    assert_eq!(pair.complete(&request(96, 5)), 0, "another prompt");
    assert_eq!(pair.complete(&request(96, 5)), 80);
    let stats = pair.scheduler.stats();
    assert_eq!((stats.prefix_hit_tokens, stats.prefix_miss_tokens), (96 + 80, 100 + 4 + 96 + 16));
    assert_eq!((stats.used_blocks, stats.prefix_evicted_blocks), (0, 0));
}

#[test]
fn a_running_sequence_shares_its_answered_blocks() {
    let mut pair = Pair::new(LIMITS);
    let first = pair.add(&request(100, 40));
    pair.step();
    pair.step();
    // Two steps of 32 tokens: four blocks. The second prompt has them in common with the first one.
    let prompt = [&request(100, 40).prompt[..64], &[1; 20]].concat();
    let like = Request { prompt, ..request(100, 40) };
    let second = pair.add(&like);
    let (plan, _) = pair.step().unwrap();
    assert_eq!(cached_tokens(&plan, second), Some(64));
    let expected = [request(100, 40), like].map(|request| alone(&request, LIMITS.vocab_size));
    let (got, _) = pair.run(&[first, second]);
    assert_eq!(got, expected.map(|(tokens, finish)| (tokens, Some(finish))));
}

#[test]
fn the_next_turn_of_a_conversation_reuses_the_last_one() {
    let mut pair = Pair::new(LIMITS);
    let turn = request(20, 45);
    pair.complete(&turn);
    let next = [turn.prompt.clone(), alone(&turn, 100).0, vec![1, 2, 3]].concat();
    // 64 positions have been computed: the last token is never run.
    assert_eq!(pair.complete(&with_prompt(next)), 64);
}

#[test]
fn blocks_of_unanswered_steps_are_never_reused() {
    let mut pair = Pair::new(LIMITS);
    let cancelled = pair.add(&request(100, 5));
    let unanswered = pair.scheduler.plan().unwrap();
    pair.scheduler.cancel(cancelled);
    let id = pair.add(&request(100, 5));
    let plan = pair.scheduler.plan().unwrap();
    assert_eq!(cached_tokens(&plan, id), Some(0));
    for step in [unanswered.step, plan.step] {
        let output = pair.shard.run(&step).unwrap();
        pair.scheduler.apply(output).unwrap();
    }
    assert_eq!(pair.run(&[id]).0[0].0, alone(&request(100, 5), 100).0);
}

#[test]
fn requests_with_different_salts_share_nothing() {
    let mut pair = Pair::new(LIMITS);
    let salted = |salt: &str| Request { cache_salt: Some(salt.into()), ..request(100, 5) };
    for request in [request(100, 5), salted("a"), salted("b"), salted("")] {
        assert_eq!(pair.complete(&request), 0);
    }
    let mut pair = Pair::new(SchedulerLimits { num_blocks: 100, ..LIMITS });
    for cached in [0, 96] {
        for request in [request(100, 5), salted("a"), salted("b"), salted("")] {
            assert_eq!(pair.complete(&request), cached);
        }
    }
}

#[test]
fn requests_with_different_adapters_share_nothing() {
    let mut pair = Pair::new(SchedulerLimits { num_blocks: 100, adapters: 2, ..LIMITS });
    let adapters = [None, Some(AdapterId(0)), Some(AdapterId(1))];
    for cached in [0, 96] {
        for adapter in adapters {
            // The pretend shard's tokens depend on the adapter, and `complete` checks them.
            assert_eq!(pair.complete(&Request { adapter, ..request(100, 5) }), cached, "{adapter:?}");
        }
    }
    let [base, first, second] = adapters.map(|adapter| alone(&Request { adapter, ..request(100, 5) }, 100).0);
    assert!(base != first && first != second && base != second);
}

#[test]
fn events_name_the_adapter_of_the_blocks() {
    let options = SchedulerOptions { cache_events: true, ..SchedulerOptions::default() };
    let mut pair = Pair::with(SchedulerLimits { adapters: 1, ..LIMITS }, options);
    for adapter in [None, Some(AdapterId(0))] {
        pair.complete(&Request { adapter, ..request(40, 5) });
        let stored = pair.scheduler.take_cache_events().into_iter().map(|event| match event {
            CacheEvent::Stored(blocks) => (blocks.adapter, blocks.hashes.len()),
            other => panic!("{other:?}"),
        });
        assert_eq!(stored.collect::<Vec<_>>(), [(adapter, 2)]);
    }
}

#[test]
fn the_prefix_cache_can_be_turned_off() {
    let mut pair =
        Pair::with(LIMITS, SchedulerOptions { prefix_cache: false, ..SchedulerOptions::default() });
    for _ in 0..2 {
        assert_eq!(pair.complete(&request(100, 5)), 0);
        assert_eq!(pair.scheduler.stats().cached_blocks, 0);
    }
}

#[test]
fn the_least_recently_used_blocks_are_evicted_first_and_the_end_of_a_path_before_its_beginning() {
    // 16 blocks; each prompt leaves 5 full ones.
    let mut pair = Pair::new(LIMITS);
    let prompts: Vec<Request> =
        (0..4u32).map(|i| with_prompt((0..80).map(|token| (token + 20 * i) % 100).collect())).collect();
    for prompt in &prompts[..3] {
        assert_eq!(pair.complete(prompt), 0);
    }
    assert_eq!(pair.complete(&prompts[0]), 64);
    assert_eq!(pair.complete(&prompts[3]), 0);
    // Blocks for 84 positions were needed and one was free. Only the second prompt has been
    // evicted.
    assert_eq!(pair.scheduler.stats().prefix_evicted_blocks, 5);
    assert_eq!(pair.complete(&prompts[2]), 64);
    assert_eq!(pair.complete(&prompts[0]), 64);
    assert_eq!(pair.complete(&prompts[1]), 0);
}

#[test]
fn a_preempted_sequence_finds_its_blocks_again() {
    let mut pair = Pair::new(SchedulerLimits { num_blocks: 8, ..LIMITS });
    let ids = [(17, 90), (23, 90)].map(|(prompt, new)| pair.add(&request(prompt, new)));
    while pair.scheduler.stats().preemptions == 0 {
        pair.step().unwrap();
    }
    let again = std::iter::from_fn(|| pair.step()).find_map(|(plan, _)| cached_tokens(&plan, ids[1]));
    assert!(again.unwrap() > 0, "{again:?} tokens");
}

#[test]
fn copies_of_the_same_prefix_do_not_cost_a_preemption() {
    // Both compute the same block at the same time, because a single block is not awaited. Later
    // the second one needs the whole KV cache.
    let mut pair = Pair::new(SchedulerLimits { num_blocks: 8, ..LIMITS });
    let [first, second] = [2, 112].map(|new| pair.add(&request(17, new)));
    let (plan, _) = pair.step().unwrap();
    assert_eq!(plan.admitted.len(), 2);
    let (got, _) = pair.run(&[first, second]);
    assert_eq!(got[1].0, alone(&request(17, 112), 100).0);
    assert_eq!(pair.scheduler.stats().preemptions, 0);
}

#[test]
fn a_copy_replaces_a_block_that_no_sequence_uses() {
    let mut pair = Pair::new(LIMITS);
    let first = pair.add(&request(17, 5));
    let early = pair.scheduler.plan().unwrap();
    let second = pair.add(&request(17, 5));
    let late = pair.scheduler.plan().unwrap();
    assert_eq!(cached_tokens(&late, second), Some(0));
    let answer = |pair: &mut Pair, plan: &PlannedStep| {
        let output = pair.shard.run(&plan.step).unwrap();
        pair.scheduler.apply(output).unwrap();
        let stats = pair.scheduler.stats();
        (stats.used_blocks, stats.cached_blocks)
    };
    answer(&mut pair, &early);
    pair.scheduler.cancel(first);
    assert_eq!(answer(&mut pair, &late), (2, 0));
    assert_eq!(pair.scheduler.check_integrity(), Ok(()));
}
