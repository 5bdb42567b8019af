//! The scheduler against a pretend shard: single cases, malformed answers, and a seeded simulation of traffic.

mod cases;
mod constrained;
mod line;
mod malformed;
mod pair;
mod prefix;
pub(crate) mod pretend;
mod recovery;
mod simulation;

use std::sync::Arc;

use millrace_proto::Sampling;

use super::Limits;
use crate::scheduler::{News, Output, Priority, Request};

const LIMITS: Limits = Limits {
    max_sequence_tokens: 1000,
    max_step_tokens: 32,
    max_sequences: 4,
    block_size: 16,
    num_blocks: 16,
    vocab_size: 100,
};

/// The new token that has come back.
fn token(output: &Output) -> u32 {
    match &output.news {
        News::Token(sampled) => sampled.token,
        _ => panic!("no token: {output:?}"),
    }
}

fn request(prompt: usize, max_new_tokens: u32) -> Request {
    Request {
        prompt: (0..prompt as u32).map(|i| (i * 7 + prompt as u32) % 100).collect(),
        max_new_tokens,
        stop_tokens: Arc::default(),
        sampling: Sampling::default(),
        priority: Priority::default(),
        cache_salt: None,
        mask: None,
        prompt_logprobs: None,
        pooling: None,
    }
}
