//! Random traffic from a seed: arrivals, cancellations, shortage of blocks and slots, answers that come late.
//!
//! `MILLRACE_SIM_SEED=7` replays one seed; `MILLRACE_SIM_STEPS=5000000` simulates for longer than the default.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use millrace_proto::{Sampling, Step, StepOutput};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::pretend::{PretendShard, alone};
use crate::scheduler::{Finish, Limits, Options, Plan, Priority, Request, Scheduler, SeqId};

const STEPS: u64 = 120_000;

#[test]
fn random_traffic_keeps_every_invariant() {
    let variable = |name| std::env::var(name).ok().map(|value| value.parse::<u64>().expect("a number"));
    if let Some(seed) = variable("MILLRACE_SIM_SEED") {
        let totals = simulate(seed);
        eprintln!("seed {seed}: {totals:?}");
        return;
    }
    let (mut totals, wanted) = (Totals::default(), variable("MILLRACE_SIM_STEPS").unwrap_or(STEPS));
    for seed in 0.. {
        totals.add(&simulate(seed));
        if totals.steps >= wanted {
            break;
        }
    }
    eprintln!("{totals:?}");
    // The simulation must reach what it is there for.
    assert!(totals.preemptions > totals.steps / 1000, "{totals:?}");
    assert!(totals.finished > totals.steps / 100, "{totals:?}");
    assert!(totals.cancelled > totals.steps / 1000, "{totals:?}");
    assert!(totals.refused > 0, "{totals:?}");
}

#[derive(Debug, Default)]
struct Totals {
    steps: u64,
    finished: u64,
    cancelled: u64,
    refused: u64,
    preemptions: u64,
}

impl Totals {
    fn add(&mut self, other: &Totals) {
        self.steps += other.steps;
        self.finished += other.finished;
        self.cancelled += other.cancelled;
        self.refused += other.refused;
        self.preemptions += other.preemptions;
    }
}

/// Names the seed when a test dies.
struct Replay(u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay with MILLRACE_SIM_SEED={}", self.0);
        }
    }
}

struct Simulation {
    random: StdRng,
    limits: Limits,
    scheduler: Scheduler,
    shard: PretendShard,
    /// Steps sent and not yet run; so the shard is behind the scheduler, as a real one is.
    sent: VecDeque<Step>,
    /// Steps run ahead; 1 waits for every answer.
    depth: usize,
    live: BTreeMap<SeqId, Live>,
    holder: HashMap<u32, SeqId>,
    totals: Totals,
}

struct Live {
    request: Request,
    generated: Vec<u32>,
    /// Rows that sampled since the last admission.
    progress: Option<usize>,
}

fn simulate(seed: u64) -> Totals {
    let _replay = Replay(seed);
    let mut simulation = Simulation::new(seed);
    let (ticks, arrivals, leaving) = {
        let random = &mut simulation.random;
        (random.random_range(50..800), random.random_range(0.02..0.6), random.random_range(0.0..0.03))
    };
    for _ in 0..ticks {
        if simulation.random.random_bool(arrivals) && simulation.live.len() < 60 {
            simulation.arrive();
        }
        if simulation.random.random_bool(leaving) {
            simulation.leave();
        }
        simulation.tick();
    }
    simulation.drain();
    simulation.totals.preemptions = simulation.scheduler.stats().preemptions;
    simulation.totals
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let max_sequences = random.random_range(1..10);
        let limits = Limits {
            max_sequence_tokens: random.random_range(20..200),
            max_step_tokens: max_sequences + random.random_range(0..48),
            max_sequences,
            block_size: [1, 2, 4, 16][random.random_range(0..4)],
            num_blocks: random.random_range(4..80),
            vocab_size: random.random_range(2..50),
        };
        Simulation {
            depth: random.random_range(1..4),
            random,
            limits,
            scheduler: Scheduler::new(limits, Options::default()),
            shard: PretendShard::new(limits),
            sent: VecDeque::new(),
            live: BTreeMap::new(),
            holder: HashMap::new(),
            totals: Totals::default(),
        }
    }

    fn arrive(&mut self) {
        let (random, limits) = (&mut self.random, &self.limits);
        let longest = random.random_range(1..=limits.max_sequence_tokens);
        let prompt: Vec<u32> = (0..random.random_range(1..=longest))
            .map(|_| random.random_range(0..limits.vocab_size as u32))
            .collect();
        let stops = random.random_range(0..3usize).min(limits.vocab_size / 8);
        let stop_tokens = (0..stops as u32).collect::<Arc<[u32]>>();
        let max_new_tokens = random.random_range(1..=(limits.max_sequence_tokens as u32).min(80));
        let sampling = Sampling { seed: random.random(), ..Default::default() };
        let request = Request {
            prompt,
            max_new_tokens,
            stop_tokens,
            sampling,
            priority: Priority::Normal,
            cache_salt: None,
        };
        match self.scheduler.add(request.clone()) {
            Ok(id) => {
                let live = Live { request, generated: Vec::new(), progress: None };
                assert!(self.live.insert(id, live).is_none(), "{id:?} is given twice");
            }
            Err(_) => {
                let positions = request.prompt.len() + max_new_tokens as usize - 1;
                let fits = positions.div_ceil(limits.block_size) <= limits.num_blocks;
                assert!(!fits || positions >= limits.max_sequence_tokens, "refused, but it fits");
                self.totals.refused += 1;
            }
        }
    }

    fn leave(&mut self) {
        if !self.live.is_empty() {
            let index = self.random.random_range(0..self.live.len());
            let id = *self.live.keys().nth(index).expect("index is below the length");
            self.live.remove(&id);
            self.scheduler.cancel(id);
            self.totals.cancelled += 1;
        }
    }

    /// Plans as far ahead as `depth` allows, then perhaps lets the shard answer.
    fn tick(&mut self) {
        while self.scheduler.in_flight() < self.depth {
            let Some(plan) = self.scheduler.plan() else { break };
            self.observe(&plan);
            self.sent.push_back(plan.step);
        }
        self.scheduler.check_integrity().expect("integrity after planning");
        if self.depth == 1 || self.sent.len() == self.depth || self.random.random_bool(0.5) {
            self.answer();
            self.scheduler.check_integrity().expect("integrity after an answer");
        }
    }

    /// Nobody is admitted again without having had a token since last time: preemption never wastes a whole prefill.
    fn observe(&mut self, plan: &Plan) {
        assert_eq!(plan.admitted.len(), plan.step.admit.len());
        for (id, admission) in plan.admitted.iter().map(|new| new.sequence).zip(&plan.step.admit) {
            self.holder.insert(admission.slot, id);
            let live = self.live.get_mut(&id).expect("only live sequences are admitted");
            assert_ne!(live.progress, Some(0), "{id:?} was preempted before it had a token");
            live.progress = Some(0);
        }
        for row in plan.step.rows.iter().filter(|row| row.sample) {
            let live = self.live.get_mut(&self.holder[&row.slot]).expect("only live sequences run");
            *live.progress.as_mut().expect("a running sequence was admitted") += 1;
        }
    }

    fn answer(&mut self) {
        let Some(step) = self.sent.pop_front() else { return };
        self.totals.steps += 1;
        self.check_no_stream_is_stalled(&step);
        let output: StepOutput = self.shard.run(&step).expect("the step keeps the contract");
        for output in self.scheduler.apply(output).expect("the answer is well formed") {
            let live = self.live.get_mut(&output.sequence).expect("tokens come only for live sequences");
            live.generated.push(output.sampled.token);
            if let Some(finish) = output.finish {
                self.finished(output.sequence, finish);
            }
        }
    }

    /// Whoever can decode has a row in each step, unless it leaves its slot.
    fn check_no_stream_is_stalled(&self, step: &Step) {
        if self.depth > 1 {
            return; // The slots' holders are known only for the newest step planned.
        }
        for slot in 0..self.limits.max_sequences as u32 {
            let decodes = self.shard.decodes(slot) && !step.release.contains(&slot);
            assert!(
                !decodes || step.rows.iter().any(|row| row.slot == slot),
                "slot {slot} is stalled by {step:?}"
            );
        }
    }

    fn finished(&mut self, id: SeqId, finish: Finish) {
        let live = self.live.remove(&id).expect("a sequence ends once");
        let expected = alone(&live.request, self.limits.vocab_size);
        assert_eq!((live.generated, finish), expected, "{id:?} differs from a run alone");
        self.totals.finished += 1;
    }

    /// Nothing new arrives: everything ends in as many steps as the oldest ones need one after the other, and nothing
    /// is left behind.
    fn drain(&mut self) {
        let work = |live: &Live| live.request.prompt.len() + live.request.max_new_tokens as usize;
        let bound = self.live.values().map(work).sum::<usize>() as u64 + self.depth as u64;
        let (before, mut idle) = (self.totals.steps, 0);
        while !self.live.is_empty() || self.scheduler.in_flight() > 0 {
            let steps = self.totals.steps;
            self.tick();
            idle = if self.totals.steps == steps { idle + 1 } else { 0 };
            assert!(idle < 100, "nothing moves");
            assert!(self.totals.steps - before <= bound, "starvation: more than {bound} steps");
        }
        assert!(self.scheduler.is_idle());
        let stats = self.scheduler.stats();
        assert_eq!((stats.waiting, stats.running, stats.used_blocks), (0, 0, 0));
    }
}
