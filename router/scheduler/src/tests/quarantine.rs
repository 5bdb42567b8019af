//! Sequences that cause the loss of the shards.

use super::pair::Pair;
use super::{LIMITS, request, token};
use crate::test_support::{DEATH, PretendShard, Trouble, alone, sampling};
use crate::{Request, SeqId};

fn deadly(position: usize) -> Request {
    Request { sampling: sampling(Trouble::Deadly(position).seed()), ..request(10, 20) }
}

/// The outcome of a run in which shards die.
#[derive(Default)]
struct Run {
    deaths: usize,
    blamed: Vec<SeqId>,
    tokens: Vec<(SeqId, u32)>,
}

impl Run {
    fn of(&self, id: SeqId) -> Vec<u32> {
        self.tokens.iter().filter(|(of, _)| *of == id).map(|(_, token)| *token).collect()
    }
}

/// Runs until nothing is left to run, with two steps in flight and new shards after each death.
fn run(pair: &mut Pair) -> Run {
    let (mut run, mut sent) = (Run::default(), std::collections::VecDeque::new());
    loop {
        while sent.len() < 2
            && let Some(plan) = pair.scheduler.plan()
        {
            sent.push_back(plan.step);
        }
        let Some(step) = sent.pop_front() else { return run };
        match pair.shard.run(&step) {
            Err(why) if why == DEATH => {
                run.deaths += 1;
                run.blamed.extend(pair.scheduler.lose());
                assert_eq!(pair.scheduler.recover(LIMITS), []);
                pair.shard = PretendShard::new(LIMITS);
                sent.clear();
            }
            output => {
                let outputs = pair.scheduler.apply(output.unwrap()).unwrap();
                run.tokens.extend(outputs.iter().map(|output| (output.sequence, token(output))));
            }
        }
        pair.scheduler.check_integrity().unwrap();
    }
}

#[test]
fn a_deadly_sequence_costs_three_losses_and_fails_alone() {
    for position in [0, 9, 15] {
        let mut pair = Pair::new(LIMITS);
        let sound: Vec<Request> = (0..6).map(|n| request(10 + 7 * n, 25)).collect();
        let mut ids: Vec<SeqId> = sound[..3].iter().map(|request| pair.add(request)).collect();
        let sick = pair.add(&deadly(position));
        ids.extend(sound[3..].iter().map(|request| pair.add(request)));
        let run = run(&mut pair);
        assert_eq!((run.deaths, &run.blamed[..]), (3, &[sick][..]), "at {position}");
        for (request, id) in sound.iter().zip(ids) {
            assert_eq!(run.of(id), alone(request, LIMITS.vocab_size).0);
        }
        let stats = pair.scheduler.stats();
        assert_eq!((stats.quarantined, stats.used_blocks), (0, 0));
    }
}

#[test]
fn several_deadly_sequences_fail_one_after_the_other() {
    let mut pair = Pair::new(LIMITS);
    let sick: Vec<SeqId> = [12, 5, 18].map(|position| pair.add(&deadly(position))).into();
    let sound = pair.add(&request(30, 25));
    let run = run(&mut pair);
    let mut blamed = run.blamed.clone();
    blamed.sort_unstable();
    assert_eq!(blamed, sick);
    assert!(run.deaths <= 9, "{}", run.deaths);
    assert_eq!(run.of(sound), alone(&request(30, 25), LIMITS.vocab_size).0);
}

#[test]
fn other_suspects_run_alone_for_a_few_steps() {
    let mut pair = Pair::new(LIMITS);
    let requests: Vec<Request> = (0..4).map(|n| request(20 + n, 30)).collect();
    let ids: Vec<SeqId> = requests.iter().map(|request| pair.add(request)).collect();
    let mut got: Vec<(SeqId, u32)> = Vec::new();
    let step = |pair: &mut Pair, got: &mut Vec<(SeqId, u32)>| {
        let (plan, outputs) = pair.step().unwrap();
        got.extend(outputs.iter().map(|output| (output.sequence, token(output))));
        plan
    };
    for loss in 1..=2 {
        (0..6).for_each(|_| drop(step(&mut pair, &mut got)));
        assert!(pair.scheduler.plan().is_some());
        assert_eq!(pair.scheduler.lose(), None, "no sequence ran alone");
        assert_eq!(pair.scheduler.stats().quarantined, if loss == 2 { 4 } else { 0 });
        assert_eq!(pair.scheduler.recover(LIMITS), []);
        pair.shard = PretendShard::new(LIMITS);
    }
    let mut alone_steps = 0;
    while pair.scheduler.stats().quarantined > 0 {
        let plan = step(&mut pair, &mut got);
        assert_eq!(plan.step.rows.len(), 1, "one at a time");
        alone_steps += 1;
    }
    assert!(alone_steps <= 4 * 3, "{alone_steps} steps");
    while let Some((_, outputs)) = pair.step() {
        got.extend(outputs.iter().map(|output| (output.sequence, token(output))));
    }
    for (request, id) in requests.iter().zip(ids) {
        let tokens: Vec<u32> = got.iter().filter(|(of, _)| *of == id).map(|(_, token)| *token).collect();
        assert_eq!(tokens, alone(request, LIMITS.vocab_size).0);
    }
}

/// Loses the shards without a reason, and starts others.
fn lose(pair: &mut Pair) -> Option<SeqId> {
    assert!(pair.scheduler.plan().is_some());
    let blamed = pair.scheduler.lose();
    assert_eq!(pair.scheduler.recover(LIMITS), []);
    pair.scheduler.check_integrity().unwrap();
    pair.shard = PretendShard::new(LIMITS);
    blamed
}

/// Runs steps until a sequence has this many tokens more.
fn generate(pair: &mut Pair, tokens: usize) {
    let mut left = tokens;
    while left > 0 {
        left = left.saturating_sub(pair.step().unwrap().1.len());
    }
}

#[test]
fn losses_at_other_positions_do_not_convict_a_sequence() {
    let mut pair = Pair::new(LIMITS);
    let wanted = request(10, 25);
    let id = pair.add(&wanted);
    // Both losses have other causes: the second one happens where the first one did not.
    generate(&mut pair, 2);
    assert_eq!(lose(&mut pair), None);
    generate(&mut pair, 4);
    assert_eq!(lose(&mut pair), None);
    assert_eq!(pair.scheduler.stats().quarantined, 1);
    // The sequence is computed again alone when the shards are lost for another reason.
    assert_eq!(lose(&mut pair), None, "no position was in flight in all losses");
    assert_eq!(pair.scheduler.stats().quarantined, 1, "it is still a suspect");
    // A sequence that is lost alone a second time is the cause, wherever it is.
    assert_eq!(lose(&mut pair), Some(id));
    assert_eq!((pair.scheduler.stats().quarantined, pair.scheduler.stats().used_blocks), (0, 0));
}

#[test]
fn a_sequence_that_passes_its_positions_alone_is_not_lost() {
    let mut pair = Pair::new(LIMITS);
    let wanted = request(10, 25);
    let id = pair.add(&wanted);
    let mut run_all = Run::default();
    for tokens in [2, 4] {
        for _ in 0..tokens {
            let (_, outputs) = pair.step().unwrap();
            run_all.tokens.extend(outputs.iter().map(|output| (output.sequence, token(output))));
        }
        assert_eq!(lose(&mut pair), None);
    }
    assert_eq!(lose(&mut pair), None);
    let rest = run(&mut pair);
    run_all.tokens.extend(rest.tokens);
    assert_eq!((rest.deaths, run_all.of(id)), (0, alone(&wanted, LIMITS.vocab_size).0));
}

#[test]
fn only_sequences_with_rows_in_flight_are_suspects() {
    let mut pair = Pair::new(LIMITS);
    // There are four slots, so the fifth sequence waits.
    let ids: Vec<SeqId> = (0..5).map(|_| pair.add(&request(8, 30))).collect();
    for _ in 0..2 {
        pair.scheduler.plan().unwrap();
        assert_eq!(pair.scheduler.lose(), None);
        assert_eq!(pair.scheduler.recover(LIMITS), []);
    }
    assert_eq!(pair.scheduler.quarantine.iter().copied().collect::<Vec<_>>(), ids[..4]);
    // A cancelled sequence is not a suspect, and without steps in flight there are no suspects.
    pair.scheduler.cancel(ids[1]);
    assert_eq!((pair.scheduler.lose(), pair.scheduler.stats().quarantined), (None, 3));
}
