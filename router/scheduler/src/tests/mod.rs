//! Tests of the scheduler with a pretend shard: single cases, malformed answers, and a seeded
//! simulation of traffic.

mod adapter_places;
mod admission_example;
mod cases;
mod constrained;
mod disk;
mod earlier_answers;
mod fairness;
mod frames;
mod latency;
mod line;
mod malformed;
mod model_drafts;
mod moves;
mod pair;
mod prefix;
mod pretend_speed;
mod priority;
mod prompt_handling;
mod quarantine;
mod recovery;
mod rows;
mod schedule;
mod sharing;
mod simulation;
mod state_checkpoints;
mod tenant_time;

use std::sync::Arc;

use millrace_proto::PromptHandling;

use crate::test_support::sampling;
use crate::{Priority, Request, SchedulerLimits, SequenceEvent, SequenceOutput, Tenant};

const LIMITS: SchedulerLimits = SchedulerLimits {
    max_sequence_tokens: 1000,
    max_step_tokens: 32,
    max_sequences: 4,
    block_size: 16,
    num_blocks: 16,
    vocab_size: 100,
    max_vector_len: 8,
    max_frame_bytes: millrace_proto::MAX_FRAME,
    prompt_handling: PromptHandling::Shared,
    state_checkpoints: 0,
    max_drafts: 0,
    has_draft_model: false,
    adapters: 0,
    max_loaded_adapters: 0,
};

/// The token of an output.
fn token(output: &SequenceOutput) -> u32 {
    match &output.event {
        SequenceEvent::Token(sampled) => sampled.token,
        _ => panic!("no token: {output:?}"),
    }
}

fn request(prompt: usize, max_new_tokens: u32) -> Request {
    Request {
        prompt: (0..prompt as u32).map(|i| (i * 7 + prompt as u32) % 100).collect(),
        max_new_tokens,
        stop_tokens: Arc::default(),
        sampling: sampling(0),
        priority: Priority::default(),
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
