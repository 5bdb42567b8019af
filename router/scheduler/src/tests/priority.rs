//! Preemption by priority: no inversion, and bounds on the preemptions.

use std::collections::HashMap;

use Priority::{High, Low, Normal};
use proptest::prelude::*;

use super::pair::Pair;
use super::{LIMITS, request, token};
use crate::test_support::{alone, pretend_mask};
use crate::{PlannedStep, Priority, Request, Scheduler, SchedulerLimits, SchedulerOptions, SeqId};

fn with(priority: Priority, prompt: usize, new: u32) -> Request {
    Request { priority, ..request(prompt, new) }
}

fn admitted(plan: &PlannedStep) -> Vec<SeqId> {
    plan.admitted.iter().map(|admitted| admitted.sequence).collect()
}

/// Runs until nothing is left to run, and checks that every request gets its own tokens.
fn complete(pair: &mut Pair, expected: &HashMap<SeqId, Request>, mut tokens: HashMap<SeqId, Vec<u32>>) {
    while let Some((_, outputs)) = pair.step() {
        outputs.iter().for_each(|output| tokens.entry(output.sequence).or_default().push(token(output)));
    }
    for (id, request) in expected {
        assert_eq!(tokens[id], alone(request, LIMITS.vocab_size).0, "{id:?}");
    }
}

#[test]
fn a_higher_priority_takes_the_slot_of_the_last_of_the_lowest() {
    let mut pair = Pair::new(SchedulerLimits { max_sequences: 3, num_blocks: 64, ..LIMITS });
    let requests = [with(Low, 5, 60), with(Low, 6, 60), with(Normal, 7, 60), with(High, 8, 10)];
    let mut ids: Vec<SeqId> = requests[..3].iter().map(|request| pair.add(request)).collect();
    let mut tokens: HashMap<SeqId, Vec<u32>> = HashMap::new();
    for _ in 0..10 {
        let (_, outputs) = pair.step().unwrap();
        outputs.iter().for_each(|output| tokens.entry(output.sequence).or_default().push(token(output)));
    }
    ids.push(pair.add(&requests[3]));
    let (plan, outputs) = pair.step().unwrap();
    outputs.iter().for_each(|output| tokens.entry(output.sequence).or_default().push(token(output)));
    assert_eq!((admitted(&plan), plan.step.release.len()), (vec![ids[3]], 1));
    let stats = pair.scheduler.stats();
    assert_eq!((stats.priority_preemptions, stats.preemptions, stats.waiting), (1, 0, 1));
    assert!(outputs.iter().any(|output| output.sequence == ids[3]), "{outputs:?}");
    assert!(!outputs.iter().any(|output| output.sequence == ids[1]), "the last of the lowest priority left");
    // Its slot goes to nobody of the same priority: it waits for the high one to end.
    let expected = ids.into_iter().zip(requests).collect();
    complete(&mut pair, &expected, tokens);
    assert_eq!(pair.scheduler.stats().priority_preemptions, 1);
}

#[test]
fn a_higher_priority_takes_a_slot_although_an_aged_sequence_is_before_it() {
    let options = SchedulerOptions { ageing_steps: 30, ..SchedulerOptions::default() };
    let mut pair = Pair::with(SchedulerLimits { max_sequences: 2, num_blocks: 64, ..LIMITS }, options);
    let add_after = |pair: &mut Pair, steps: usize, priority: Priority| {
        (0..steps).for_each(|_| _ = pair.step().unwrap());
        pair.add(&with(priority, 5, 150))
    };
    let low = add_after(&mut pair, 0, Low);
    let normal = add_after(&mut pair, 35, Normal);
    let high = add_after(&mut pair, 5, High);
    let (plan, _) = pair.step().unwrap();
    assert_eq!(admitted(&plan), [high], "it takes the slot of the low one");
    let second = add_after(&mut pair, 21, High);
    assert!(low < second && second < normal, "the low one has aged");
    let (plan, _) = pair.step().unwrap();
    assert_eq!(admitted(&plan), [second], "the low one may not take the slot of the normal one");
    let mut order = Vec::new();
    while let Some((plan, _)) = pair.step() {
        order.extend(admitted(&plan));
    }
    assert_eq!(order, [low, normal]);
}

#[test]
fn a_higher_priority_takes_the_blocks_of_a_lower_one() {
    // The cache holds one of these sequences.
    let limits = SchedulerLimits { num_blocks: 10, ..LIMITS };
    let mut pair = Pair::new(limits);
    let low = pair.add(&with(Low, 64, 60));
    for _ in 0..10 {
        pair.step().unwrap();
    }
    let high = pair.add(&with(High, 70, 20));
    let (plan, _) = pair.step().unwrap();
    assert_eq!(admitted(&plan), [high]);
    assert_eq!(pair.scheduler.stats().priority_preemptions, 1);
    let mut order = Vec::new();
    while let Some((plan, _)) = pair.step() {
        order.extend(admitted(&plan));
    }
    assert_eq!(order, [low]);
}

#[test]
fn nothing_is_preempted_if_it_does_not_help() {
    // The cache has 16 blocks. The normal sequence keeps most of them.
    let mut pair = Pair::new(LIMITS);
    pair.add(&with(Normal, 150, 60));
    pair.add(&with(Low, 5, 60));
    for _ in 0..12 {
        pair.step().unwrap();
    }
    // A second normal one could take the place of the low one only, which is not enough.
    let normal = pair.add(&with(Normal, 100, 10));
    for _ in 0..20 {
        let (plan, _) = pair.step().unwrap();
        assert!(!admitted(&plan).contains(&normal), "there are no blocks for it");
    }
    assert_eq!(pair.scheduler.stats().priority_preemptions, 0);
    let high = pair.add(&with(High, 100, 10));
    let (plan, _) = pair.step().unwrap();
    assert!(admitted(&plan).contains(&high));
    assert_eq!(pair.scheduler.stats().priority_preemptions, 2, "the low one leaves first");
}

#[test]
fn an_aged_sequence_and_one_of_the_same_priority_keep_their_places() {
    let options = SchedulerOptions { ageing_steps: 20, ..SchedulerOptions::default() };
    let limits = SchedulerLimits { max_sequences: 1, num_blocks: 64, ..LIMITS };
    let mut pair = Pair::with(limits, options);
    let first = pair.add(&with(Normal, 5, 100));
    // A high one arrives after 10 steps, and takes the place. Others arrive when the first one has
    // aged.
    let mut places = 0;
    for step in 0..200 {
        match step {
            10 => _ = pair.add(&with(High, 5, 5)),
            12 => _ = pair.add(&with(Normal, 5, 5)),
            25..60 => _ = pair.add(&with(High, 5, 5)),
            _ => {}
        }
        let Some((plan, _)) = pair.step() else { break };
        places += admitted(&plan).iter().filter(|&&id| id == first).count();
    }
    assert_eq!((places, pair.scheduler.stats().priority_preemptions), (2, 1));
}

#[test]
fn without_ageing_priorities_have_no_effect() {
    let options = SchedulerOptions { ageing_steps: 0, ..SchedulerOptions::default() };
    let mut pair = Pair::with(LIMITS, options);
    pair.add(&with(Normal, 250, 5));
    pair.step();
    // It waits for blocks, and a later one of lower priority overtakes it.
    pair.add(&with(High, 200, 5));
    pair.add(&with(Low, 5, 30));
    for _ in 0..8 {
        pair.step();
    }
    assert_eq!(pair.scheduler.stats().priority_preemptions, 0);
}

#[test]
fn a_preempted_prompt_with_a_row_in_flight_is_computed_again() {
    let limits = SchedulerLimits { max_sequences: 1, num_blocks: 64, ..LIMITS };
    for constrained in [false, true] {
        let mut pair = Pair::new(limits);
        let mask = constrained.then(|| pretend_mask(&[], limits.vocab_size));
        let long = Request { mask, ..with(Low, 100, 1) };
        let low = pair.add(&long);
        let in_flight = pair.scheduler.plan().unwrap();
        let high = pair.add(&with(High, 5, 1));
        let next = pair.scheduler.plan().unwrap();
        assert_eq!(admitted(&next), [high]);
        for plan in [in_flight, next] {
            let output = pair.shard.run(&plan.step).unwrap();
            pair.scheduler.apply(output).unwrap();
            pair.scheduler.check_integrity().unwrap();
        }
        complete(&mut pair, &HashMap::from([(low, long)]), HashMap::new());
    }
}

proptest! {
    /// There are always enough blocks and tokens, so only slots are missing.
    #[test]
    fn no_sequence_runs_while_an_earlier_one_of_higher_priority_waits(
        arrivals in prop::collection::vec((0usize..12, 0usize..3, 1usize..20, 1u32..40), 1..40),
        slots in 1usize..5,
        ageing_steps in 1u32..100,
    ) {
        let limits =
            SchedulerLimits { max_sequences: slots, num_blocks: 1000, max_step_tokens: 4096, ..LIMITS };
        // With a prefix cache, a sequence may also wait for a prefix that another one is computing.
        let options = SchedulerOptions { ageing_steps, prefix_cache: false, ..SchedulerOptions::default() };
        let mut pair = Pair::with(limits, options);
        let mut arrivals = arrivals.into_iter().peekable();
        let mut pause = 0;
        loop {
            while let Some((_, priority, prompt, new)) = arrivals.next_if(|(after, ..)| *after <= pause) {
                let priority = [High, Normal, Low][priority];
                pair.add(&with(priority, prompt, new));
                pause = 0;
            }
            pause += 1;
            if pair.step().is_none() {
                if arrivals.peek().is_none() {
                    break;
                }
                continue;
            }
            let Scheduler { running, waiting, .. } = &pair.scheduler;
            for later in running.iter().map(|running| &running.sequence) {
                for earlier in waiting.iter() {
                    let may_run = earlier.id > later.id || earlier.priority >= later.priority;
                    prop_assert!(may_run, "{:?} waits and {:?} runs", earlier.id, later.id);
                }
            }
        }
        prop_assert!(pair.scheduler.is_idle());
    }
}
