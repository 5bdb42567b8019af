//! Sequences with recurrent states, which can begin only where a checkpoint was saved.

use std::collections::HashSet;

use millrace_proto::{PromptHandling, Step};

use super::pair::{Pair, cached_tokens};
use super::{LIMITS, request};
use crate::test_support::{REPEATS, Trouble, alone};
use crate::{Request, SchedulerLimits, SchedulerOptions, SequenceEvent};

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

/// Rows with drafts keep the states before them. After a wrong draft the next row begins with
/// these, and runs the right drafts again.
#[test]
fn a_wrong_draft_takes_the_states_back() {
    let limits = SchedulerLimits { max_drafts: 8, ..RECURRENT };
    let options = SchedulerOptions { drafts: 4, always_draft: true, ..SchedulerOptions::default() };
    for prefix_cache in [true, false] {
        let mut pair = Pair::with(limits, SchedulerOptions { prefix_cache, ..options });
        let seeded = |seed| {
            let mut request = request(20, 150);
            request.sampling.seed = REPEATS + seed;
            request
        };
        let requests = [0, 1, 2, 3].map(seeded);
        let ids = requests.each_ref().map(|request| pair.add(request));
        let (mut kept, mut rewound) = (Vec::new(), 0);
        let mut texts = ids.map(|_| Vec::new());
        while let Some((plan, outputs)) = pair.step() {
            kept.extend(plan.step.rows.iter().filter_map(|row| row.keep_state));
            for row in plan.step.rows.iter().filter(|row| row.restore_state.is_some()) {
                assert!(row.sample && row.count > 1 && row.drafts.is_empty(), "{row:?}");
                rewound += 1;
            }
            for output in outputs {
                let index = ids.iter().position(|id| *id == output.sequence).unwrap();
                if let SequenceEvent::Token(sampled) = output.event {
                    texts[index].push(sampled.token);
                }
            }
        }
        for (request, text) in requests.iter().zip(&texts) {
            assert_eq!(*text, alone(request, LIMITS.vocab_size).0);
        }
        assert!(rewound > 0 && kept.len() > rewound, "{kept:?} {rewound}");
        let holders: HashSet<u32> = kept.into_iter().collect();
        assert!(holders.len() <= if prefix_cache { 2 } else { 4 }, "{holders:?}");
        let stats = pair.scheduler.stats();
        assert!(stats.accepted_drafts > 0 && stats.drafted_tokens > stats.accepted_drafts, "{stats:?}");
    }
}

#[test]
fn there_are_no_drafts_without_checkpoints() {
    let limits = SchedulerLimits { max_drafts: 8, state_checkpoints: 0, ..RECURRENT };
    let options = SchedulerOptions { drafts: 4, always_draft: true, ..SchedulerOptions::default() };
    let mut pair = Pair::with(limits, options);
    complete(&mut pair, &Request { prompt: vec![9; 30], ..request(30, 60) });
    assert_eq!(pair.scheduler.stats().drafted_tokens, 0);
}
