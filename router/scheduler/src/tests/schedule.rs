//! The schedules: first come first served, and longest prefix match.

use proptest::prelude::*;

use super::pair::Pair;
use super::{LIMITS, request};
use crate::{Request, Schedule, SchedulerLimits, SchedulerOptions, SeqId};

/// A pair whose cache has the blocks of `cached`.
fn with_cached(schedule: Schedule, limits: SchedulerLimits, cached: &Request) -> Pair {
    let mut pair = Pair::with(limits, SchedulerOptions { schedule, ..SchedulerOptions::default() });
    pair.complete(cached);
    pair
}

/// A request for which `blocks` blocks of the cache are found after [`request(160, 5)`](request)
/// has run.
fn sharing(blocks: u32) -> Request {
    let mut prompt = request(160, 5).prompt;
    prompt.truncate(blocks as usize * 16);
    prompt.extend((0..40).map(|token| (token * 5 + blocks) % 100));
    Request { prompt, ..request(1, 5) }
}

/// The order in which requests are admitted that arrive together at a scheduler with one slot.
fn order(schedule: Schedule, requests: &[Request]) -> Vec<usize> {
    let limits = SchedulerLimits { max_sequences: 1, num_blocks: 100, ..LIMITS };
    let mut pair = with_cached(schedule, limits, &request(160, 5));
    let ids: Vec<SeqId> = requests.iter().map(|request| pair.add(request)).collect();
    let mut order = Vec::new();
    while let Some((plan, _)) = pair.step() {
        order.extend(
            plan.admitted.iter().map(|admitted| ids.iter().position(|&id| id == admitted.sequence).unwrap()),
        );
    }
    order
}

#[test]
fn the_longest_cached_prefix_goes_first() {
    let requests = [0, 4, 2, 8, 4].map(sharing);
    assert_eq!(order(Schedule::Lpm, &requests), [3, 1, 4, 2, 0]);
    assert_eq!(order(Schedule::Fcfs, &requests), [0, 1, 2, 3, 4]);
}

#[test]
fn a_sequence_that_needs_blocks_is_passed_by_the_next_longest_prefix() {
    let limits = SchedulerLimits { num_blocks: 16, ..LIMITS };
    let mut pair = with_cached(Schedule::Lpm, limits, &request(160, 5));
    // It takes five of six free blocks, so the longest prefix does not fit: its tail is too long.
    let running = pair.add(&request(60, 20));
    pair.step();
    let long = pair.add(&Request { prompt: [sharing(8).prompt, vec![1; 60]].concat(), ..request(1, 5) });
    let short = pair.add(&Request { prompt: sharing(2).prompt[..40].to_vec(), ..request(1, 5) });
    let (plan, _) = pair.step().unwrap();
    let admitted: Vec<SeqId> = plan.admitted.iter().map(|admitted| admitted.sequence).collect();
    assert_eq!(admitted, [short]);
    pair.run(&[running, long, short]);
    assert!(pair.scheduler.is_idle());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Requests with a longer prefix never overtake a request by more work than the KV cache holds,
    /// although they never stop coming.
    #[test]
    fn no_sequence_starves_with_longest_prefix_match(
        shares in prop::collection::vec(1u32..10, 1..20),
        new_tokens in 1u32..30,
        max_sequences in 1usize..6,
        num_blocks in 20usize..60,
        waiting in 1usize..20,
    ) {
        let limits = SchedulerLimits { max_sequences, num_blocks, max_step_tokens: 64, ..LIMITS };
        let mut pair = with_cached(Schedule::Lpm, limits, &request(160, 5));
        let mut next = shares.iter().cycle().map(|&blocks| Request { max_new_tokens: new_tokens, ..sharing(blocks) });
        let mut add = |pair: &mut Pair| {
            let request = next.next().unwrap();
            (pair.add(&request), request.prompt.len() + new_tokens as usize - 1)
        };
        let mut work = std::collections::HashMap::new();
        work.extend((0..waiting).map(|_| add(&mut pair)));
        let patient = pair.add(&request(50, 5));
        let mut overtaken = 0;
        let mut steps = 0;
        loop {
            while pair.scheduler.stats().waiting < waiting + 1 {
                work.extend([add(&mut pair)]);
            }
            let (plan, _) = pair.step().unwrap();
            let ids: Vec<SeqId> = plan.admitted.iter().map(|admitted| admitted.sequence).collect();
            overtaken += ids.iter().filter(|&&id| id > patient).map(|id| work[id]).sum::<usize>();
            steps += 1;
            prop_assert!(steps < 5000, "it starves");
            if ids.contains(&patient) {
                break;
            }
        }
        // Sequences that were admitted behind it in the same step did not overtake it.
        prop_assert!(overtaken <= num_blocks * 16 + max_sequences * 250, "{} positions", overtaken);
    }
}
