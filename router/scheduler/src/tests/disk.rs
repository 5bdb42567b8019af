//! The disk cache: evicted prefixes are read again, nothing wrong is, and copies are bounded.

use millrace_proto::{DiskEntry, StepOutput};

use super::pair::{Pair, cached_tokens};
use super::{LIMITS, request};
use crate::test_support::{PretendDisk, PretendShard, Trouble, sampling};
use crate::{MalformedAnswer, Request, Scheduler, SchedulerOptions};

/// A scheduler and a shard with an empty disk of so many slots.
fn with_disk(slots: u32, most_writes: Option<u64>) -> Pair {
    let mut pair = Pair::new(LIMITS);
    pair.shard.disk = PretendDisk::new(slots, most_writes);
    pair.scheduler.open_disk_cache(slots, &[]);
    pair
}

/// Three prompts of 12 full blocks and 9 tokens, of which the KV cache holds one.
fn prompts() -> [Request; 3] {
    [201, 202, 203].map(|prompt| request(prompt, 5))
}

/// The scheduler and the shard of the next server, with the same disk.
fn restarted(pair: Pair) -> Pair {
    let disk = pair.shard.disk;
    let mut scheduler = Scheduler::new(LIMITS, SchedulerOptions::default());
    scheduler.open_disk_cache(disk.slots(), &disk.entries());
    let mut shard = PretendShard::new(LIMITS);
    shard.disk = disk;
    Pair { scheduler, shard }
}

#[test]
fn an_evicted_prefix_is_read_instead_of_computed() {
    let mut pair = with_disk(100, None);
    let prompts = prompts();
    for prompt in &prompts {
        assert_eq!(pair.complete(prompt), 0);
    }
    for round in 0..2 {
        for prompt in &prompts {
            assert_eq!(pair.complete(prompt), 192, "round {round}");
        }
    }
    let stats = pair.scheduler.stats();
    assert_eq!((stats.disk_blocks, stats.disk_written_blocks), (36, 36), "each block is written once");
    assert!(stats.disk_read_blocks >= 60 && stats.disk_failed_reads == 0, "{stats:?}");
    assert_eq!(stats.used_blocks, 0);
}

#[test]
fn the_next_server_finds_the_blocks_of_the_last_one() {
    let mut pair = with_disk(100, None);
    pair.complete(&prompts()[0]);
    let mut pair = restarted(pair);
    assert_eq!(pair.scheduler.stats().disk_blocks, 12);
    assert_eq!(pair.complete(&prompts()[0]), 192);
    assert_eq!(pair.complete(&prompts()[1]), 0);
    // Another block size has other hashes.
    let other = crate::SchedulerLimits { block_size: 8, num_blocks: 32, ..LIMITS };
    let mut scheduler = Scheduler::new(other, SchedulerOptions::default());
    scheduler.open_disk_cache(100, &pair.shard.disk.entries());
    let mut shard = PretendShard::new(other);
    shard.disk = pair.shard.disk;
    assert_eq!(Pair { scheduler, shard }.complete(&prompts()[0]), 0);
}

#[test]
fn entries_without_the_blocks_before_them_are_left_out() {
    let mut pair = with_disk(100, None);
    pair.complete(&prompts()[0]);
    let entries = pair.shard.disk.entries();
    let held = |entries: &[DiskEntry]| {
        let mut scheduler = Scheduler::new(LIMITS, SchedulerOptions::default());
        scheduler.open_disk_cache(100, entries);
        scheduler.check_integrity().unwrap();
        scheduler.stats().disk_blocks
    };
    assert_eq!(held(&entries), 12);
    assert_eq!(held(&[&entries[..4], &entries[5..]].concat()), 4);
    assert_eq!(held(&entries.iter().rev().cloned().collect::<Vec<_>>()), 12);
    // Twice the same block, a slot that does not exist, two blocks in one slot, hashes that are
    // none, and two blocks that follow each other in a circle.
    assert_eq!(held(&[&entries[..], &entries[3..]].concat()), 12);
    let change = |index: usize, change: &dyn Fn(&mut DiskEntry)| {
        let mut changed = entries.clone();
        change(&mut changed[index]);
        changed
    };
    assert_eq!(held(&change(6, &|entry| entry.slot = 100)), 6);
    assert_eq!(held(&change(6, &|entry| entry.slot = entries[2].slot)), 6);
    assert_eq!(held(&change(6, &|entry| entry.hash.truncate(15))), 6);
    assert_eq!(held(&change(0, &|entry| entry.parent = entries[7].hash.clone())), 0);
    assert_eq!(held(&change(5, &|entry| entry.parent = entries[7].hash.clone())), 5);
}

#[test]
fn a_damaged_block_and_those_after_it_are_computed() {
    let mut pair = with_disk(100, None);
    pair.complete(&prompts()[0]);
    pair.complete(&prompts()[1]);
    let fifth = pair.shard.disk.entries()[4].slot;
    pair.shard.disk.damage(|slot| slot == fifth);
    assert_eq!(pair.complete(&prompts()[0]), 64);
    assert_eq!(pair.scheduler.stats().disk_failed_reads, 1);
    // The blocks are on disk again.
    pair.complete(&prompts()[1]);
    assert_eq!(pair.complete(&prompts()[0]), 192);
    assert_eq!(pair.scheduler.stats().disk_failed_reads, 1);
}

#[test]
fn nothing_is_written_after_a_write_has_failed_and_reads_go_on() {
    let mut pair = with_disk(100, Some(12));
    for prompt in prompts() {
        pair.complete(&prompt);
    }
    let stats = pair.scheduler.stats();
    assert_eq!((stats.disk_written_blocks, stats.prefix_hit_tokens), (12, 0));
    assert!((1..12).contains(&stats.disk_failed_writes), "{stats:?}");
    assert_eq!(pair.complete(&prompts()[0]), 192);
    assert_eq!(pair.complete(&prompts()[1]), 0);
    assert_eq!(pair.scheduler.stats().disk_failed_writes, stats.disk_failed_writes);
}

#[test]
fn the_least_recently_used_prefix_leaves_the_disk_from_its_end() {
    let mut pair = with_disk(30, None);
    let [first, second, third] = prompts();
    pair.complete(&first);
    pair.complete(&second);
    assert_eq!(pair.complete(&first), 192);
    // Twelve blocks for six free slots.
    pair.complete(&third);
    assert_eq!(pair.complete(&first), 192);
    assert_eq!(pair.scheduler.stats().disk_blocks, 30);
    assert_eq!(pair.complete(&second), 96);
}

#[test]
fn a_disk_that_is_smaller_than_a_prompt_holds_its_beginning() {
    let mut pair = with_disk(5, None);
    pair.complete(&prompts()[0]);
    pair.complete(&prompts()[1]);
    assert_eq!(pair.complete(&prompts()[1]), 192, "in the KV cache");
    let stats = pair.scheduler.stats();
    assert_eq!(stats.disk_blocks, 5);
    assert_eq!(restarted(pair).complete(&prompts()[1]), 80);
}

#[test]
fn blocks_that_may_be_wrong_are_erased() {
    let mut pair = with_disk(100, None);
    let sound = request(201, 5);
    pair.complete(&sound);
    assert_eq!(pair.shard.disk.entries().len(), 12);
    let sick = Request { sampling: sampling(Trouble::Broken(200).seed()), ..sound.clone() };
    pair.add(&sick);
    while pair.step().is_some() {}
    assert_eq!(pair.shard.disk.entries(), [], "the next server would find them");
    assert_eq!(pair.complete(&sound), 0);
}

#[test]
fn copies_take_a_bounded_part_of_a_step() {
    let mut pair = with_disk(100, None);
    pair.complete(&prompts()[0]);
    pair.complete(&prompts()[1]);
    let mut copied = Vec::new();
    let stream = pair.add(&request(5, 40));
    pair.step();
    let long = pair.add(&prompts()[0]);
    loop {
        let plan = pair.scheduler.plan().unwrap();
        let copies = plan.step.disk_reads.len() + plan.step.disk_writes.len();
        let output = pair.shard.run(&plan.step).unwrap();
        // A copy takes 500 µs.
        let disk_micros = 500 * copies as u64;
        let output = StepOutput { step_micros: 1000 + disk_micros, disk_micros, ..output };
        pair.scheduler.apply(output).unwrap();
        pair.scheduler.check_integrity().unwrap();
        assert!(!plan.step.rows.is_empty(), "the stream goes on");
        copied.push(copies);
        if let Some(cached) = cached_tokens(&plan, long) {
            assert_eq!(cached, 192);
            break;
        }
    }
    // Before a time is known, copies are few. Then a step has as many as take two milliseconds.
    assert_eq!(copied[0], 1);
    assert!(copied.iter().all(|&copies| copies <= 4) && copied.contains(&4), "{copied:?}");
    assert!(pair.scheduler.stats().running >= 1, "{stream:?}");
}

#[test]
fn a_sequence_that_was_cancelled_leaves_nothing_behind() {
    let mut pair = with_disk(100, None);
    pair.complete(&prompts()[0]);
    pair.complete(&prompts()[1]);
    let id = pair.add(&prompts()[0]);
    let first = pair.scheduler.plan().unwrap().step;
    assert!(!first.disk_reads.is_empty() && first.rows.is_empty());
    pair.scheduler.cancel(id);
    let output = pair.shard.run(&first).unwrap();
    pair.scheduler.apply(output).unwrap();
    while pair.step().is_some() {}
    assert_eq!(pair.scheduler.stats().used_blocks, 0);
    assert_eq!(pair.complete(&prompts()[0]), 192);
}

#[test]
fn failed_reads_that_are_no_reads_are_malformed() {
    let mut pair = with_disk(100, None);
    pair.complete(&prompts()[0]);
    pair.complete(&prompts()[1]);
    pair.add(&prompts()[0]);
    let step = pair.scheduler.plan().unwrap().step;
    let reads = step.disk_reads.len() as u32;
    let good = pair.shard.run(&step).unwrap();
    for failed_disk_reads in [vec![reads], vec![0, 0]] {
        let malformed = pair.scheduler.apply(StepOutput { failed_disk_reads, ..good.clone() }).unwrap_err();
        assert_eq!(malformed, MalformedAnswer::DiskReads { step: step.id });
    }
    pair.scheduler.apply(good).unwrap();
}
