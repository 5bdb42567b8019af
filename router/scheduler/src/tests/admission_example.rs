//! The example of admission in the documentation of the crate, with its numbers.

use super::pair::Pair;
use super::{LIMITS, request};
use crate::{PlannedStep, SchedulerLimits};

/// Three streams run when a prompt comes. Returns the next step with a KV cache of `num_blocks`
/// blocks, and the number of blocks that the streams held before it.
fn step_with_prompt(num_blocks: usize) -> (PlannedStep, usize) {
    let mut pair = Pair::new(SchedulerLimits { num_blocks, ..LIMITS });
    for _ in 0..3 {
        pair.add(&request(20, 60));
    }
    let decodes = |plan: &PlannedStep| plan.step.rows.iter().all(|row| row.count == 1);
    while !decodes(&pair.step().expect("the streams run").0) {}
    let held = pair.scheduler.stats().used_blocks;
    pair.add(&request(100, 10));
    (pair.step().expect("the streams run").0, held)
}

#[test]
fn a_prompt_is_admitted_when_four_reserves_fit() {
    let (own_blocks, stream_growth, own_growth) = (7, 3, 0);
    let (plan, held) = step_with_prompt(6 + own_blocks + stream_growth + own_growth);
    assert_eq!(held, 6);
    assert_eq!(plan.admitted.len(), 1);
    let rows: Vec<(u32, u32, usize)> =
        plan.step.rows.iter().map(|row| (row.start, row.count, row.new_blocks.len())).collect();
    assert_eq!(rows, [(21, 1, 0), (21, 1, 0), (21, 1, 0), (0, 29, own_blocks)]);

    let (plan, _) = step_with_prompt(6 + own_blocks + stream_growth + own_growth - 1);
    assert!(plan.admitted.is_empty(), "one block is missing");
    assert_eq!(plan.step.rows.len(), 3);
}
