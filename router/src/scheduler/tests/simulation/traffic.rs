//! What is asked for: lengths, priorities, salts, and prompts that begin like others.

use std::sync::Arc;

use millrace_proto::{LogitBias, Sampling};
use rand::Rng;
use rand::rngs::StdRng;

use crate::scheduler::tests::pretend::{Trouble, pretend_mask};
use crate::scheduler::tests::sampling;
use crate::scheduler::{Limits, Pooling, Priority, Request};

/// Prompts to begin like, at most.
const FAMILIAR: usize = 8;

/// Makes requests.
pub(super) struct Traffic {
    limits: Limits,
    salts: Vec<Option<Arc<str>>>,
    /// Tokens that a prompt may begin with.
    familiar: Vec<Vec<u32>>,
    familiarity: f64,
    priorities: Vec<Priority>,
    /// The share of constrained requests.
    constrained: f64,
    /// The share of requests that want their prompts scored.
    scored: f64,
    /// The share of requests that want a vector of their prompts.
    pooled: f64,
    /// The share of requests with which something goes wrong.
    troubled: f64,
}

impl Traffic {
    pub(super) fn new(random: &mut StdRng, limits: Limits) -> Self {
        let salts = [None, Some("a".into()), Some("b".into())];
        let priorities = [Priority::Normal, Priority::High, Priority::Low];
        Traffic {
            limits,
            salts: salts[..random.random_range(1..=3)].to_vec(),
            familiar: Vec::new(),
            familiarity: random.random_range(0.0..1.0),
            priorities: priorities[..random.random_range(1..=3)].to_vec(),
            constrained: if random.random_bool(0.5) { 0.0 } else { random.random_range(0.0..1.0) },
            pooled: if random.random_bool(0.7) { 0.0 } else { random.random_range(0.0..0.6) },
            troubled: if random.random_bool(0.6) { 0.0 } else { random.random_range(0.0..0.1) },
            scored: if random.random_bool(0.5) { 0.0 } else { random.random_range(0.0..0.6) },
        }
    }

    pub(super) fn request(&mut self, random: &mut StdRng) -> Request {
        let limits = self.limits;
        let prompt = match self.familiar.last() {
            // The same question at the same time.
            Some(last) if random.random_bool(self.familiarity / 4.0) => last.clone(),
            _ => self.prompt(random),
        };
        self.remember(random, prompt.clone());
        let scored = random.random_bool(self.scored);
        let pooling = [Pooling::Last, Pooling::Mean][random.random_range(0..2)];
        let pooling = random.random_bool(self.pooled).then_some(pooling);
        let stops = random.random_range(0..3usize).min(limits.vocab_size / 8);
        Request {
            prompt,
            max_new_tokens: random
                .random_range(u32::from(!scored)..=(limits.max_sequence_tokens as u32 / 2).min(80)),
            stop_tokens: (0..stops as u32).collect(),
            sampling: self.sampling(random),
            priority: self.priorities[random.random_range(0..self.priorities.len())],
            mask: random.random_bool(self.constrained).then(|| pretend_mask(&[], limits.vocab_size)),
            pooling,
            prompt_logprobs: scored.then(|| random.random_range(0..=limits.vocab_size.min(12) as u32)),
            cache_salt: self.salts[random.random_range(0..self.salts.len())].clone(),
        }
    }

    /// Parameters that make messages long, and seeds that mean trouble.
    fn sampling(&self, random: &mut StdRng) -> Sampling {
        let (vocab, position) =
            (self.limits.vocab_size, random.random_range(0..self.limits.max_sequence_tokens));
        let trouble = [Trouble::Deadly(position), Trouble::Broken(position), Trouble::Refused];
        let troubled = random.random_bool(self.troubled);
        let trouble = trouble[random.random_range(0..trouble.len())];
        let biases = if random.random_bool(0.6) { 0 } else { random.random_range(0..120) };
        Sampling {
            logit_bias: vec![LogitBias { token: vocab as u32 - 1, bias: 1.0 }; biases],
            top_n: if random.random_bool(0.7) { 0 } else { random.random_range(0..=vocab.min(12) as u32) },
            ..sampling(if troubled { trouble.seed() } else { random.random_range(0..3) })
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

    /// Tokens that other prompts begin with, too. Often all of one: the next turn of a conversation.
    fn beginning(&self, random: &mut StdRng) -> Vec<u32> {
        if self.familiar.is_empty() || !random.random_bool(self.familiarity) {
            return Vec::new();
        }
        let like = &self.familiar[random.random_range(0..self.familiar.len())];
        let common = if random.random_bool(0.5) { like.len() } else { random.random_range(0..=like.len()) };
        // A conversation that fills the model ends.
        like[..common.min(self.limits.max_sequence_tokens / 2)].to_vec()
    }

    /// Prompts may begin like this from now on.
    pub(super) fn remember(&mut self, random: &mut StdRng, tokens: Vec<u32>) {
        if self.familiar.len() == FAMILIAR {
            self.familiar.swap_remove(random.random_range(0..FAMILIAR));
        }
        self.familiar.push(tokens);
    }
}
