//! Bodies of OpenAI's responses.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use utoipa::ToSchema;

use crate::service::{Answer, FinishReason};

/// What all responses to one request have in common.
#[derive(Debug, Clone)]
pub(super) struct Header {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
}

/// Names the build, so that clients can tell when answers may change.
pub(super) const FINGERPRINT: &str = concat!(env!("CARGO_PKG_VERSION"), "-native");

impl Header {
    pub(super) fn new(prefix: &str, model: String) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        Header { id: format!("{prefix}-{:032x}", rand::random::<u128>()), created, model }
    }
}

#[derive(Debug, Default, Clone, Copy, Serialize, ToSchema)]
pub(super) struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptTokensDetails,
}

#[derive(Debug, Default, Clone, Copy, Serialize, ToSchema)]
struct PromptTokensDetails {
    cached_tokens: usize,
}

impl Usage {
    /// `cached_tokens` of the prompt's did not have to be computed.
    pub(super) fn new(prompt_tokens: usize, cached_tokens: usize, completion_tokens: usize) -> Self {
        Usage {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptTokensDetails { cached_tokens },
        }
    }

    /// Of several answers to one prompt, which counts once, as it was computed for the first of them.
    pub(super) fn of(prompt_tokens: usize, answers: &[Answer]) -> Self {
        let completion = answers.iter().map(|answer| answer.finished.generated_tokens as usize).sum();
        let cached = answers.first().map_or(0, |answer| answer.finished.cached_tokens);
        Usage::new(prompt_tokens, cached, completion)
    }

    pub(super) fn add(&mut self, other: Usage) {
        *self = Usage::new(
            self.prompt_tokens + other.prompt_tokens,
            self.prompt_tokens_details.cached_tokens + other.prompt_tokens_details.cached_tokens,
            self.completion_tokens + other.completion_tokens,
        );
    }

    /// Cached tokens of all prompts.
    pub(super) fn cached_tokens(&self) -> usize {
        self.prompt_tokens_details.cached_tokens
    }
}

pub(super) fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Length => "length",
        FinishReason::EosToken | FinishReason::StopSequence => "stop",
    }
}
