//! The simulated world: the scheduler, its shard and its clients.

use std::collections::{BTreeMap, VecDeque};

use millrace_proto::frame::encoded_len;
use millrace_proto::{
    FromShard, MAX_FRAME, Masks, PromptHandling, PromptToken, Step, StepOutput, ToShard, from_shard, to_shard,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::Totals;
use super::distant_index::DistantIndex;
use super::ledger::{Ledger, new_tokens, work};
use super::traffic::Traffic;
use crate::test_support::{
    DEATH, PretendDisk, PretendShard, Trouble, alone, pretend_mask, scored_alone, vector_alone,
};
use crate::tests::pretend_speed::PretendSpeed;
use crate::{
    AdapterId, Finish, Request, RowFailure, Schedule, Scheduler, SchedulerLimits, SchedulerOptions, SeqId,
    SequenceEvent,
};

struct World {
    random: StdRng,
    limits: SchedulerLimits,
    options: SchedulerOptions,
    traffic: Traffic,
    scheduler: Scheduler,
    /// Chance of a tick in which slots of the disk cache are damaged.
    damages: f64,
    index: DistantIndex,
    ledger: Ledger,
    shard: PretendShard,
    /// Steps sent and not yet run. The shard is behind the scheduler, like a real one.
    sent: VecDeque<Step>,
    /// The masks that followed the oldest step, if they were sent.
    masks: Option<Masks>,
    planned: u64,
    /// Maximum number of steps in flight; with 1 each answer is awaited.
    depth: usize,
    live: BTreeMap<SeqId, Live>,
    /// Constrained sequences whose newest token is known, and the tick at which the next mask is
    /// known.
    held: BTreeMap<SeqId, u64>,
    /// The speed of the shards, if they report times.
    speed: Option<PretendSpeed>,
    /// Maximum number of ticks to compute a mask.
    slowness: u64,
    ticks: u64,
    totals: Totals,
}

/// A request that has not ended.
struct Live {
    request: Request,
    /// Its result if it runs alone.
    expected: (Vec<u32>, Finish),
    generated: usize,
    /// The scores of its prompt if it runs alone, except those that have come back.
    unscored: VecDeque<PromptToken>,
    /// The step from which on no new sequence is ordered before it.
    due: u64,
    /// The step before which it must have ended; set when it is due.
    deadline: Option<u64>,
}

/// The frequency of each kind of event.
struct Rates {
    ticks: usize,
    arrivals: f64,
    max_at_once: usize,
    cancellations: f64,
    deaths: f64,
}

pub(super) fn simulate(seed: u64) -> Totals {
    let mut world = World::new(seed);
    let random = &mut world.random;
    let rates = Rates {
        ticks: random.random_range(50..800),
        arrivals: random.random_range(0.02..0.6),
        max_at_once: random.random_range(1..60),
        cancellations: random.random_range(0.0..0.03),
        deaths: if random.random_bool(0.5) { 0.0 } else { random.random_range(0.0..0.01) },
    };
    for _ in 0..rates.ticks {
        if world.random.random_bool(rates.arrivals) && world.live.len() < rates.max_at_once {
            world.arrive();
        }
        if world.random.random_bool(rates.cancellations) {
            world.cancel();
        }
        if world.random.random_bool(0.01) {
            world.unload();
        }
        if world.random.random_bool(rates.deaths) {
            world.die(None);
        }
        world.tick();
    }
    world.drain();
    let stats = world.scheduler.stats();
    let Ledger { overtakes, hit_blocks, shared_blocks, adapted_blocks, awaited_blocks, .. } = world.ledger;
    let priority_preemptions = world.ledger.priority_preemptions;
    let (preemptions, evictions) = (stats.preemptions, stats.prefix_evicted_blocks);
    Totals {
        preemptions,
        priority_preemptions,
        evictions,
        overtakes,
        hit_blocks,
        shared_blocks,
        adapted_blocks,
        awaited_blocks,
        stored: world.index.stored,
        read_from_disk: stats.disk_read_blocks,
        written_to_disk: stats.disk_written_blocks,
        failed_disk_reads: stats.disk_failed_reads,
        failed_disk_writes: stats.disk_failed_writes,
        drafted: stats.drafted_tokens,
        accepted_drafts: stats.accepted_drafts,
        ..world.totals
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let max_sequences = random.random_range(1..10);
        let max_sequence_tokens = random.random_range(20..200);
        let block_size = [1, 2, 4, 16][random.random_range(0..4)];
        // From half of the longest sequence to a few sequences.
        let positions = random.random_range(max_sequence_tokens / 2..max_sequence_tokens * 4);
        let limits = SchedulerLimits {
            max_sequence_tokens,
            max_step_tokens: max_sequences + random.random_range(0..48),
            max_sequences,
            block_size,
            num_blocks: positions.div_ceil(block_size).min(160),
            vocab_size: random.random_range(2..50),
            max_vector_len: 2,
            max_frame_bytes: if random.random_bool(0.6) {
                MAX_FRAME
            } else {
                random.random_range(7500..10000)
            },
            prompt_handling: match random.random_range(0..10) {
                0 | 1 => PromptHandling::Unshared,
                2 | 3 => PromptHandling::Whole,
                _ => PromptHandling::Shared,
            },
            state_checkpoints: [0, 1, 3, 10][random.random_range(0..4)],
            max_drafts: [0, 2, 5, 20][random.random_range(0..4)],
            has_draft_model: random.random_bool(0.4),
            adapters: [0, 0, 1, 3][random.random_range(0..4)],
            max_loaded_adapters: 0,
        };
        let waiting_adapters = [0, 1, 4][random.random_range(0..3)];
        let max_loaded_adapters = match limits.adapters {
            0 => 0,
            places => places + waiting_adapters,
        };
        let limits = SchedulerLimits { max_loaded_adapters, ..limits };
        let options = SchedulerOptions {
            prefix_cache: random.random_bool(0.9),
            cache_events: true,
            ageing_steps: random.random_range(0..60),
            schedule: [Schedule::Fcfs, Schedule::Lpm][random.random_range(0..2)],
            drafts: [0, 1, 4, 10][random.random_range(0..4)],
            earlier_tokens: [0, 50, 5000][random.random_range(0..3)],
            always_draft: random.random_bool(0.3),
            target_micros: if random.random_bool(0.5) { 0.0 } else { random.random_range(1.0..1e5) },
        };
        let slowness = random.random_range(0..6);
        let slots = [0, random.random_range(1..20), random.random_range(20..400)][random.random_range(0..3)];
        let most_writes = random.random_bool(0.1).then(|| random.random_range(0..1000));
        let mut shard = PretendShard::new(limits);
        shard.disk = PretendDisk::new(slots, most_writes);
        let mut scheduler = Scheduler::new(limits, options);
        scheduler.open_disk_cache(slots, &[]);
        let speed = random.random_bool(0.7).then(|| PretendSpeed::random(&mut random));
        World {
            depth: random.random_range(1..4),
            traffic: Traffic::new(&mut random, limits),
            limits,
            options,
            scheduler,
            damages: if random.random_bool(0.5) { 0.0 } else { random.random_range(0.0..0.05) },
            index: DistantIndex::default(),
            ledger: Ledger::new(limits, options, speed.is_some()),
            shard,
            sent: VecDeque::new(),
            masks: None,
            planned: 0,
            live: BTreeMap::new(),
            held: BTreeMap::new(),
            slowness,
            speed,
            ticks: 0,
            totals: Totals::default(),
            random,
        }
    }

    fn fits(&self, request: &Request) -> bool {
        let SchedulerLimits { max_step_tokens, max_sequences, prompt_handling, .. } = self.limits;
        // Any other sequence may run one token beside a prompt that cannot be divided.
        let fits_whole = request.prompt.len() + max_sequences - 1 <= max_step_tokens;
        request.prompt.len() + new_tokens(request) <= self.limits.max_sequence_tokens
            && (prompt_handling != PromptHandling::Whole || fits_whole && request.prompt_logprobs.is_none())
            && (request.adapter.is_none() || self.limits.adapters > 0)
            && work(request).div_ceil(self.limits.block_size) <= self.limits.num_blocks
    }

    fn arrive(&mut self) {
        for request in self.traffic.requests(&mut self.random, self.limits.block_size) {
            self.add(request);
        }
    }

    fn add(&mut self, request: Request) {
        match self.scheduler.add(request.clone()) {
            Ok(id) => {
                assert!(self.fits(&request), "accepted, but it does not fit");
                self.ledger.arrived(id, request.clone());
                let trouble = Trouble::of(request.sampling.seed);
                self.totals.deadly += u64::from(matches!(trouble, Trouble::Deadly(_)));
                let expected = alone(&request, self.limits.vocab_size);
                let wait = u64::from(self.options.ageing_steps) * request.priority as u64;
                let due = self.planned + wait;
                let unscored = scored_alone(&request, self.limits.vocab_size).into();
                self.live.insert(id, Live { request, expected, generated: 0, unscored, due, deadline: None });
            }
            Err(_) => {
                assert!(!self.fits(&request), "refused, but it fits");
                self.totals.refused += 1;
            }
        }
    }

    fn cancel(&mut self) {
        if !self.live.is_empty() {
            let index = self.random.random_range(0..self.live.len());
            let id = *self.live.keys().nth(index).expect("index is below the length");
            self.live.remove(&id);
            self.held.remove(&id);
            self.scheduler.cancel(id);
            self.ledger.left(id);
            self.totals.cancelled += 1;
        }
    }

    /// An adapter that no request has is unloaded. Requests may name the number again later, as if
    /// another adapter had been loaded.
    fn unload(&mut self) {
        let unused = (0..self.limits.max_loaded_adapters as u32).find(|&number| {
            let mut live = self.live.values();
            !live.any(|live| live.request.adapter == Some(AdapterId(number)))
        });
        // The shards unload it after all steps that were sent before.
        if let Some(number) = unused.filter(|_| self.sent.is_empty()) {
            self.scheduler.unload_adapter(AdapterId(number));
            self.shard.unload(number);
            self.totals.unloaded += 1;
        }
    }

    /// The shards die with all steps in flight, and others replace them, perhaps with another
    /// number of blocks. They die of a `step` or for no reason.
    fn die(&mut self, step: Option<Step>) {
        let has_reason = step.is_some();
        self.totals.killed += u64::from(has_reason);
        step.into_iter().for_each(|step| self.sent.push_front(step));
        let blamed = self.scheduler.lose();
        if let Some(id) = blamed {
            let request = self.live.remove(&id).expect("only live sequences are blamed").request;
            let deadly = matches!(Trouble::of(request.sampling.seed), Trouble::Deadly(_));
            assert!(deadly || !has_reason, "{id:?} is blamed for the fault of another");
            self.held.remove(&id);
            self.ledger.left(id);
            self.totals.blamed += 1;
        }
        if self.random.random_bool(0.3) {
            self.limits.num_blocks = self.random.random_range(2..=2 * self.limits.num_blocks).min(160);
        }
        for (id, _) in self.scheduler.recover(self.limits) {
            let refused = self.live.remove(&id).expect("only live sequences are refused");
            assert!(!self.fits(&refused.request), "{id:?} is refused, but it fits");
            self.held.remove(&id);
            self.ledger.left(id);
            self.totals.refused += 1;
        }
        assert!(
            self.live.values().all(|live| self.fits(&live.request)),
            "every sequence that does not fit is refused"
        );
        self.totals.deaths += 1;
        self.totals.lost_steps += self.sent.len() as u64;
        self.sent.clear();
        self.masks = None;
        let disk = std::mem::take(&mut self.shard.disk);
        self.shard = PretendShard::new(self.limits);
        self.shard.disk = disk;
        self.scheduler.open_disk_cache(self.shard.disk.slots(), &self.shard.disk.entries());
        self.ledger.died(self.limits, self.planned, self.held.keys().copied());
        // Lost work is done again.
        self.live.values_mut().for_each(|live| live.deadline = None);
        self.check_integrity("a death");
    }

    /// Plans as many steps as `depth` allows, then possibly lets the shard answer.
    fn tick(&mut self) {
        self.ticks += 1;
        self.release();
        if self.damages > 0.0 && self.random.random_bool(self.damages) {
            let remainder = self.random.random_range(0..5);
            self.shard.disk.damage(|slot| slot % 5 == remainder);
        }
        if self.random.random_bool(0.5) {
            self.send_masks();
        }
        while self.scheduler.in_flight() < self.depth {
            let Some(plan) = self.scheduler.plan() else { break };
            self.planned += 1;
            let taken = self.scheduler.stats().priority_preemptions;
            self.ledger.planned(&plan, &self.scheduler.quarantine, taken);
            let message = to_shard::Message::Step(plan.step.clone());
            self.check_frame(encoded_len(&ToShard { message: Some(message) }));
            self.sent.push_back(plan.step);
        }
        let progresses = self.scheduler.in_flight() > 0 || !self.held.is_empty();
        assert!(progresses || self.live.is_empty(), "nothing makes progress");
        self.check_integrity("planning");
        self.check_no_sequence_starves();
        if self.depth == 1 || self.sent.len() == self.depth || self.random.random_bool(0.5) {
            self.answer();
            self.check_integrity("an answer");
        }
    }

    fn check_frame(&mut self, bytes: usize) {
        let most = self.limits.max_frame_bytes;
        assert!(bytes <= most, "a message of {bytes} bytes, of {most}");
        self.totals.full_frames += u64::from(bytes > most / 4);
    }

    /// Some constrained sequences get their masks.
    fn release(&mut self) {
        let due: Vec<SeqId> =
            self.held.iter().filter(|(_, at)| **at <= self.ticks).map(|(id, _)| *id).collect();
        for id in due {
            self.held.remove(&id);
            let Live { expected: (tokens, _), generated, .. } = &self.live[&id];
            let mask = pretend_mask(&tokens[..*generated], self.limits.vocab_size);
            // A mask for another number of tokens is ignored.
            self.scheduler.release(id, generated + 1, pretend_mask(&[7], self.limits.vocab_size));
            self.scheduler.release(id, *generated, mask.clone());
            self.scheduler.release(id, *generated, pretend_mask(&[7], self.limits.vocab_size));
            self.ledger.released(id);
            self.totals.releases += 1;
        }
    }

    /// The masks that follow the oldest step are sent, if they are known or due.
    fn send_masks(&mut self) {
        let are_due = self.random.random_bool(0.3);
        let Some(masks) = self.scheduler.masks(are_due) else { return };
        assert_eq!(self.masks, None, "the masks of a step are sent once");
        let step = self.sent.front().expect("masks follow a step in flight");
        self.totals.late_masks += masks.rows.len() as u64;
        self.totals.deferred += self.ledger.masks(step, &masks);
        self.check_frame(encoded_len(&ToShard { message: Some(to_shard::Message::Masks(masks.clone())) }));
        self.masks = Some(masks);
        self.check_integrity("masks");
    }

    fn check_integrity(&mut self, after: &str) {
        if let Err(broken) = self.scheduler.check_integrity() {
            panic!("after {after}: {broken}");
        }
        self.index.follow(&mut self.scheduler);
    }

    /// A sequence that is due ends within the work of all live sequences and of those that may
    /// overtake it.
    fn check_no_sequence_starves(&mut self) {
        let all: usize = self.live.values().map(|live| work(&live.request)).sum();
        let allowance = self.limits.num_blocks * self.limits.block_size;
        // The adapters of each tenant share its part as tenants do.
        let tenants = self.traffic.tenants() * (1 + self.limits.max_loaded_adapters) - 1;
        // While a constrained sequence waits for a tick, so many steps may run without it.
        let slowness = (1 + self.slowness) * self.depth as u64 + 1;
        for (id, live) in &mut self.live {
            if self.planned >= live.due {
                // In quarantine, work is done alone, and with small messages a step may have a
                // single token.
                // A tenant with a lead waits until the others have the same share.
                let steps = 4 * (all + (1 + 2 * tenants) * allowance + self.depth) as u64 * slowness;
                let deadline = *live.deadline.get_or_insert(self.planned + steps);
                assert!(self.planned <= deadline, "{id:?} starves");
            }
        }
    }

    fn answer(&mut self) {
        let late = self.sent.front().is_some_and(|step| step.rows.iter().any(|row| row.mask_follows));
        if late && self.masks.is_none() {
            self.send_masks();
            if self.masks.is_none() {
                return;
            }
        }
        let Some(step) = self.sent.pop_front() else { return };
        self.totals.steps += 1;
        match self.limits.prompt_handling {
            PromptHandling::Shared => {}
            PromptHandling::Unshared => self.totals.unshared += step.rows.len() as u64,
            PromptHandling::Whole => self.totals.whole += step.rows.len() as u64,
        }
        self.totals.placed += step.adapters.len() as u64;
        self.totals.restored += step.admit.iter().filter(|new| new.restore_state.is_some()).count() as u64;
        self.totals.saved += step.rows.iter().filter(|row| row.save_state.is_some()).count() as u64;
        self.totals.guessed += step.rows.iter().filter(|row| row.model_drafts > 0).count() as u64;
        self.totals.kept += step.rows.iter().filter(|row| row.keep_state.is_some()).count() as u64;
        self.totals.rewound += step.rows.iter().filter(|row| row.restore_state.is_some()).count() as u64;
        let masks = self.masks.take();
        let output = match masks {
            Some(masks) => self.shard.run_masked(&step, &masks),
            None => self.shard.run(&step),
        };
        let output = match output {
            Err(why) if why == DEATH => return self.die(Some(step)),
            output => output.expect("the step keeps the contract"),
        };
        let step_micros = self.speed.map_or(0, |speed| speed.micros(&step));
        let disk_micros =
            self.speed.map_or(0, |_| 900 * (step.disk_reads.len() + step.disk_writes.len()) as u64);
        let step_micros = step_micros + disk_micros;
        let output = StepOutput { step_micros, disk_micros, ..output };
        let message = from_shard::Message::Output(output.clone());
        self.check_frame(encoded_len(&FromShard { message: Some(message) }));
        self.ledger.answered(&step, &output.sampled);
        for output in self.scheduler.apply(output).expect("the answer is well formed") {
            let live = self.live.get_mut(&output.sequence).expect("tokens come only for live sequences");
            let (tokens, finish) = &live.expected;
            let last = match output.event {
                SequenceEvent::Failed(failure) => {
                    let trouble = Trouble::of(live.request.sampling.seed);
                    let expected = matches!(
                        (failure, trouble),
                        (RowFailure::Refused(_), Trouble::Refused)
                            | (RowFailure::NotFinite(_), Trouble::Broken(_))
                    );
                    assert!(expected, "it fails with {trouble:?}");
                    self.live.remove(&output.sequence);
                    self.held.remove(&output.sequence);
                    self.ledger.left(output.sequence);
                    self.totals.failed += 1;
                    continue;
                }
                SequenceEvent::Prompt(scored) => {
                    self.totals.scored += scored.len() as u64;
                    let expected = live.unscored.drain(..scored.len());
                    assert!(
                        expected.eq(scored),
                        "its prompt is not scored as in a run alone, once and in order"
                    );
                    if output.finish.is_none() {
                        continue;
                    }
                    tokens.is_empty() && live.request.pooling.is_none()
                }
                SequenceEvent::Vector(values) => {
                    assert_eq!(
                        values,
                        vector_alone(&live.request),
                        "its vector differs from that of a run alone"
                    );
                    self.totals.vectors += 1;
                    true
                }
                SequenceEvent::Token(sampled) => {
                    let expected = tokens.get(live.generated);
                    assert_eq!(Some(&sampled.token), expected, "it differs from a run alone");
                    live.generated += 1;
                    live.generated == tokens.len()
                }
            };
            assert_eq!(output.finish, last.then_some(*finish), "it ends differently from a run alone");
            assert!(live.unscored.is_empty(), "a part of its prompt was not scored");
            if live.request.mask.is_some() && !last {
                let slowness = self.random.random_range(0..=self.slowness);
                self.held.insert(output.sequence, self.ticks + slowness);
                self.ledger.needs_mask(output.sequence);
            }
            if last {
                self.finished(output.sequence);
            }
        }
    }

    fn finished(&mut self, id: SeqId) {
        let Live { request, expected, .. } = self.live.remove(&id).expect("a sequence ends once");
        self.ledger.left(id);
        self.totals.finished += 1;
        self.traffic.remember(&mut self.random, [request.prompt, expected.0].concat());
    }

    /// No new requests arrive: all requests end, and nothing is left behind.
    fn drain(&mut self) {
        while !self.live.is_empty() || self.scheduler.in_flight() > 0 {
            self.tick();
        }
        assert!(self.scheduler.is_idle());
        let stats = self.scheduler.stats();
        assert_eq!((stats.waiting, stats.waiting_tokens, stats.running, stats.used_blocks), (0, 0, 0, 0));
        let keeps_blocks = self.options.prefix_cache && self.limits.shares_blocks();
        assert!(keeps_blocks || stats.cached_blocks == 0);
    }
}
