//! Drafts of a draft model: they are planned while they pay, and tried again when they did not.

use millrace_proto::{Row, StepOutput};

use super::latency::LIMITS;
use super::pretend_speed::PretendSpeed;
use super::{request, token};
use crate::test_support::{PretendShard, alone};
use crate::{Scheduler, SchedulerLimits, SchedulerOptions};

/// A device that spends most of a step on reading its weights.
const SPEED: PretendSpeed =
    PretendSpeed { base: 10_000.0, per_token: 100.0, per_pair: 0.0, per_sample: 10.0 };

/// The length of a run.
struct Totals {
    /// Number of steps, and of those with drafts.
    steps: usize,
    drafted: usize,
    micros: u64,
}

/// A run with a draft model.
#[derive(Clone, Copy)]
struct Run {
    streams: usize,
    /// Maximum number of drafts of a row.
    drafts: usize,
    /// The time of a pass of the draft model in microseconds.
    pass: f64,
    /// The time of a token that it reads, in nanoseconds.
    read: u64,
    /// Whether no guess is right.
    misguesses: bool,
    /// Number of tokens of each answer.
    tokens: u32,
}

/// A draft model that takes a tenth of the time of a step for a guess.
const USUAL: Run = Run { streams: 1, drafts: 4, pass: 1000.0, read: 0, misguesses: false, tokens: 600 };

/// Does this run, and checks its texts.
fn run(Run { streams, drafts, pass, read, misguesses, tokens }: Run) -> Totals {
    let limits = SchedulerLimits { max_drafts: 128, has_draft_model: true, ..LIMITS };
    let options = SchedulerOptions { drafts, ..SchedulerOptions::default() };
    let mut scheduler = Scheduler::new(limits, options);
    scheduler.note_warm_up(16, SPEED.time(&[Row { count: 16, ..Row::default() }]) as u64);
    scheduler.note_draft_warm_up(pass as u64, read);
    let mut shard = PretendShard::new(limits);
    shard.misguesses = misguesses;
    let requests: Vec<_> = (0..streams).map(|stream| request(20 + stream, tokens)).collect();
    let ids: Vec<_> = requests.iter().map(|request| scheduler.add(request.clone()).unwrap()).collect();
    let mut texts = vec![Vec::new(); streams];
    let mut totals = Totals { steps: 0, drafted: 0, micros: 0 };
    while let Some(plan) = scheduler.plan() {
        let step = plan.step;
        let passes = step.rows.iter().map(|row| row.model_drafts).max().unwrap_or(0);
        totals.steps += 1;
        totals.drafted += usize::from(passes > 0);
        let output = shard.run(&step).expect("the step keeps the contract");
        let draft_micros = (f64::from(passes) * pass) as u64;
        let step_micros = SPEED.micros(&step) + draft_micros;
        totals.micros += step_micros;
        for output in scheduler.apply(StepOutput { step_micros, draft_micros, ..output }).unwrap() {
            texts[ids.iter().position(|id| *id == output.sequence).unwrap()].push(token(&output));
        }
    }
    let wanted: Vec<Vec<u32>> = requests.iter().map(|request| alone(request, LIMITS.vocab_size).0).collect();
    assert!(texts == wanted, "a text is wrong");
    totals
}

#[test]
fn guesses_that_pay_are_made_and_others_are_not() {
    for streams in [1, 8] {
        let usual = Run { streams, ..USUAL };
        let without = run(Run { drafts: 0, ..usual }).micros;
        let Totals { steps, drafted, micros } = run(usual);
        assert!(drafted > steps * 8 / 10, "{streams}: {drafted} of {steps}");
        assert!(micros * 10 < without * 9, "{streams}: {micros} instead of {without}");
        let Totals { steps, drafted, micros } = run(Run { pass: 9000.0, ..usual });
        assert!(drafted < steps / 10, "{streams}: {drafted} of {steps} with an expensive draft model");
        assert!(micros * 97 < without * 100, "{streams}: {micros} instead of {without}");
    }
}

#[test]
fn wrong_guesses_are_tried_again_now_and_then() {
    for (streams, fewest) in [(1, 3), (8, 3), (64, 0)] {
        let usual = Run { streams, misguesses: true, ..USUAL };
        let without = run(Run { drafts: 0, ..usual }).micros;
        let Totals { steps, drafted, micros } = run(usual);
        assert!((fewest..steps / 5).contains(&drafted), "{streams}: {drafted} of {steps}");
        assert!(micros * 97 < without * 100, "{streams}: {micros} instead of {without}");
    }
}

/// The draft model reads the prompt before its first guess.
#[test]
fn a_short_answer_is_not_worth_reading_its_prompt() {
    let slow_reader = Run { read: 5_000_000, ..USUAL };
    assert_eq!(run(Run { tokens: 30, ..slow_reader }).drafted, 0);
    assert!(run(Run { tokens: 30, ..USUAL }).drafted > 0);
    assert!(run(slow_reader).drafted > 100);
}
