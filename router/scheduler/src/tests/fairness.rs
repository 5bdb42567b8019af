//! Fair shares of several tenants.

use std::collections::HashMap;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::pair::Pair;
use super::{LIMITS, request};
use crate::{AdapterId, Priority, Request, SchedulerLimits, SchedulerOptions, SeqId, SequenceEvent, Tenant};

fn of(tenant: &str, request: Request) -> Request {
    Request { tenant: Tenant::named(tenant), ..request }
}

/// A prompt that shares no block with another one.
fn distinct(random: &mut StdRng, prompt: usize, new: u32) -> Request {
    let tokens = (0..prompt).map(|_| random.random_range(0..LIMITS.vocab_size as u32)).collect();
    Request { prompt: tokens, ..request(1, new) }
}

/// The tokens that each tenant has received: prompt tokens of its admitted sequences, and generated
/// tokens.
#[derive(Default)]
struct Received {
    tenants: HashMap<SeqId, usize>,
    prompts: HashMap<SeqId, usize>,
    tokens: Vec<u64>,
}

impl Received {
    fn new(tenants: usize) -> Self {
        Received { tokens: vec![0; tenants], ..Received::default() }
    }

    fn add(&mut self, pair: &mut Pair, tenant: usize, request: &Request) -> SeqId {
        let id = pair.add(&of(&format!("tenant {tenant}"), request.clone()));
        self.tenants.insert(id, tenant);
        self.prompts.insert(id, request.prompt.len());
        id
    }

    fn step(&mut self, pair: &mut Pair) {
        let Some((plan, outputs)) = pair.step() else { return };
        for admitted in &plan.admitted {
            // A sequence counts once, even if it is preempted.
            let prompt = self.prompts.insert(admitted.sequence, 0).unwrap();
            self.tokens[self.tenants[&admitted.sequence]] +=
                prompt.saturating_sub(admitted.cached_tokens) as u64;
        }
        for output in outputs.iter().filter(|output| matches!(output.event, SequenceEvent::Token(_))) {
            self.tokens[self.tenants[&output.sequence]] += 1;
        }
    }

    fn gap(&self) -> u64 {
        self.tokens.iter().max().unwrap() - self.tokens.iter().min().unwrap()
    }
}

/// Runs tenants that always have sequences in the queue, whose requests have the given longest
/// prompts and answers. Returns the largest difference of the tokens that they received.
fn largest_gap(seed: u64, slots: usize, longest: &[(usize, u32)]) -> u64 {
    let mut random = StdRng::seed_from_u64(seed);
    let limits = SchedulerLimits { max_sequences: slots, num_blocks: 200, ..LIMITS };
    let options = SchedulerOptions { prefix_cache: seed.is_multiple_of(2), ..SchedulerOptions::default() };
    let mut pair = Pair::with(limits, options);
    let (mut received, mut gap) = (Received::new(longest.len()), 0);
    let mut waiting = vec![Vec::<SeqId>::new(); longest.len()];
    for _ in 0..1500 {
        for (tenant, &(prompt, new)) in longest.iter().enumerate() {
            // The first tenant floods the queue.
            let backlog = if tenant == 0 { 30 } else { 8 };
            waiting[tenant].retain(|id| received.prompts[id] > 0);
            while waiting[tenant].len() < backlog {
                let request = distinct(&mut random, prompt, new);
                let id = received.add(&mut pair, tenant, &request);
                waiting[tenant].push(id);
            }
        }
        received.step(&mut pair);
        gap = gap.max(received.gap());
    }
    assert!(received.tokens.iter().all(|&tokens| tokens > 500), "{:?}", received.tokens);
    gap
}

#[test]
fn with_one_slot_the_shares_differ_by_one_request_at_most() {
    for (seed, longest) in [
        [(40, 10), (40, 10)].as_slice(),
        &[(40, 10), (5, 1)],
        &[(5, 1), (60, 60)],
        &[(100, 1), (1, 100), (10, 10)],
    ]
    .into_iter()
    .enumerate()
    {
        let largest = longest.iter().map(|&(prompt, new)| prompt as u64 + u64::from(new)).max().unwrap();
        let gap = largest_gap(seed as u64, 1, longest);
        assert!(gap <= largest, "{longest:?}: {gap} tokens");
    }
}

#[test]
fn with_several_slots_the_shares_differ_by_what_runs_at_most() {
    for (seed, longest) in [
        [(40, 10), (40, 10)].as_slice(),
        &[(40, 10), (5, 1)],
        &[(5, 1), (60, 60)],
        &[(100, 1), (1, 100), (10, 10)],
    ]
    .into_iter()
    .enumerate()
    {
        let largest = longest.iter().map(|&(prompt, new)| prompt as u64 + u64::from(new)).max().unwrap();
        let gap = largest_gap(seed as u64, 4, longest);
        // The bound of the paper: twice the tokens that can run at the same time.
        assert!(gap <= 2 * 4 * largest, "{longest:?}: {gap} tokens");
    }
}

/// The tenants of the admitted sequences, in order, until nothing is left to run.
fn admissions(pair: &mut Pair, tenants: &HashMap<SeqId, &'static str>) -> Vec<&'static str> {
    let mut order = Vec::new();
    while let Some((plan, _)) = pair.step() {
        order.extend(plan.admitted.iter().map(|admitted| tenants[&admitted.sequence]));
    }
    order
}

/// A pair with one slot and no prefix cache, whose sequences run one after the other.
fn one_slot() -> Pair {
    let limits = SchedulerLimits { max_sequences: 1, num_blocks: 64, ..LIMITS };
    Pair::with(limits, SchedulerOptions { prefix_cache: false, ..SchedulerOptions::default() })
}

#[test]
fn a_flood_of_one_tenant_does_not_delay_another() {
    let mut pair = one_slot();
    let mut tenants = HashMap::new();
    for _ in 0..6 {
        tenants.insert(pair.add(&of("flood", request(10, 5))), "flood");
    }
    pair.step();
    for _ in 0..2 {
        tenants.insert(pair.add(&of("other", request(10, 5))), "other");
    }
    let order = admissions(&mut pair, &tenants);
    assert_eq!(order, ["other", "flood", "other", "flood", "flood", "flood", "flood"]);
}

#[test]
fn an_idle_tenant_saves_up_no_share_and_a_debt_is_not_forgotten() {
    let mut pair = one_slot();
    let mut tenants = HashMap::new();
    // The one tenant has received much when the other one arrives.
    for _ in 0..5 {
        tenants.insert(pair.add(&of("busy", request(50, 20))), "busy");
    }
    while pair.scheduler.stats().waiting > 3 {
        pair.step();
    }
    for _ in 0..4 {
        tenants.insert(pair.add(&of("new", request(50, 20))), "new");
    }
    let order = admissions(&mut pair, &tenants);
    assert_eq!(order, ["new", "busy", "new", "busy", "new", "busy", "new"]);

    // A tenant that has received more than another waiting one does not begin anew when it leaves
    // and comes back.
    let mut tenants = HashMap::new();
    tenants.insert(pair.add(&of("a", request(200, 5))), "a");
    for _ in 0..4 {
        tenants.insert(pair.add(&of("b", request(10, 5))), "b");
    }
    pair.step();
    while pair.scheduler.stats().waiting == 4 {
        pair.step();
    }
    tenants.insert(pair.add(&of("a", request(10, 5))), "a");
    assert_eq!(admissions(&mut pair, &tenants), ["b", "b", "b", "a"]);
}

#[test]
fn a_sequence_that_does_not_fit_delays_its_own_tenant_first() {
    let limits = SchedulerLimits { max_sequences: 3, num_blocks: 16, ..LIMITS };
    let options = SchedulerOptions { prefix_cache: false, ..SchedulerOptions::default() };
    let mut pair = Pair::with(limits, options);
    let mut tenants = HashMap::new();
    let first = pair.add(&of("first", request(100, 60)));
    pair.step();
    // There are no blocks for the long one, so others overtake it. They are ordered as if it had
    // been charged to its tenant, although it came first.
    tenants.insert(pair.add(&of("a", request(200, 5))), "a long");
    tenants.insert(pair.add(&of("a", request(10, 5))), "a short");
    for _ in 0..3 {
        tenants.insert(pair.add(&of("b", request(10, 5))), "b");
    }
    tenants.insert(first, "first");
    assert_eq!(admissions(&mut pair, &tenants), ["b", "b", "b", "a short", "a long"]);
}

#[test]
fn a_preempted_stream_comes_before_new_requests_of_other_tenants() {
    let limits = SchedulerLimits { max_sequences: 2, num_blocks: 10, ..LIMITS };
    let options = SchedulerOptions { prefix_cache: false, ..SchedulerOptions::default() };
    let mut pair = Pair::with(limits, options);
    let streams = [0, 1].map(|_| pair.add(&of("a", request(20, 100))));
    while pair.scheduler.stats().running < 2 {
        pair.step();
    }
    while pair.scheduler.stats().running == 2 {
        pair.step();
    }
    // The other tenant has received nothing.
    let others = [0, 1].map(|_| pair.add(&of("b", request(20, 5))));
    assert_eq!(pair.scheduler.admission_order(3), [streams[1], others[0], others[1]]);
}

#[test]
fn a_new_tenant_does_not_start_behind_all_that_wait() {
    let mut pair = one_slot();
    let mut tenants = HashMap::new();
    pair.add(&of("large", request(300, 5)));
    for _ in 0..4 {
        tenants.insert(pair.add(&of("small", request(10, 5))), "small");
    }
    pair.step();
    // The floor has risen by half of the large request, and only the small ones wait, which have
    // received nothing.
    for _ in 0..2 {
        tenants.insert(pair.add(&of("new", request(10, 5))), "new");
    }
    let order = admissions(&mut pair, &tenants);
    assert_eq!(order, ["small", "new", "small", "new", "small", "small"]);
}

#[test]
fn a_new_tenant_does_not_start_before_all_that_wait() {
    let mut pair = one_slot();
    let mut tenants = HashMap::new();
    pair.add(&of("large", request(300, 5)));
    let others: Vec<_> = (0..4).map(|_| pair.add(&of("other", request(10, 5)))).collect();
    for _ in 0..4 {
        tenants.insert(pair.add(&of("large", request(10, 5))), "large");
    }
    pair.step();
    // Only the tenant waits that has received much.
    others.into_iter().for_each(|id| pair.scheduler.cancel(id));
    for _ in 0..2 {
        tenants.insert(pair.add(&of("new", request(10, 5))), "new");
    }
    let order = admissions(&mut pair, &tenants);
    // Both stand at the same counter, and the large request that runs goes on receiving tokens.
    assert_eq!(order, ["new", "large", "new", "large", "large", "large"]);
}

#[test]
fn priorities_are_above_shares() {
    let mut pair = one_slot();
    let mut tenants = HashMap::new();
    pair.add(&of("a", request(100, 5)));
    pair.step();
    let low = Request { priority: Priority::Low, ..request(10, 5) };
    tenants.insert(pair.add(&of("b", low.clone())), "b low");
    tenants.insert(pair.add(&of("a", request(10, 5))), "a normal");
    tenants.insert(pair.add(&of("a", low)), "a low");
    tenants.insert(pair.add(&of("b", request(10, 5))), "b normal");
    assert_eq!(admissions(&mut pair, &tenants), ["b normal", "a normal", "b low", "a low"]);
}

#[test]
fn requests_without_a_tenant_share_one_part() {
    let mut pair = one_slot();
    let mut tenants = HashMap::new();
    for _ in 0..4 {
        tenants.insert(pair.add(&request(10, 5)), "nobody");
    }
    for _ in 0..2 {
        tenants.insert(pair.add(&of("a", request(10, 5))), "a");
    }
    assert_eq!(admissions(&mut pair, &tenants), ["nobody", "a", "nobody", "a", "nobody", "nobody"]);
}

#[test]
fn a_lead_by_priority_is_bounded() {
    let limits = SchedulerLimits { max_sequences: 1, num_blocks: 16, ..LIMITS };
    let options = SchedulerOptions { prefix_cache: false, ..SchedulerOptions::default() };
    let mut pair = Pair::with(limits, options);
    let low = |tenant: &str| Request { priority: Priority::Low, ..of(tenant, request(10, 6)) };
    let mut received = 0;
    // One tenant is always before the other by its priority.
    pair.add(&low("patient"));
    for _ in 0..30 {
        pair.add(&of("urgent", Request { priority: Priority::High, ..request(100, 1) }));
        while pair.scheduler.stats().waiting > 1 {
            pair.step();
        }
    }
    // The cache holds 256 tokens, so the lead is at most 512.
    let last = pair.add(&low("urgent"));
    loop {
        while pair.scheduler.stats().waiting < 3 {
            pair.add(&low("patient"));
        }
        let (plan, _) = pair.step().unwrap();
        if plan.admitted.iter().any(|admitted| admitted.sequence == last) {
            break;
        }
        received += 16 * plan.admitted.len();
        assert!(received < 600, "the tenant waits for ever");
    }
    assert!(received >= 500, "only {received} tokens make up for the lead");
}

#[test]
fn idle_tenants_are_forgotten() {
    let mut pair = one_slot();
    for i in 0..20 {
        let id = pair.add(&of(&format!("tenant {i}"), request(10, 3)));
        pair.run(&[id]);
    }
    assert_eq!(pair.scheduler.shares.known(), 0, "nothing is waiting or running");
    // One tenant is always there.
    for i in 0..200 {
        while pair.scheduler.stats().waiting < 2 {
            pair.add(&of("stays", request(20, 3)));
        }
        pair.add(&of(&format!("tenant {i}"), request(10, 3)));
        while pair.scheduler.stats().waiting >= 3 {
            pair.step();
        }
        assert!(pair.scheduler.shares.known() < 10, "{} tenants", pair.scheduler.shares.known());
    }
}

/// The adapters of one tenant share its tokens, and a tenant gets no more by naming several.
#[test]
fn adapters_share_the_part_of_their_tenant() {
    let mut random = StdRng::seed_from_u64(7);
    for (adapters, max_loaded_adapters) in [(4, 4), (2, 4)] {
        let limits = SchedulerLimits { num_blocks: 200, adapters, max_loaded_adapters, ..LIMITS };
        let mut pair = Pair::new(limits);
        // Two adapters of the first tenant, of which the first floods the queue, and one of the
        // second.
        let kinds = [("a", 0, 30), ("a", 1, 6), ("b", 2, 6)];
        let mut received = Received::new(kinds.len());
        let mut waiting = vec![Vec::<SeqId>::new(); kinds.len()];
        let largest_gap = |received: &Received| {
            let [first, second, other] = received.tokens[..] else { unreachable!("three kinds") };
            first.abs_diff(second).max((first + second).abs_diff(other) / 2)
        };
        let mut gap = 0;
        for _ in 0..3000 {
            for (kind, &(tenant, adapter, backlog)) in kinds.iter().enumerate() {
                waiting[kind].retain(|id| received.prompts[id] > 0);
                while waiting[kind].len() < backlog {
                    let (prompt, new) = (random.random_range(1..40), random.random_range(1..20));
                    let request = of(tenant, distinct(&mut random, prompt, new));
                    let id = pair.add(&Request { adapter: Some(AdapterId(adapter)), ..request });
                    received.tenants.insert(id, kind);
                    received.prompts.insert(id, prompt);
                    waiting[kind].push(id);
                }
            }
            received.step(&mut pair);
            gap = gap.max(largest_gap(&received));
        }
        assert!(received.tokens.iter().all(|&tokens| tokens > 3000), "{:?}", received.tokens);
        // Twice the tokens that can run at the same time, and with fewer places than adapters those
        // that run until a place is free.
        let bound = if adapters < max_loaded_adapters { 1500 } else { 2 * 4 * 60 };
        assert!(gap <= bound, "{adapters} places: {gap} tokens, {:?}", received.tokens);
    }
}
