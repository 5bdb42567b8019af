//! Sequences that move between the schedulers of several groups of shards.

use std::collections::{BTreeMap, VecDeque};

use millrace_proto::Step;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::pair::Pair;
use super::{LIMITS, request};
use crate::test_support::{PretendShard, alone, pretend_mask, scored_alone, vector_alone};
use crate::{
    Finish, InfeasibleRequest, Pooling, Priority, Request, Scheduler, SchedulerLimits, SchedulerOptions,
    SeqId, SequenceEvent, Tenant,
};

#[test]
fn a_sequence_continues_in_another_group() {
    let (mut first, mut second) = (Pair::new(LIMITS), Pair::new(LIMITS));
    let request = request(40, 20);
    let id = first.add(&request);
    let mut got = Vec::new();
    for _ in 0..6 {
        got.extend(first.step().unwrap().1.iter().map(super::token));
    }
    assert_eq!(first.scheduler.can_take(id).unwrap().0, 40 + got.len());
    let moved = first.scheduler.take(id).unwrap();
    assert!(first.scheduler.is_idle() && first.scheduler.take(id).is_none());
    assert_eq!(first.scheduler.check_integrity(), Ok(()));
    let id = second.scheduler.adopt(moved).unwrap();
    let (rest, _) = second.run(&[id]);
    got.extend(&rest[0].0);
    assert_eq!((got, rest[0].1.unwrap()), alone(&request, LIMITS.vocab_size));
    // The slot and the blocks of the first group are free for others.
    assert_eq!(first.complete(&request), 32);
}

#[test]
fn a_moved_sequence_keeps_its_place_in_the_order() {
    let limits = SchedulerLimits { max_sequences: 1, ..LIMITS };
    let (mut first, mut second) = (Pair::new(limits), Pair::new(limits));
    let old = first.add(&request(10, 5));
    for _ in 0..3 {
        first.step();
    }
    second.add(&request(10, 30));
    second.step();
    let waiting = second.add(&request(11, 5));
    let old = second.scheduler.adopt(first.scheduler.take(old).unwrap()).unwrap();
    assert!(old < waiting, "it has waited for longer");
    let young = first.add(&Request { priority: Priority::Low, ..request(12, 5) });
    let young = second.scheduler.adopt(first.scheduler.take(young).unwrap()).unwrap();
    assert!(young > waiting, "its priority is lower");
}

#[test]
fn what_the_other_group_cannot_run_is_refused() {
    let mut first = Pair::new(LIMITS);
    let mut second = Scheduler::new(SchedulerLimits { num_blocks: 4, ..LIMITS }, SchedulerOptions::default());
    let id = first.add(&request(100, 5));
    let refused = second.adopt(first.scheduler.take(id).unwrap());
    assert!(matches!(refused, Err(InfeasibleRequest::ExceedsPool { .. })), "{refused:?}");
    assert!(second.is_idle());
}

#[test]
fn a_sequence_in_quarantine_stays() {
    let mut pair = Pair::new(LIMITS);
    let id = pair.add(&request(10, 5));
    for expected in [true, false] {
        pair.scheduler.plan().unwrap();
        assert_eq!(pair.scheduler.lose(), None);
        assert_eq!(pair.scheduler.recover(LIMITS), []);
        pair.shard = PretendShard::new(LIMITS);
        let moved = pair.scheduler.take(id);
        assert_eq!(moved.is_some(), expected);
        if let Some(moved) = moved {
            // It comes back with what is known of its losses.
            let again = pair.scheduler.adopt(moved).unwrap();
            assert_ne!(again, id);
            pair.scheduler.plan().unwrap();
            assert_eq!(pair.scheduler.lose(), None);
            assert_eq!(pair.scheduler.recover(LIMITS), []);
            pair.shard = PretendShard::new(LIMITS);
            assert!(pair.scheduler.take(again).is_none(), "two losses");
            return;
        }
    }
}

/// A group of shards in the simulation.
struct Group {
    scheduler: Scheduler,
    shard: PretendShard,
    sent: VecDeque<Step>,
    /// The tick at which the lost shards are replaced.
    down_until: Option<u64>,
}

/// A request that has not ended, and where it is.
struct Live {
    request: Request,
    expected: (Vec<u32>, Finish),
    generated: usize,
    scored: usize,
    /// Whether the mask after its newest token is being computed, and where it was asked for.
    needs_mask: bool,
}

struct World {
    random: StdRng,
    limits: SchedulerLimits,
    groups: Vec<Group>,
    live: BTreeMap<(usize, SeqId), Live>,
    ticks: u64,
    moved: u64,
    finished: u64,
    losses: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let limits = SchedulerLimits {
            max_sequences: random.random_range(1..6),
            num_blocks: random.random_range(16..40),
            max_step_tokens: random.random_range(8..40),
            max_drafts: 3,
            has_draft_model: random.random_bool(0.4),
            ..LIMITS
        };
        let options = SchedulerOptions { drafts: random.random_range(0..4), ..SchedulerOptions::default() };
        let group = |_| Group {
            scheduler: Scheduler::new(limits, options),
            shard: PretendShard::new(limits),
            sent: VecDeque::new(),
            down_until: None,
        };
        let groups = (0..random.random_range(2..4)).map(group).collect();
        let live = BTreeMap::new();
        World { random, limits, groups, live, ticks: 0, moved: 0, finished: 0, losses: 0 }
    }

    fn arrive(&mut self) {
        let random = &mut self.random;
        let mut request = request(random.random_range(1..100), random.random_range(1..40));
        request.sampling.seed = random.random_range(0..8);
        request.tenant = Tenant::named(["a", "b"][random.random_range(0..2)]);
        match random.random_range(0..6) {
            0 => request.mask = Some(pretend_mask(&[], self.limits.vocab_size)),
            1 => request.prompt_logprobs = Some(1),
            2 => request.pooling = Some(Pooling::Mean),
            _ => {}
        }
        let up: Vec<usize> =
            (0..self.groups.len()).filter(|&i| self.groups[i].down_until.is_none()).collect();
        let group = up.get(random.random_range(0..up.len().max(1))).copied().unwrap_or(0);
        let id = self.groups[group].scheduler.add(request.clone()).unwrap();
        let expected = alone(&request, self.limits.vocab_size);
        let live = Live { request, expected, generated: 0, scored: 0, needs_mask: false };
        self.live.insert((group, id), live);
    }

    /// The shards of a group are lost. They come back later.
    fn lose(&mut self, group: usize) {
        let lost = &mut self.groups[group];
        if lost.down_until.is_some() || lost.scheduler.stats().quarantined > 0 {
            return;
        }
        assert_eq!(lost.scheduler.lose(), None, "nothing runs alone");
        lost.sent.clear();
        lost.down_until = Some(self.ticks + self.random.random_range(0..30));
        self.losses += 1;
    }

    /// The sequences of lost groups move to groups that are up.
    fn move_sequences(&mut self) {
        let is_down = |group: &Group| group.down_until.is_some();
        let up: Vec<usize> = (0..self.groups.len()).filter(|&i| !is_down(&self.groups[i])).collect();
        let lost: Vec<(usize, SeqId)> =
            self.live.keys().copied().filter(|&(group, _)| is_down(&self.groups[group])).collect();
        for (group, id) in lost {
            if up.is_empty() {
                return;
            }
            let Some(moved) = self.groups[group].scheduler.take(id) else { continue };
            let live = self.live.remove(&(group, id)).unwrap();
            assert!(!live.needs_mask, "it waits for its mask");
            let target = up[self.random.random_range(0..up.len())];
            let id = self.groups[target].scheduler.adopt(moved).unwrap();
            self.live.insert((target, id), live);
            self.moved += 1;
        }
    }

    fn tick(&mut self) {
        self.ticks += 1;
        for group in 0..self.groups.len() {
            self.give_masks(group);
            if self.groups[group].down_until.is_some_and(|until| until <= self.ticks) {
                let back = &mut self.groups[group];
                back.down_until = None;
                assert_eq!(back.scheduler.recover(self.limits), []);
                back.shard = PretendShard::new(self.limits);
            }
            if self.groups[group].down_until.is_none() {
                self.run(group);
                assert_eq!(self.groups[group].scheduler.check_integrity(), Ok(()));
            }
        }
        self.move_sequences();
    }

    fn give_masks(&mut self, group: usize) {
        for ((at, id), live) in &mut self.live {
            if *at == group && live.needs_mask && self.random.random_bool(0.3) {
                live.needs_mask = false;
                let mask = pretend_mask(&live.expected.0[..live.generated], self.limits.vocab_size);
                self.groups[group].scheduler.release(*id, live.generated, mask);
            }
        }
    }

    /// Plans up to two steps and answers one.
    fn run(&mut self, group: usize) {
        let Group { scheduler, shard, sent, .. } = &mut self.groups[group];
        while scheduler.in_flight() < 2 {
            let Some(plan) = scheduler.plan() else { break };
            sent.push_back(plan.step);
        }
        if !self.random.random_bool(0.7) {
            return;
        }
        let Some(step) = sent.pop_front() else { return };
        let follow = step.rows.iter().any(|row| row.mask_follows);
        let masks = if follow { scheduler.masks(true) } else { None };
        let output = match masks {
            Some(masks) => shard.run_masked(&step, &masks),
            None => shard.run(&step),
        };
        let outputs = scheduler.apply(output.expect("the step keeps the contract")).unwrap();
        for output in outputs {
            self.check(group, output);
        }
    }

    fn check(&mut self, group: usize, output: crate::SequenceOutput) {
        let key = (group, output.sequence);
        let live = self.live.get_mut(&key).expect("only live sequences have results");
        match output.event {
            SequenceEvent::Token(sampled) => {
                assert_eq!(Some(&sampled.token), live.expected.0.get(live.generated), "another text");
                live.generated += 1;
                live.needs_mask = live.request.mask.is_some();
            }
            SequenceEvent::Prompt(scores) => {
                let expected = scored_alone(&live.request, self.limits.vocab_size);
                assert_eq!(scores, expected[live.scored..live.scored + scores.len()]);
                live.scored += scores.len();
            }
            SequenceEvent::Vector(values) => assert_eq!(values, vector_alone(&live.request)),
            SequenceEvent::Failed(failure) => panic!("{failure:?}"),
        }
        if let Some(finish) = output.finish {
            assert_eq!((live.generated, finish), (live.expected.0.len(), live.expected.1));
            self.live.remove(&key);
            self.finished += 1;
        }
    }
}

#[test]
fn no_text_changes_while_groups_are_lost_and_sequences_move() {
    let (mut moved, mut finished, mut losses) = (0, 0, 0);
    for seed in 0..60 {
        let mut world = World::new(seed);
        for _ in 0..300 {
            if world.live.len() < 30 && world.random.random_bool(0.3) {
                world.arrive();
            }
            if world.random.random_bool(0.04) {
                let group = world.random.random_range(0..world.groups.len());
                world.lose(group);
            }
            world.tick();
        }
        while !world.live.is_empty() {
            assert!(world.ticks < 50_000, "seed {seed}: nothing ends");
            world.tick();
        }
        moved += world.moved;
        finished += world.finished;
        losses += world.losses;
    }
    assert!(moved > 1000 && finished > 3000 && losses > 300, "{moved} {finished} {losses}");
}
