//! Benchmark of planning a step with long cached prompts in the queue:
//! `cargo bench --package millrace-scheduler --bench plan`.
//!
//! 1,024 sequences decode. Sixteen requests wait whose prompts of 100,000 tokens are in the prefix
//! cache. In the first case there are no blocks for them, so each plan considers all of them again.
//! In the second case all of them are admitted by one plan.

use std::time::{Duration, Instant};

use millrace_proto::{MAX_FRAME, PromptHandling, Sampled, Sampling, Step, StepOutput};
use millrace_scheduler::{Request, Scheduler, SchedulerLimits, SchedulerOptions, Tenant};

const RUNNING: usize = 1024;
const WAITING: usize = 16;
const PROMPT: usize = 100_000;
const BLOCK: usize = 16;
/// Tokens after the cached prompt of the requests for which there are no blocks.
const TAIL: usize = 64_000;
/// Number of plans that are measured. The running sequences must not use up the free blocks.
const PLANS: usize = 24;

fn main() {
    blocked();
    admitted();
}

fn limits(num_blocks: usize) -> SchedulerLimits {
    SchedulerLimits {
        max_sequence_tokens: 200_000,
        max_step_tokens: 1 << 20,
        max_sequences: RUNNING + WAITING,
        block_size: BLOCK,
        num_blocks,
        vocab_size: 150_000,
        max_vector_len: 64,
        max_frame_bytes: MAX_FRAME,
        prompt_handling: PromptHandling::Shared,
        state_checkpoints: 0,
        max_drafts: 0,
        has_draft_model: false,
        adapters: 0,
        max_loaded_adapters: 0,
    }
}

/// A request whose prompt begins with a token of its own.
fn request(first: usize, tokens: usize, max_new_tokens: u32) -> Request {
    let prompt = (0..tokens).map(|at| if at == 0 { first } else { at % 150_000 } as u32).collect();
    Request {
        prompt,
        max_new_tokens,
        stop_tokens: [].into(),
        sampling: Sampling { repetition_penalty: 1.0, ..Sampling::default() },
        priority: Default::default(),
        tenant: Tenant::default(),
        adapter: None,
        cache_salt: None,
        block_hashes: None,
        mask: None,
        prompt_logprobs: None,
        pooling: None,
        pooling_start: 0,
        second_type_start: None,
    }
}

fn answer(scheduler: &mut Scheduler, step: &Step) {
    let sampled = step.rows.iter().filter(|row| row.sample);
    let sampled = sampled.map(|row| Sampled { slot: row.slot, ..Sampled::default() }).collect();
    scheduler.apply(StepOutput { step: step.id, sampled, ..StepOutput::default() }).expect("a valid answer");
}

/// A scheduler with `RUNNING` sequences, of which `long` have one of the long prompts.
fn scheduler(limits: SchedulerLimits, long: usize) -> Scheduler {
    let mut scheduler = Scheduler::new(limits, SchedulerOptions::default());
    for first in 0..RUNNING {
        let tokens = if first < long { PROMPT } else { 20 };
        scheduler.add(request(first, tokens, 1_000)).expect("it fits");
    }
    while scheduler.stats().waiting > 0 {
        let plan = scheduler.plan().expect("the queue is not empty");
        answer(&mut scheduler, &plan.step);
    }
    scheduler
}

/// Prints the median of some durations.
fn report(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let median = times[times.len() / 2];
    println!(
        "{what}: {:.3} ms (longest {:.3} ms)",
        median.as_secs_f64() * 1e3,
        times[times.len() - 1].as_secs_f64() * 1e3
    );
}

/// Each long prompt is in use by a running sequence, and the tails of the waiting requests need
/// more blocks than are free.
fn blocked() {
    let used = WAITING * PROMPT / BLOCK + (RUNNING - WAITING) * 2;
    let mut scheduler = scheduler(limits(used + TAIL / BLOCK), WAITING);
    for waiting in [0, WAITING] {
        for first in 0..waiting {
            scheduler.add(request(first, PROMPT + TAIL, 100)).expect("it fits");
        }
        let mut times = Vec::new();
        for _ in 0..PLANS {
            let start = Instant::now();
            let plan = scheduler.plan().expect("there are decodes");
            times.push(start.elapsed());
            assert!(plan.admitted.is_empty() && plan.step.rows.len() == RUNNING);
            answer(&mut scheduler, &plan.step);
        }
        report(&format!("{RUNNING} running, {waiting} waiting for blocks"), times);
    }
}

/// There are blocks for all waiting sequences.
fn admitted() {
    let mut scheduler = scheduler(limits(4 * WAITING * PROMPT / BLOCK), WAITING);
    let mut times = Vec::new();
    for _ in 0..PLANS {
        let added = (0..WAITING).map(|first| scheduler.add(request(first, PROMPT, 100)).expect("it fits"));
        let added: Vec<_> = added.collect();
        let start = Instant::now();
        let plan = scheduler.plan().expect("there are decodes");
        times.push(start.elapsed());
        assert_eq!(plan.admitted.len(), WAITING);
        answer(&mut scheduler, &plan.step);
        added.into_iter().for_each(|id| scheduler.cancel(id));
    }
    report(&format!("{RUNNING} running, {WAITING} admitted"), times);
}
