//! More adapters than places: who waits for a place, and who does not.

use super::pair::Pair;
use super::{LIMITS, request};
use crate::test_support::{PretendShard, alone};
use crate::{AdapterId, PlannedStep, Priority, Request, SchedulerLimits, SchedulerOptions, SeqId, Tenant};

/// Two places for many adapters.
const TWO: SchedulerLimits =
    SchedulerLimits { adapters: 2, max_loaded_adapters: 9, max_sequences: 6, num_blocks: 64, ..LIMITS };

const ONE: SchedulerLimits = SchedulerLimits { adapters: 1, ..TWO };

fn with(adapter: u32, prompt: usize, new: u32) -> Request {
    Request { adapter: Some(AdapterId(adapter)), ..request(prompt, new) }
}

/// The adapters that a step copies, with their places.
fn copies(plan: &PlannedStep) -> Vec<(u32, u32)> {
    plan.step.adapters.iter().map(|placement| (placement.adapter, placement.place)).collect()
}

fn admits(plan: &PlannedStep, id: SeqId) -> bool {
    plan.admitted.iter().any(|admitted| admitted.sequence == id)
}

/// Runs until nothing is left to run. Returns all copies in their order.
fn run_all(pair: &mut Pair) -> Vec<(u32, u32)> {
    let mut all = Vec::new();
    while let Some((plan, _)) = pair.step() {
        all.extend(copies(&plan));
    }
    all
}

#[test]
fn the_adapter_that_was_not_used_for_longest_leaves_its_place() {
    let mut pair = Pair::new(TWO);
    let mut serve = |adapter: u32| {
        pair.add(&with(adapter, 5, 3));
        run_all(&mut pair)
    };
    assert_eq!([serve(1), serve(2), serve(1), serve(3)], [vec![(1, 0)], vec![(2, 1)], vec![], vec![(3, 1)]]);
    assert_eq!([serve(1), serve(2), serve(3)], [vec![], vec![(2, 1)], vec![(3, 0)]]);
    pair.scheduler.unload_adapter(AdapterId(3));
    pair.shard.unload(3);
    pair.add(&with(4, 5, 3));
    assert_eq!(run_all(&mut pair), [(4, 0)], "the place of an unloaded adapter is free");
}

#[test]
fn nothing_waits_if_each_adapter_has_a_place() {
    let mut pair = Pair::new(SchedulerLimits { max_loaded_adapters: 2, ..TWO });
    let ids = [7, 8].map(|adapter| pair.add(&with(adapter, 5, 3)));
    let (plan, _) = pair.step().unwrap();
    assert!(ids.iter().all(|&id| admits(&plan, id)) && copies(&plan).is_empty());
}

#[test]
fn a_stream_of_requests_for_one_adapter_does_not_keep_out_another() {
    let mut pair = Pair::new(ONE);
    let first = with(1, 5, 12);
    pair.add(&first);
    pair.step().unwrap();
    let waiting = pair.add(&with(2, 6, 4));
    // A request for the adapter in the place comes with each step.
    let (mut later, mut steps) = (Vec::new(), 0);
    let admitted = loop {
        later.push(pair.add(&with(1, 7, 12)));
        let (plan, _) = pair.step().unwrap();
        steps += 1;
        assert!(!later.iter().any(|&id| admits(&plan, id)), "nobody behind it enters the place");
        if admits(&plan, waiting) {
            break plan;
        }
    };
    assert_eq!((copies(&admitted), steps), (vec![(2, 0)], 12), "the first request has ended");
    assert_eq!(run_all(&mut pair), [(1, 0)], "all others run together");
}

/// The total work of the others is much larger than the KV cache, which bounds how far a sequence
/// that waits for blocks is overtaken.
#[test]
fn requests_without_an_adapter_pass_one_that_waits_for_a_place() {
    let limits = SchedulerLimits { num_blocks: 16, ..ONE };
    let mut pair = Pair::new(limits);
    pair.add(&with(1, 5, 100));
    let waiting = pair.add(&with(2, 6, 4));
    let mut passed = 0;
    loop {
        let other = pair.add(&request(16, 3));
        let (plan, _) = pair.step().unwrap();
        if admits(&plan, waiting) {
            break;
        }
        assert!(admits(&plan, other), "after {passed} others");
        passed += 1;
    }
    assert!(passed * 18 > 2 * limits.num_blocks * limits.block_size, "{passed} have passed");
}

#[test]
fn a_higher_priority_takes_a_place_with_all_its_sequences() {
    let mut pair = Pair::new(TWO);
    for adapter in [1, 1, 2, 2] {
        pair.add(&Request { priority: Priority::Low, ..with(adapter, 5, 60) });
    }
    (0..4).for_each(|_| _ = pair.step().unwrap());
    let urgent = pair.add(&Request { priority: Priority::High, ..with(3, 6, 4) });
    let (plan, _) = pair.step().unwrap();
    assert!(admits(&plan, urgent));
    assert_eq!((plan.step.release.len(), copies(&plan).len()), (2, 1), "{:?}", plan.step);
    assert_eq!(pair.scheduler.stats().priority_preemptions, 2);
    run_all(&mut pair);
}

/// A tenant with a free share of the slots does not enter a place that is claimed for another
/// tenant.
#[test]
fn a_share_of_the_slots_is_no_place() {
    let limits = SchedulerLimits { max_sequences: 2, ..ONE };
    let mut pair = Pair::new(limits);
    let of = |tenant: &str, request: Request| Request { tenant: Tenant::named(tenant), ..request };
    for _ in 0..2 {
        pair.add(&of("a", with(1, 5, 40)));
    }
    (0..3).for_each(|_| _ = pair.step().unwrap());
    let waiting = pair.add(&of("b", with(2, 5, 4)));
    let (plan, _) = pair.step().unwrap();
    assert!(plan.admitted.is_empty() && plan.step.release.is_empty(), "another slot would not help it");
    let mut steps = 0;
    while !admits(&pair.step().unwrap().0, waiting) {
        steps += 1;
        assert!(steps < 40);
    }
}

#[test]
fn new_shards_get_the_adapters_of_the_sequences_that_go_on() {
    let mut pair = Pair::new(TWO);
    let requests = [1, 2, 3].map(|adapter| with(adapter, 20, 30));
    let ids = requests.each_ref().map(|request| pair.add(request));
    (0..5).for_each(|_| drop(pair.step()));
    assert_eq!(pair.scheduler.recover(TWO), []);
    pair.shard = PretendShard::new(TWO);
    let (got, _) = pair.run(&ids);
    for ((tokens, finish), request) in got.iter().zip(&requests) {
        let (expected, end) = alone(request, LIMITS.vocab_size);
        assert_eq!(
            (tokens[..].to_vec(), finish.unwrap()),
            (expected[expected.len() - tokens.len()..].to_vec(), end)
        );
    }
}

#[test]
fn a_moved_sequence_waits_for_a_place_in_its_new_group() {
    let (mut first, mut second) = (Pair::new(ONE), Pair::new(ONE));
    let request = with(2, 20, 10);
    let id = first.add(&request);
    let mut got: Vec<u32> = Vec::new();
    for _ in 0..4 {
        got.extend(first.step().unwrap().1.iter().map(super::token));
    }
    let moved = first.scheduler.take(id).unwrap();
    second.add(&with(1, 5, 8));
    second.step().unwrap();
    let id = second.scheduler.adopt(moved).unwrap();
    let mut steps = 0;
    while let Some((_, outputs)) = second.step() {
        steps += 1;
        got.extend(outputs.iter().filter(|output| output.sequence == id).map(super::token));
    }
    assert_eq!(got, alone(&request, LIMITS.vocab_size).0);
    assert!(steps > 10);
}

/// Sequences that wait for each other's places for a long time: each adapter has its turn, in the
/// order in which the first request for it came.
#[test]
fn adapters_take_turns_in_the_order_of_their_requests() {
    for schedule in [crate::Schedule::Fcfs, crate::Schedule::Lpm] {
        let options = SchedulerOptions { schedule, ..SchedulerOptions::default() };
        let mut pair = Pair::with(ONE, options);
        for round in 0..3 {
            for adapter in 0..4 {
                pair.add(&with(adapter, 5 + round, 6));
            }
        }
        let turns: Vec<u32> = run_all(&mut pair).into_iter().map(|(adapter, _)| adapter).collect();
        assert_eq!(turns[..4], [0, 1, 2, 3], "{schedule:?}");
        assert!(turns.len() <= 12, "{turns:?}");
    }
}
