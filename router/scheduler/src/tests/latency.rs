//! Tests of the times of steps: while sequences decode, prompts extend a step up to a bound, and
//! while none decodes, steps are efficient.

use std::collections::{HashSet, VecDeque};

use millrace_proto::{Row, Step, StepOutput};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::pretend_speed::PretendSpeed;
use super::request;
use crate::test_support::PretendShard;
use crate::{Request, Scheduler, SchedulerLimits, SchedulerOptions, SeqId};

pub(super) const LIMITS: SchedulerLimits = SchedulerLimits {
    max_sequence_tokens: 10_000,
    max_step_tokens: 576,
    max_sequences: 64,
    block_size: 16,
    num_blocks: 8_000,
    ..super::LIMITS
};

/// Number of steps after which the times are known well enough to be held to the bounds.
pub(super) const LEARNING: usize = 40;

/// A scheduler and a shard with a speed, with two steps in flight.
pub(super) struct SlowPair {
    pub(super) scheduler: Scheduler,
    shard: PretendShard,
    pub(super) speed: PretendSpeed,
    /// Factor by which the time of a step is wrong at most.
    noise: f64,
    random: StdRng,
    sent: VecDeque<Step>,
    /// The time that has passed.
    micros: f64,
}

impl SlowPair {
    fn new(seed: u64, speed: PretendSpeed, target_micros: f64) -> Self {
        let options = SchedulerOptions { target_micros, prefix_cache: false, ..Default::default() };
        SlowPair::with(seed, speed, options)
    }

    pub(super) fn with(seed: u64, speed: PretendSpeed, options: SchedulerOptions) -> Self {
        let mut scheduler = Scheduler::new(LIMITS, options);
        let warm_up = Step { rows: vec![Row { count: 512, ..Row::default() }], ..Step::default() };
        scheduler.note_warm_up(512, speed.micros(&warm_up));
        SlowPair {
            scheduler,
            shard: PretendShard::new(LIMITS),
            speed,
            noise: 1.0,
            random: StdRng::seed_from_u64(seed),
            sent: VecDeque::new(),
            micros: 0.0,
        }
    }

    pub(super) fn add(&mut self, request: Request) -> SeqId {
        self.scheduler.add(request).expect("it fits")
    }

    /// Plans up to two steps and answers the oldest one. Returns it.
    pub(super) fn step(&mut self) -> Option<Step> {
        while self.scheduler.in_flight() < 2 {
            let Some(plan) = self.scheduler.plan() else { break };
            self.sent.push_back(plan.step);
        }
        let step = self.sent.pop_front()?;
        let noise = self.random.random_range(1.0 / self.noise..=self.noise);
        let micros = self.speed.time(&step.rows) * noise;
        self.micros += micros;
        let output = self.shard.run(&step).expect("the step keeps the contract");
        let output = StepOutput { step_micros: micros as u64, ..output };
        self.scheduler.apply(output).expect("the answer is well formed");
        Some(step)
    }
}

/// The rows that continue an answer.
fn decodes(step: &Step) -> impl Iterator<Item = &Row> {
    step.rows.iter().filter(|row| row.sample && row.count == 1)
}

/// Runs streams beside long prompts that keep arriving, of which there are never more than a third
/// of the streams. Returns the largest ratio of the time of a step with a decode row to its bound,
/// and the number of prompts that were computed.
fn worst_stretch(mut pair: SlowPair, streams: usize, target: f64) -> (f64, usize) {
    let mut worst: f64 = 0.0;
    let mut prompts = HashSet::new();
    for _ in 0..streams {
        pair.add(request(30, 3000));
    }
    for number in 0..1500 {
        let stats = pair.scheduler.stats();
        if number % 50 == 20 && stats.running + stats.waiting < streams + streams / 3 {
            let len = pair.random.random_range(500..5000);
            pair.add(request(len, 2));
        }
        let Some(step) = pair.step() else { break };
        let long = step.rows.iter().filter(|row| row.start + row.count >= 500 && row.sample && row.count > 1);
        prompts.extend(long.map(|row| (step.id, row.slot)));
        if number > LEARNING && decodes(&step).count() > 0 && step.rows.iter().any(|row| row.count > 1) {
            let bound = target.max(2.0 * pair.speed.time(decodes(&step)));
            worst = worst.max(pair.speed.time(&step.rows) / bound);
        }
    }
    (worst, prompts.len())
}

#[test]
fn a_step_with_streams_takes_at_most_twice_the_time_of_its_decode_rows() {
    for streams in [3, 6, 16, 50] {
        for (seed, speed) in (0..).zip([PretendSpeed::CPU, PretendSpeed::GPU]) {
            let (worst, prompts) = worst_stretch(SlowPair::new(seed, speed, 0.0), streams, 0.0);
            assert!((0.7..1.1).contains(&worst), "{worst} with {streams} streams on {speed:?}");
            assert!(prompts > 1, "{prompts} prompts with {streams} streams on {speed:?}");
        }
    }
}

#[test]
fn a_prompt_beside_one_stream_gets_three_times_the_time_of_its_decode_row() {
    let mut pair = SlowPair::new(0, PretendSpeed::CPU, 0.0);
    pair.add(request(30, 3000));
    (0..LEARNING).for_each(|_| drop(pair.step()));
    pair.add(request(2000, 1));
    let mut largest: f64 = 0.0;
    for _ in 0..20 {
        let step = pair.step().expect("the stream runs");
        largest = largest.max(pair.speed.time(&step.rows) / pair.speed.time(decodes(&step)));
    }
    assert!((3.3..4.3).contains(&largest), "{largest}");
}

#[test]
fn many_prompts_beside_few_streams_get_up_to_four_times_the_time_of_the_decode_rows() {
    let mut pair = SlowPair::new(0, PretendSpeed::CPU, 0.0);
    pair.add(request(30, 3000));
    (0..LEARNING).for_each(|_| drop(pair.step()));
    for _ in 0..15 {
        pair.add(request(100, 3000));
    }
    let mut ratios = Vec::new();
    while decodes(pair.step().as_ref().expect("streams run")).count() < 16 {
        let step = pair.sent.front().expect("two steps are in flight");
        ratios.push(pair.speed.time(&step.rows) / pair.speed.time(decodes(step)));
    }
    let largest = ratios.iter().copied().fold(0.0, f64::max);
    assert!((4.2..5.7).contains(&largest), "{ratios:?}");
    // Most of the requests decode now, so a prompt beside them gets as much time as they take.
    pair.add(request(2000, 1));
    let mut largest: f64 = 0.0;
    for _ in 0..10 {
        let step = pair.step().expect("streams run");
        largest = largest.max(pair.speed.time(&step.rows) / pair.speed.time(decodes(&step)));
    }
    assert!((1.5..2.2).contains(&largest), "{largest}");
}

#[test]
fn a_target_lets_prompts_extend_steps_further() {
    for (speed, target) in [(PretendSpeed::CPU, 400_000.0), (PretendSpeed::GPU, 50_000.0)] {
        let (worst, prompts) = worst_stretch(SlowPair::new(1, speed, target), 4, target);
        // On the GPU, the largest step has not that much work.
        assert!(worst < 1.1, "{worst} on {speed:?}");
        assert!(prompts > 5, "{prompts} on {speed:?}");
    }
    let (worst, _) = worst_stretch(SlowPair::new(1, PretendSpeed::CPU, 400_000.0), 4, 400_000.0);
    assert!(worst > 0.8, "the target is used: {worst}");
}

#[test]
fn the_bound_holds_on_a_machine_whose_speed_varies() {
    for seed in 0..4 {
        let mut pair = SlowPair::new(seed, PretendSpeed::CPU, 0.0);
        pair.noise = 1.2;
        let (worst, prompts) = worst_stretch(pair, 8, 0.0);
        assert!(worst < 1.8, "{worst}");
        assert!(prompts > 1, "{prompts}");
    }
}

#[test]
fn prompts_alone_run_in_efficient_steps() {
    for speed in [PretendSpeed::CPU, PretendSpeed::GPU] {
        let mut pair = SlowPair::new(0, speed, 0.0);
        // The model learns the base time from streams.
        for _ in 0..4 {
            pair.add(request(30, 60));
        }
        while pair.step().is_some() {}
        let before = pair.micros;
        pair.add(request(8000, 1));
        let mut largest: f64 = 0.0;
        while let Some(step) = pair.step() {
            largest = largest.max(pair.speed.time(&step.rows));
        }
        let taken = pair.micros - before;
        let rows =
            (0..8000).step_by(576).map(|start| Row { start, count: 576.min(8000 - start), ..Row::default() });
        let rows: Vec<Row> = rows.collect();
        let largest_steps: f64 = rows.iter().map(|row| speed.time([row])).sum();
        assert!(taken < 1.1 * largest_steps, "{taken} µs instead of {largest_steps} µs on {speed:?}");
        let most = rows.iter().map(|row| speed.time([row])).fold(0.0, f64::max);
        let is_slow = speed.per_token > 1000.0;
        assert!(!is_slow || largest < 0.6 * most, "a newcomer waits for {largest} µs of {most} µs");
    }
}

#[test]
fn without_known_times_steps_are_bounded_in_tokens_alone() {
    let mut scheduler = Scheduler::new(LIMITS, SchedulerOptions::default());
    let mut shard = PretendShard::new(LIMITS);
    scheduler.add(request(5, 100)).expect("it fits");
    scheduler.add(request(5000, 1)).expect("it fits");
    let plan = scheduler.plan().expect("there is work");
    scheduler.apply(shard.run(&plan.step).expect("it runs")).expect("it is well formed");
    let plan = scheduler.plan().expect("there is work");
    assert_eq!(plan.step.rows.iter().map(|row| row.count).sum::<u32>(), 576);
    assert!(plan.duration.is_zero());
}

#[test]
fn a_planned_step_has_its_predicted_time() {
    let mut pair = SlowPair::new(0, PretendSpeed::CPU, 0.0);
    pair.add(request(40, 200));
    (0..LEARNING).for_each(|_| drop(pair.step()));
    let plan = pair.scheduler.plan().expect("there is work");
    let ratio = plan.duration.as_secs_f64() * 1e6 / pair.speed.time(&plan.step.rows);
    assert!((0.9..1.1).contains(&ratio), "{ratio}");
}
