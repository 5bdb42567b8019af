//! Shares of the time of a step, and of the slots.

use std::collections::HashMap;

use millrace_proto::{Row, Step};

use super::latency::{LEARNING, LIMITS, SlowPair};
use super::pretend_speed::PretendSpeed;
use super::request;
use crate::{Priority, Request, SchedulerOptions, Tenant};

const SPEEDS: [PretendSpeed; 3] = [PretendSpeed::CPU, PretendSpeed::GPU, PretendSpeed::TINY];

fn of(tenant: &str, prompt: usize, new: u32) -> Request {
    Request { tenant: Tenant::named(tenant), ..request(prompt, new) }
}

/// A prompt that shares no block with those of other numbers.
fn distinct(number: u32, request: Request) -> Request {
    let prompt = request.prompt.iter().map(|token| (token + 7 * number) % 100).collect();
    Request { prompt, ..request }
}

/// A pair whose first slot to be taken is that of an endless stream of a tenant, which decodes.
fn beside_a_stream(speed: PretendSpeed, priority: Priority) -> (SlowPair, u32) {
    let options = SchedulerOptions { target_micros: 50_000.0, ..SchedulerOptions::default() };
    let mut pair = SlowPair::with(1, speed, options);
    pair.add(Request { priority, ..of("victim", 30, 5000) });
    let mut slot = None;
    for _ in 0..LEARNING {
        slot = pair.step().and_then(|step| Some(step.rows.first()?.slot));
    }
    (pair, slot.expect("the stream runs"))
}

fn row(step: &Step, slot: u32) -> Option<&Row> {
    step.rows.iter().find(|row| row.slot == slot)
}

/// The largest ratio of the time of a step to the time of the victim's row alone, in the steps
/// after the flood has been noticed. Every step has a row of the victim.
fn worst_stretch(pair: &mut SlowPair, slot: u32, steps: usize) -> f64 {
    // The times of mixed steps must be learned first.
    (0..LEARNING).for_each(|_| drop(pair.step()));
    let stretch = |_| {
        let step = pair.step().expect("streams run");
        pair.speed.time(&step.rows) / pair.speed.time(row(&step, slot))
    };
    (0..steps).map(stretch).fold(0.0, f64::max)
}

#[test]
fn a_flood_of_streams_stretches_the_steps_of_another_tenant_at_most_three_times() {
    for speed in SPEEDS {
        for priority in [Priority::High, Priority::Normal] {
            let (mut pair, slot) = beside_a_stream(speed, priority);
            for number in 0..63 {
                pair.add(distinct(number, of("flood", 30, 3000)));
            }
            (0..4 * LEARNING).for_each(|_| drop(pair.step()));
            let worst = worst_stretch(&mut pair, slot, 300);
            assert!((1.2..3.6).contains(&worst), "{worst} on {speed:?}");
        }
    }
}

#[test]
fn held_rows_take_turns() {
    let (mut pair, slot) = beside_a_stream(PretendSpeed::TINY, Priority::Normal);
    for number in 0..20 {
        pair.add(distinct(number, of("flood", 30, 3000)));
    }
    (0..400).for_each(|_| drop(pair.step()));
    let mut rows: HashMap<u32, usize> = HashMap::new();
    for _ in 0..300 {
        for row in pair.step().expect("streams run").rows {
            *rows.entry(row.slot).or_default() += 1;
        }
    }
    assert_eq!(rows.remove(&slot), Some(300), "the smallest tenant is never held");
    let (fewest, most) = (rows.values().min().unwrap(), rows.values().max().unwrap());
    assert!(rows.len() == 20 && *most < 200 && most - fewest <= fewest / 4, "{rows:?}");
}

#[test]
fn long_prompts_stretch_the_steps_of_another_tenant_at_most_three_times() {
    for speed in SPEEDS {
        let (mut pair, slot) = beside_a_stream(speed, Priority::Normal);
        for number in 0..4 {
            pair.add(distinct(number, of("flood", 9000, 1)));
        }
        let worst = worst_stretch(&mut pair, slot, 20);
        assert!((1.2..3.6).contains(&worst), "{worst} on {speed:?}");
    }
}

#[test]
fn two_equal_tenants_hold_no_rows() {
    let (mut pair, _) = beside_a_stream(PretendSpeed::TINY, Priority::Normal);
    for number in 0..20 {
        pair.add(distinct(number, of(if number % 2 == 0 { "victim" } else { "flood" }, 30, 3000)));
    }
    (0..200).for_each(|_| drop(pair.step()));
    for _ in 0..100 {
        assert_eq!(pair.step().expect("streams run").rows.len(), 21);
    }
}

#[test]
fn a_tenant_that_has_left_is_soon_forgotten() {
    let mut pair = SlowPair::with(1, PretendSpeed::TINY, SchedulerOptions::default());
    pair.add(of("victim", 30, 60));
    for number in 0..20 {
        pair.add(distinct(number, of("flood", 30, 5000)));
    }
    while pair.step().expect("streams run").rows.len() < 20 {}
    for _ in 0..50 {
        assert_eq!(pair.step().expect("streams run").rows.len(), 20);
    }
}

/// The victim's first token comes soon although another tenant computes many long prompts.
#[test]
fn a_short_prompt_passes_the_long_ones_of_another_tenant() {
    for speed in SPEEDS {
        let options = SchedulerOptions { target_micros: 5000.0, ..SchedulerOptions::default() };
        let mut pair = SlowPair::with(1, speed, options);
        for number in 0..30 {
            pair.add(distinct(number, of("flood", 5000, 100)));
        }
        (0..LEARNING).for_each(|_| drop(pair.step()));
        let first = pair.add(of("victim", 12, 5));
        let waiting = pair.scheduler.stats().waiting;
        let admitted = (0..8).any(|_| {
            pair.step();
            pair.scheduler.position(first).is_some() || pair.scheduler.get(first).is_none()
        });
        assert!(admitted, "it waits with {waiting} others on {speed:?}");
    }
}

#[test]
fn a_tenant_without_slots_takes_one_of_a_tenant_that_has_more_than_its_share() {
    for prefix_cache in [true, false] {
        let options = SchedulerOptions { prefix_cache, ..SchedulerOptions::default() };
        let mut pair = SlowPair::with(1, PretendSpeed::TINY, options);
        for number in 0..LIMITS.max_sequences as u32 + 10 {
            pair.add(distinct(number, of("flood", 30, 5000)));
        }
        while pair.scheduler.stats().running < LIMITS.max_sequences {
            pair.step();
        }
        let others = [0, 1].map(|number| pair.add(distinct(number, of("victim", 20, 5000))));
        (0..LEARNING).for_each(|_| drop(pair.step()));
        let run = others.iter().all(|&id| pair.scheduler.position(id).is_some());
        assert_eq!(
            (run, pair.scheduler.stats().slot_preemptions),
            (prefix_cache, 2 * u64::from(prefix_cache))
        );
    }
}
