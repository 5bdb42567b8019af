//! The order of sequences, and that no sequence waits forever.

use super::pair::Pair;
use super::{LIMITS, request};
use crate::{Priority, Request, SchedulerLimits, SchedulerOptions, SeqId};

fn with_priority(priority: Priority, request: Request) -> Request {
    Request { priority, ..request }
}

/// Number of steps until `id` has its first token, while requests like `others` keep the queue
/// full.
fn steps_until_served(pair: &mut Pair, id: SeqId, others: &Request, limit: usize) -> usize {
    for steps in 1..=limit {
        while pair.scheduler.stats().waiting < 4 {
            pair.add(others);
        }
        let (_, outputs) = pair.step().unwrap();
        if outputs.iter().any(|output| output.sequence == id) {
            return steps;
        }
    }
    panic!("not served in {limit} steps");
}

#[test]
fn the_queue_is_ordered_by_priority_then_by_arrival() {
    let mut pair = Pair::new(SchedulerLimits { max_sequences: 1, ..LIMITS });
    use Priority::{High, Low, Normal};
    pair.add(&with_priority(High, request(5, 3)));
    pair.step();
    let ids = [Low, Normal, High, Low, Normal, High].map(|p| pair.add(&with_priority(p, request(5, 3))));
    let mut order = Vec::new();
    while let Some((plan, _)) = pair.step() {
        order.extend(plan.admitted.into_iter().map(|admitted| admitted.sequence));
    }
    assert_eq!(order, [2, 5, 1, 4, 0, 3].map(|index| ids[index]));
}

#[test]
fn the_lowest_priority_is_preempted_first() {
    let mut pair = Pair::new(SchedulerLimits { num_blocks: 8, ..LIMITS });
    let low = pair.add(&with_priority(Priority::Low, request(17, 90)));
    pair.step();
    let high = pair.add(&with_priority(Priority::High, request(18, 90)));
    let mut admitted = Vec::new();
    while let Some((plan, _)) = pair.step() {
        admitted.extend(plan.admitted.into_iter().map(|admitted| admitted.sequence));
    }
    assert!(pair.scheduler.stats().preemptions > 0);
    assert_eq!(admitted.iter().filter(|&&id| id == high).count(), 1);
    assert!(admitted.contains(&low), "it was admitted again");
}

#[test]
fn a_low_priority_is_served_eventually() {
    let options = SchedulerOptions { ageing_steps: 50, ..SchedulerOptions::default() };
    let limits = SchedulerLimits { max_sequences: 2, ..LIMITS };
    let flood = with_priority(Priority::High, request(8, 6));
    for (priority, least, most) in [(Priority::Normal, 40, 80), (Priority::Low, 90, 140)] {
        let mut pair = Pair::with(limits, options);
        for _ in 0..4 {
            pair.add(&flood);
        }
        let id = pair.add(&with_priority(priority, request(9, 6)));
        let steps = steps_until_served(&mut pair, id, &flood, 1000);
        assert!((least..most).contains(&steps), "{priority:?}: {steps} steps");
    }
}

#[test]
fn a_sequence_that_does_not_fit_is_overtaken_but_not_forever() {
    let mut pair = Pair::new(LIMITS);
    // Half of the KV cache, for some steps.
    pair.add(&request(100, 20));
    pair.step();
    let huge = pair.add(&request(200, 20));
    let small = pair.add(&request(10, 5));
    let (plan, _) = pair.step().unwrap();
    assert_eq!(plan.admitted.len(), 1);
    assert_eq!(plan.admitted[0].sequence, small);
    // Small requests would always leave too few blocks for the huge one.
    let steps = steps_until_served(&mut pair, huge, &request(30, 40), 1000);
    assert!(steps < 200, "{steps} steps");
}

#[test]
fn a_long_prompt_does_not_delay_a_short_one() {
    let mut pair = Pair::new(SchedulerLimits { num_blocks: 100, ..LIMITS });
    pair.add(&request(900, 5));
    pair.step();
    let short = pair.add(&request(10, 5));
    let (_, outputs) = pair.step().unwrap();
    assert_eq!(outputs[0].sequence, short);
}

#[test]
fn the_queue_counts_its_tokens() {
    let mut pair = Pair::new(LIMITS);
    let ids = [10, 20, 30].map(|prompt| pair.add(&request(prompt, 5)));
    assert_eq!(pair.scheduler.stats().waiting_tokens, 60);
    pair.scheduler.cancel(ids[1]);
    assert_eq!(pair.scheduler.stats().waiting_tokens, 40);
    pair.step();
    pair.step();
    assert_eq!((pair.scheduler.stats().waiting, pair.scheduler.stats().waiting_tokens), (0, 0));
}
