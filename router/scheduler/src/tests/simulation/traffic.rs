//! Random requests: lengths, priorities, adapters, salts, and prompts with common beginnings.

use std::sync::Arc;

use millrace_proto::{LogitBias, Sampling};
use rand::Rng;
use rand::rngs::StdRng;

use crate::test_support::{REPEATS, Trouble, pretend_mask, sampling};
use crate::{AdapterId, BlockHashes, Pooling, Priority, Request, SchedulerLimits, Tenant};

/// Maximum number of earlier prompts that new prompts may begin with.
const MAX_KNOWN_PROMPTS: usize = 8;

/// A source of requests.
pub(super) struct Traffic {
    limits: SchedulerLimits,
    salts: Vec<Option<Arc<str>>>,
    /// Probability of a request with an adapter. If the shards have none, it is refused.
    adapted: f64,
    /// Earlier prompts that new prompts may begin with.
    known_prompts: Vec<Vec<u32>>,
    reuse: f64,
    /// Probability of several answers to one prompt.
    copied: f64,
    priorities: Vec<Priority>,
    tenants: Vec<Tenant>,
    /// Probability of a constrained request.
    constrained: f64,
    /// Probability of a request with scores of its prompt.
    scored: f64,
    /// Probability of a request for a vector.
    pooled: f64,
    /// Probability of a request with a fault.
    troubled: f64,
    /// Probability of a request whose answer repeats itself.
    repetitive: f64,
}

impl Traffic {
    pub(super) fn new(random: &mut StdRng, limits: SchedulerLimits) -> Self {
        let salts = [None, Some("a".into()), Some("b".into())];
        let priorities = [Priority::Normal, Priority::High, Priority::Low];
        let tenants = [Tenant::default(), Tenant::named("a"), Tenant::named("b")];
        let number_of_tenants = if random.random_bool(0.5) { 1 } else { random.random_range(2..=3) };
        Traffic {
            limits,
            salts: salts[..random.random_range(1..=3)].to_vec(),
            adapted: match limits.adapters {
                0 => 0.01,
                _ => random.random_range(0.0..1.0),
            },
            known_prompts: Vec::new(),
            reuse: random.random_range(0.0..1.0),
            copied: if random.random_bool(0.5) { 0.0 } else { random.random_range(0.0..0.5) },
            priorities: priorities[..random.random_range(1..=3)].to_vec(),
            tenants: tenants[..number_of_tenants].to_vec(),
            constrained: if random.random_bool(0.5) { 0.0 } else { random.random_range(0.0..1.0) },
            pooled: if random.random_bool(0.7) { 0.0 } else { random.random_range(0.0..0.6) },
            troubled: if random.random_bool(0.6) { 0.0 } else { random.random_range(0.0..0.1) },
            repetitive: if random.random_bool(0.5) { 0.0 } else { random.random_range(0.0..1.0) },
            scored: if random.random_bool(0.5) { 0.0 } else { random.random_range(0.0..0.6) },
        }
    }

    /// Number of tenants.
    pub(super) fn tenants(&self) -> usize {
        self.tenants.len()
    }

    /// One request, or several answers to one prompt that differ in their seeds.
    pub(super) fn requests(&mut self, random: &mut StdRng, block_size: usize) -> Vec<Request> {
        let request = self.request(random);
        let copies = if random.random_bool(self.copied) { random.random_range(2..6) } else { 1 };
        let Request { prompt, adapter, cache_salt, .. } = &request;
        let block_hashes = random
            .random_bool(0.5)
            .then(|| BlockHashes::of_prompt(prompt, *adapter, cache_salt.as_ref(), block_size));
        let copy = |index: u64| {
            let mut copy = Request { block_hashes: block_hashes.clone(), ..request.clone() };
            if Trouble::of(copy.sampling.seed) == Trouble::None {
                copy.sampling.seed += index;
            }
            copy
        };
        (0..copies).map(copy).collect()
    }

    fn request(&mut self, random: &mut StdRng) -> Request {
        let limits = self.limits;
        let prompt = match self.known_prompts.last() {
            // The same prompt again, at about the same time.
            Some(last) if random.random_bool(self.reuse / 4.0) => last.clone(),
            _ => self.prompt(random),
        };
        self.remember(random, prompt.clone());
        let scored = random.random_bool(self.scored);
        let kinds = [Pooling::Last, Pooling::Mean, Pooling::First, Pooling::Max, Pooling::WeightedMean];
        let pooling = kinds[random.random_range(0..kinds.len())];
        let pooling = random.random_bool(self.pooled).then_some(pooling);
        let stops = random.random_range(0..3usize).min(limits.vocab_size / 8);
        Request {
            prompt,
            max_new_tokens: random
                .random_range(u32::from(!scored)..=(limits.max_sequence_tokens as u32 / 2).min(80)),
            stop_tokens: (0..stops as u32).collect(),
            sampling: self.sampling(random),
            priority: self.priorities[random.random_range(0..self.priorities.len())],
            tenant: self.tenants[random.random_range(0..self.tenants.len())].clone(),
            mask: random.random_bool(self.constrained).then(|| pretend_mask(&[], limits.vocab_size)),
            pooling,
            pooling_start: 0,
            second_type_start: None,
            prompt_logprobs: scored.then(|| random.random_range(0..=limits.vocab_size.min(12) as u32)),
            adapter: random.random_bool(self.adapted).then(|| self.adapter(random)),
            cache_salt: self.salts[random.random_range(0..self.salts.len())].clone(),
            block_hashes: None,
        }
    }

    /// An adapter. A few requests name one that the shards do not have.
    fn adapter(&self, random: &mut StdRng) -> AdapterId {
        let last = self.limits.max_loaded_adapters as u32;
        AdapterId(if random.random_bool(0.01) { last } else { random.random_range(0..last.max(1)) })
    }

    /// Sampling parameters that make messages long, and seeds that encode faults.
    fn sampling(&self, random: &mut StdRng) -> Sampling {
        let (vocab, position) =
            (self.limits.vocab_size, random.random_range(0..self.limits.max_sequence_tokens));
        let trouble = [Trouble::Deadly(position), Trouble::Broken(position), Trouble::Refused];
        let troubled = random.random_bool(self.troubled);
        let trouble = trouble[random.random_range(0..trouble.len())];
        let repeats = if random.random_bool(self.repetitive) { REPEATS } else { 0 };
        let biases = if random.random_bool(0.6) { 0 } else { random.random_range(0..120) };
        Sampling {
            logit_bias: vec![LogitBias { token: vocab as u32 - 1, bias: 1.0 }; biases],
            top_n: if random.random_bool(0.7) { 0 } else { random.random_range(0..=vocab.min(12) as u32) },
            ..sampling(if troubled { trouble.seed() } else { repeats + random.random_range(0..3) })
        }
    }

    fn prompt(&self, random: &mut StdRng) -> Vec<u32> {
        let mut prompt = self.beginning(random);
        let longest = random.random_range(1..=self.limits.max_sequence_tokens / 2);
        for _ in 0..random.random_range(1..=longest) {
            prompt.push(random.random_range(0..self.limits.vocab_size as u32));
        }
        prompt
    }

    /// The beginning of an earlier prompt. Often it is the whole prompt, like in the next turn of a
    /// conversation.
    fn beginning(&self, random: &mut StdRng) -> Vec<u32> {
        if self.known_prompts.is_empty() || !random.random_bool(self.reuse) {
            return Vec::new();
        }
        let like = &self.known_prompts[random.random_range(0..self.known_prompts.len())];
        let common = if random.random_bool(0.5) { like.len() } else { random.random_range(0..=like.len()) };
        // A conversation that would fill the context is cut.
        like[..common.min(self.limits.max_sequence_tokens / 2)].to_vec()
    }

    /// Adds a prompt that later prompts may begin with.
    pub(super) fn remember(&mut self, random: &mut StdRng, tokens: Vec<u32>) {
        if self.known_prompts.len() == MAX_KNOWN_PROMPTS {
            self.known_prompts.swap_remove(random.random_range(0..MAX_KNOWN_PROMPTS));
        }
        self.known_prompts.push(tokens);
    }
}
