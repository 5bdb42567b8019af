//! Sequences with recurrent states, which can begin only where a checkpoint was saved.

use millrace_proto::{PromptHandling, Step};

use super::pair::{Pair, cached_tokens};
use super::{LIMITS, request};
use crate::test_support::Trouble;
use crate::{Request, SchedulerLimits, SchedulerOptions};

const RECURRENT: SchedulerLimits = SchedulerLimits {
    prompt_handling: PromptHandling::Unshared,
    state_checkpoints: 4,
    max_step_tokens: 128,
    num_blocks: 64,
    ..LIMITS
};

/// A prompt of `shared` tokens that other prompts have, and as many `own` tokens as wanted.
fn prompt(shared: usize, own: usize, seed: u32) -> Request {
    let tokens = |len: usize, seed: u32| (0..len as u32).map(move |i| (i * i + seed) % 100);
    Request { prompt: tokens(shared, 1).chain(tokens(own, seed)).collect(), ..request(1, 3) }
}

/// The ends of the rows of a step that save states.
fn saves(step: &Step) -> Vec<u32> {
    let saving = step.rows.iter().filter(|row| row.save_state.is_some());
    saving.map(|row| row.start + row.count).collect()
}

/// Runs a request alone. Returns the number of its cached tokens, and where its states were saved.
fn complete(pair: &mut Pair, request: &Request) -> (usize, Vec<u32>) {
    let id = pair.add(request);
    let (mut cached, mut saved) = (0, Vec::new());
    while let Some((plan, _)) = pair.step() {
        cached += cached_tokens(&plan, id).unwrap_or(0);
        saved.extend(saves(&plan.step));
    }
    (cached, saved)
}

#[test]
fn a_prompt_begins_where_the_states_of_an_equal_one_were_saved() {
    let mut pair = Pair::new(RECURRENT);
    // The last tokens of the prompt are left out: 100 - 1 - 8 is in the block that begins at 80.
    assert_eq!(complete(&mut pair, &prompt(100, 0, 0)), (0, vec![80]));
    assert_eq!(complete(&mut pair, &prompt(100, 0, 0)), (80, vec![]));
    // The next turn of the conversation, with another beginning of the answer.
    assert_eq!(complete(&mut pair, &prompt(95, 100, 2)), (80, vec![176]));
    assert_eq!(pair.scheduler.stats().state_checkpoints, 2);
    // A short prompt is not worth a checkpoint.
    assert_eq!(complete(&mut pair, &prompt(0, 70, 3)), (0, vec![]));
}

#[test]
fn the_second_prompt_that_leaves_another_one_saves_its_states_there() {
    let mut pair = Pair::new(RECURRENT);
    assert_eq!(complete(&mut pair, &prompt(150, 100, 2)), (0, vec![240]));
    assert_eq!(complete(&mut pair, &prompt(150, 100, 3)), (0, vec![144, 240]));
    assert_eq!(complete(&mut pair, &prompt(150, 100, 4)), (144, vec![240]));
}

#[test]
fn the_checkpoint_that_was_not_used_for_longest_is_replaced() {
    let mut pair = Pair::new(SchedulerLimits { state_checkpoints: 2, ..RECURRENT });
    let prompts = [0, 1, 2].map(|seed| prompt(0, 100, seed));
    let hit = |pair: &mut Pair, index: usize| complete(pair, &prompts[index]).0 > 0;
    assert!(!hit(&mut pair, 0) && !hit(&mut pair, 1) && hit(&mut pair, 0));
    assert!(!hit(&mut pair, 2), "it takes the place of the second one");
    assert!(hit(&mut pair, 0) && hit(&mut pair, 2) && !hit(&mut pair, 1));
}

#[test]
fn equal_prompts_wait_for_the_checkpoint() {
    let mut pair = Pair::new(SchedulerLimits { max_step_tokens: 64, ..RECURRENT });
    let ids = [(); 3].map(|()| pair.add(&prompt(150, 0, 0)));
    let mut cached = Vec::new();
    while let Some((plan, _)) = pair.step() {
        cached.extend(ids.iter().filter_map(|&id| cached_tokens(&plan, id)));
    }
    assert_eq!(cached, [0, 128, 128]);
}

#[test]
fn a_checkpoint_leaves_with_its_blocks() {
    // The second prompt takes all blocks.
    let mut pair = Pair::new(SchedulerLimits { num_blocks: 10, ..RECURRENT });
    complete(&mut pair, &prompt(0, 100, 0));
    assert_eq!(pair.scheduler.stats().state_checkpoints, 1);
    complete(&mut pair, &prompt(0, 157, 1));
    assert_eq!(pair.scheduler.stats().state_checkpoints, 1);
    assert_eq!(complete(&mut pair, &prompt(0, 100, 0)).0, 0);
}

#[test]
fn states_that_may_be_wrong_are_forgotten() {
    let mut pair = Pair::new(RECURRENT);
    let broken =
        Request { sampling: crate::test_support::sampling(Trouble::Broken(95).seed()), ..prompt(0, 100, 0) };
    assert_eq!(complete(&mut pair, &broken).1, [80]);
    assert_eq!(pair.scheduler.stats().state_checkpoints, 0);
    assert_eq!(complete(&mut pair, &prompt(0, 100, 0)).0, 0);
}

#[test]
fn without_a_prefix_cache_no_states_are_saved() {
    let options = SchedulerOptions { prefix_cache: false, ..SchedulerOptions::default() };
    let mut pair = Pair::with(RECURRENT, options);
    for _ in 0..2 {
        assert_eq!(complete(&mut pair, &prompt(0, 100, 0)), (0, vec![]));
    }
}

#[test]
fn a_cancelled_sequence_gives_its_checkpoint_back() {
    let mut pair = Pair::new(SchedulerLimits { state_checkpoints: 1, ..RECURRENT });
    let id = pair.add(&prompt(0, 100, 0));
    let plan = pair.scheduler.plan().unwrap();
    assert_eq!(saves(&plan.step), [80]);
    pair.scheduler.cancel(id);
    let output = pair.shard.run(&plan.step).unwrap();
    pair.scheduler.apply(output).unwrap();
    assert_eq!(complete(&mut pair, &prompt(0, 100, 1)).1, [80]);
}
