//! Prefixes that are being computed: others wait for them instead of computing them again.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::pair::{Pair, cached_tokens};
use super::{LIMITS, request, token};
use crate::test_support::{PretendShard, Trouble, alone, pretend_mask, sampling};
use crate::{BlockHashes, PlannedStep, Pooling, Request, Schedule, SchedulerLimits, SchedulerOptions, SeqId};

const ROOMY: SchedulerLimits = SchedulerLimits { max_sequences: 24, num_blocks: 400, ..LIMITS };

/// The ids of the sequences that a plan admits.
fn admitted(plan: &PlannedStep) -> Vec<SeqId> {
    plan.admitted.iter().map(|admitted| admitted.sequence).collect()
}

/// A request whose prompt begins with the first `common` tokens of a long prompt.
fn beginning_with(common: usize, tail: usize) -> Request {
    let common = (0..common as u32).map(|token| token * 3 % 100);
    Request {
        prompt: common.chain((0..tail as u32).map(|n| (tail as u32 + n) % 100)).collect(),
        ..request(1, 4)
    }
}

#[test]
fn a_herd_of_equal_prompts_computes_the_prompt_once() {
    let mut pair = Pair::new(ROOMY);
    let copy = |seed| Request { sampling: sampling(seed), ..request(200, 5) };
    let ids: Vec<SeqId> = (0..16).map(|seed| pair.add(&copy(seed))).collect();
    let (got, steps) = pair.run(&ids);
    for (seed, (tokens, _)) in got.iter().enumerate() {
        assert_eq!(*tokens, alone(&copy(seed as u64), 100).0);
    }
    let stats = pair.scheduler.stats();
    assert_eq!((stats.prefix_hit_tokens, stats.prefix_miss_tokens), (15 * 192, 200 + 15 * 8));
    // Seven steps for the prompt, and the ends of the 15 others beside 16 decodes.
    assert!(steps <= 7 + 8 + 5, "{steps} steps");
}

#[test]
fn a_sequence_waits_until_the_whole_common_prefix_is_there() {
    let mut pair = Pair::new(ROOMY);
    let producer = pair.add(&beginning_with(100, 60));
    pair.step();
    let follower = pair.add(&beginning_with(100, 30));
    let mut waited = 0;
    let cached = loop {
        let (plan, _) = pair.step().unwrap();
        if let Some(cached) = cached_tokens(&plan, follower) {
            break cached;
        }
        assert_eq!(plan.step.rows.len(), 1);
        waited += 1;
    };
    // The producer publishes two blocks in each step, and the tail of its own prompt is not
    // awaited.
    assert_eq!((cached, waited), (96, 2));
    pair.run(&[producer, follower]);
}

#[test]
fn others_overtake_a_sequence_that_waits_for_a_prefix() {
    let mut pair = Pair::new(ROOMY);
    let herd: Vec<SeqId> = (0..20).map(|_| pair.add(&request(200, 5))).collect();
    let other = pair.add(&request(10, 5));
    let (plan, _) = pair.step().unwrap();
    assert_eq!(admitted(&plan), [herd[0], other]);
}

#[test]
fn a_sequence_that_waits_for_a_prefix_is_not_overtaken_forever() {
    let limits = SchedulerLimits { max_sequences: 6, ..LIMITS };
    let mut pair = Pair::new(limits);
    // The KV cache has 256 positions, and a small request needs 34.
    pair.add(&request(200, 2));
    pair.step();
    let follower = pair.add(&request(200, 2));
    let small: Vec<SeqId> =
        (0..30).map(|n| pair.add(&Request { max_new_tokens: 5, ..beginning_with(0, 30 + n % 3) })).collect();
    let mut overtaking = 0;
    loop {
        let (plan, _) = pair.step().unwrap();
        let first = admitted(&plan);
        if first.contains(&follower) {
            break;
        }
        overtaking += first.iter().filter(|id| small.contains(id)).count();
    }
    assert!(overtaking <= 256 / 34, "{overtaking} sequences");
}

#[test]
fn when_the_producer_is_cancelled_another_one_continues_from_its_blocks() {
    let mut pair = Pair::new(ROOMY);
    let ids: Vec<SeqId> = (0..3).map(|_| pair.add(&request(200, 5))).collect();
    let (plan, _) = pair.step().unwrap();
    assert_eq!(admitted(&plan), ids[..1]);
    pair.step();
    pair.scheduler.cancel(ids[0]);
    let (plan, _) = pair.step().unwrap();
    // Two steps of 32 tokens have been answered. The third sequence waits for the second one now.
    assert_eq!((admitted(&plan), cached_tokens(&plan, ids[1])), (vec![ids[1]], Some(64)));
    let (got, _) = pair.run(&ids);
    assert!(got[1..].iter().all(|(tokens, _)| *tokens == alone(&request(200, 5), 100).0));
}

#[test]
fn when_the_producer_fails_the_others_go_on() {
    for trouble in [Trouble::Broken(100), Trouble::Refused] {
        let mut pair = Pair::new(ROOMY);
        pair.add(&Request { sampling: sampling(trouble.seed()), ..request(200, 5) });
        let ids: Vec<SeqId> = (0..2).map(|_| pair.add(&request(200, 5))).collect();
        let mut got: BTreeMap<SeqId, Vec<u32>> = BTreeMap::new();
        while let Some((_, outputs)) = pair.step() {
            for output in outputs.iter().filter(|output| ids.contains(&output.sequence)) {
                got.entry(output.sequence).or_default().push(token(output));
            }
        }
        assert!(pair.scheduler.is_idle());
        assert!(ids.iter().all(|id| got[id] == alone(&request(200, 5), 100).0), "{trouble:?}");
    }
}

#[test]
fn when_the_shards_are_lost_the_wait_begins_again() {
    let mut pair = Pair::new(ROOMY);
    let ids: Vec<SeqId> = (0..3).map(|_| pair.add(&request(200, 5))).collect();
    pair.step();
    pair.scheduler.plan().unwrap();
    assert_eq!(pair.scheduler.lose(), None);
    assert_eq!(pair.scheduler.recover(ROOMY), []);
    pair.shard = PretendShard::new(ROOMY);
    let (plan, _) = pair.step().unwrap();
    assert_eq!((admitted(&plan), cached_tokens(&plan, ids[0])), (vec![ids[0]], Some(0)));
    let (got, _) = pair.run(&ids);
    assert!(got.iter().all(|(tokens, _)| *tokens == alone(&request(200, 5), 100).0));
    assert_eq!(pair.scheduler.stats().prefix_hit_tokens, 2 * 192);
}

/// Adds two requests at the same time and returns whether both are admitted at once.
fn are_admitted_together(one: &Request, other: &Request, options: SchedulerOptions) -> bool {
    let mut pair = Pair::with(ROOMY, options);
    pair.add(one);
    pair.add(other);
    pair.step().unwrap().0.admitted.len() == 2
}

#[test]
fn nothing_waits_for_a_prefix_that_it_cannot_use() {
    let options = SchedulerOptions::default();
    let like = || Request { max_new_tokens: 1, ..request(100, 1) };
    assert!(!are_admitted_together(&like(), &like(), options));
    let salted = Request { cache_salt: Some("a".into()), ..like() };
    assert!(are_admitted_together(&like(), &salted, options));
    let scored = Request { prompt_logprobs: Some(1), ..like() };
    assert!(are_admitted_together(&like(), &scored, options));
    assert!(!are_admitted_together(&scored, &like(), options), "it computes everything and publishes it");
    let mean = Request { pooling: Some(Pooling::Mean), ..like() };
    assert!(are_admitted_together(&like(), &mean, options));
    let last = Request { pooling: Some(Pooling::Last), ..like() };
    assert!(!are_admitted_together(&like(), &last, options));
    assert!(are_admitted_together(&like(), &like(), SchedulerOptions { prefix_cache: false, ..options }));
}

#[test]
fn nothing_waits_for_a_short_common_prefix() {
    let options = SchedulerOptions::default();
    // One block, and two blocks of which the second one has the last token of the prompt.
    for (common, tail, together) in [(31, 30, true), (32, 30, false), (32, 0, true), (33, 0, false)] {
        let [one, other] = [tail, tail / 2].map(|tail| beginning_with(common, tail));
        assert_eq!(are_admitted_together(&one, &other, options), together, "{common} and {tail} tokens");
    }
}

#[test]
fn a_short_prompt_does_not_wait_for_a_long_one_that_gets_few_tokens() {
    // The first prompt gets half of each step, and the rest goes to the shortest ones.
    let mut pair = Pair::new(SchedulerLimits { max_step_tokens: 64, ..ROOMY });
    pair.add(&request(900, 2));
    pair.add(&beginning_with(64, 600));
    pair.step();
    let short = pair.add(&beginning_with(64, 20));
    assert_eq!(admitted(&pair.step().unwrap().0), [short]);
    // A prompt of a similar length would not be computed earlier, so it waits.
    let mut pair = Pair::new(SchedulerLimits { max_step_tokens: 64, ..ROOMY });
    pair.add(&request(900, 2));
    pair.add(&beginning_with(64, 30));
    pair.add(&beginning_with(64, 20));
    assert_eq!(pair.step().unwrap().0.admitted.len(), 2);
}

#[test]
fn a_sequence_that_only_decodes_is_not_awaited() {
    let mut pair = Pair::new(ROOMY);
    let first = Request { max_new_tokens: 100, ..request(40, 100) };
    let id = pair.add(&first);
    // The next turn of the conversation arrives while the answer is still being generated.
    let answer = alone(&first, 100).0;
    for _ in 0..60 {
        pair.step();
    }
    let next = pair.add(&Request { prompt: [first.prompt, answer].concat(), ..request(1, 2) });
    let (plan, _) = pair.step().unwrap();
    assert!(cached_tokens(&plan, next).is_some_and(|cached| cached >= 80), "{:?}", plan.admitted);
    pair.scheduler.cancel(id);
}

#[test]
fn a_sequence_that_awaits_its_mask_is_not_awaited() {
    let mut pair = Pair::new(ROOMY);
    let mask = |generated: &[u32]| Some(pretend_mask(generated, 100));
    let first = Request { mask: mask(&[]), ..request(40, 100) };
    let id = pair.add(&first);
    let mut generated = Vec::new();
    while generated.len() < 8 {
        let (_, outputs) = pair.step().unwrap();
        generated.extend(outputs.iter().map(token));
        if generated.len() < 8 {
            pair.scheduler.release(id, generated.len(), mask(&generated).unwrap());
        }
    }
    // The third block is full, but its last token runs only when the next mask is known.
    let prompt = [first.prompt, generated, vec![1; 10]].concat();
    let next = pair.add(&Request { prompt, ..request(1, 2) });
    let (plan, _) = pair.step().expect("the other sequence is admitted");
    assert_eq!(cached_tokens(&plan, next), Some(32));
}

/// Requests with common prefixes.
#[derive(Debug, Clone)]
struct Group {
    /// Number of blocks that all prompts of the group begin with.
    common_blocks: usize,
    /// Number of tokens after them, of which the first one differs in each prompt.
    tail: usize,
    /// Whether all prompts are equal.
    equal: bool,
    /// The tick at which each request arrives.
    arrivals: Vec<usize>,
}

fn groups() -> impl Strategy<Value = Vec<Group>> {
    let arrivals = prop::collection::vec(0usize..12, 1..6);
    let group = (2usize..8, 1usize..40, any::<bool>(), arrivals)
        .prop_map(|(common_blocks, tail, equal, arrivals)| Group { common_blocks, tail, equal, arrivals });
    prop::collection::vec(group, 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Without preemption and cancellation each block of a common prefix is computed by one
    /// sequence, however many arrive while it is being computed.
    #[test]
    fn each_common_block_is_computed_once(
        groups in groups(),
        max_step_tokens in 24usize..100,
        depth in 1usize..4,
        lpm in any::<bool>(),
        hashed in any::<bool>(),
    ) {
        let limits = SchedulerLimits { max_step_tokens, ..ROOMY };
        let schedule = if lpm { Schedule::Lpm } else { Schedule::Fcfs };
        let mut pair = Pair::with(limits, SchedulerOptions { schedule, ..SchedulerOptions::default() });
        let (mut computed, mut finished) = (vec![0; groups.len()], 0);
        let mut group_of: BTreeMap<SeqId, usize> = BTreeMap::new();
        let mut slots: BTreeMap<u32, SeqId> = BTreeMap::new();
        let mut sent: VecDeque<PlannedStep> = VecDeque::new();
        // The block of the last token is computed by each sequence.
        let shared = |group: &Group| match group.equal {
            true => (group.common_blocks * 16 + group.tail - 1) / 16 * 16,
            false => group.common_blocks * 16,
        };
        for tick in 0..1000 {
            for (index, group) in groups.iter().enumerate() {
                for member in 0..group.arrivals.len() {
                    if group.arrivals[member] != tick {
                        continue;
                    }
                    let variant = if group.equal { 0 } else { member };
                    let prompt: Vec<u32> = (0..group.common_blocks * 16)
                        .map(|at| (at * (index + 1) % 97) as u32)
                        .chain([variant as u32])
                        .chain((1..group.tail).map(|at| at as u32 % 90))
                        .collect();
                    let block_hashes = hashed.then(|| BlockHashes::of_prompt(&prompt, None, None, 16));
                    let id = pair.add(&Request { prompt, block_hashes, ..request(1, 3) });
                    group_of.insert(id, index);
                }
            }
            while pair.scheduler.in_flight() < depth {
                let Some(plan) = pair.scheduler.plan() else { break };
                slots.extend(plan.step.admit.iter().zip(admitted(&plan)).map(|(admission, id)| (admission.slot, id)));
                for row in &plan.step.rows {
                    let group = group_of[&slots[&row.slot]];
                    let end = shared(&groups[group]);
                    computed[group] += (row.start as usize..(row.start + row.count) as usize).filter(|&at| at < end).count();
                }
                sent.push_back(plan);
            }
            if let Some(plan) = sent.pop_front() {
                let output = pair.shard.run(&plan.step).map_err(TestCaseError::fail)?;
                let outputs = pair.scheduler.apply(output).unwrap();
                finished += outputs.iter().filter(|output| output.finish.is_some()).count();
            }
            pair.scheduler.check_integrity().map_err(TestCaseError::fail)?;
        }
        prop_assert_eq!(finished, group_of.len());
        prop_assert_eq!(pair.scheduler.stats().preemptions, 0);
        for (group, computed) in groups.iter().zip(computed) {
            prop_assert_eq!(computed, shared(group), "{:?}", group);
        }
    }
}
