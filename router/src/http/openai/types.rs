//! Parts that several of OpenAI's responses have.

use std::iter::Sum;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use utoipa::ToSchema;

use crate::service::{Answer, FinishReason};

/// The fields that identify a response. All chunks of a stream repeat them.
#[derive(Debug, Clone)]
pub(super) struct ResponseHeader {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
}

/// Names the build, so that clients can tell when answers may change.
pub(super) const FINGERPRINT: &str = concat!(env!("CARGO_PKG_VERSION"), "-native");

impl ResponseHeader {
    /// A header with a new id that begins with `prefix`.
    pub(super) fn new(prefix: &str, model: String) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        ResponseHeader { id: format!("{prefix}{:032x}", rand::random::<u128>()), created, model }
    }
}

/// The tokens that a request has used.
#[derive(Debug, Default, Clone, Copy, Serialize, ToSchema)]
#[schema(as = Usage)]
pub(super) struct TokenUsage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptTokensDetails,
    /// Set for models whose reasoning is separated from the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_tokens_details: Option<CompletionTokensDetails>,
}

#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
struct CompletionTokensDetails {
    reasoning_tokens: usize,
}

#[derive(Debug, Default, Clone, Copy, Serialize, ToSchema)]
struct PromptTokensDetails {
    cached_tokens: usize,
}

impl TokenUsage {
    /// `cached_tokens` is the part of the prompt that did not have to be computed.
    pub(super) fn new(prompt_tokens: usize, cached_tokens: usize, completion_tokens: usize) -> Self {
        TokenUsage {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptTokensDetails { cached_tokens },
            completion_tokens_details: None,
        }
    }

    /// Adds the number of the completion's tokens that are reasoning, if it is separated.
    pub(super) fn with_reasoning(mut self, tokens: Option<usize>) -> Self {
        self.completion_tokens_details =
            tokens.map(|reasoning_tokens| CompletionTokensDetails { reasoning_tokens });
        self
    }

    /// The usage of several answers to one prompt. The prompt counts once, since it is computed for
    /// the first answer.
    pub(super) fn of_answers(prompt_tokens: usize, answers: &[Answer]) -> Self {
        let completion = answers.iter().map(|answer| answer.finished.generated_tokens as usize).sum();
        let cached = answers.first().map_or(0, |answer| answer.finished.cached_tokens);
        TokenUsage::new(prompt_tokens, cached, completion)
    }

    /// Cached tokens of all prompts.
    pub(super) fn cached_tokens(&self) -> usize {
        self.prompt_tokens_details.cached_tokens
    }
}

impl Sum for TokenUsage {
    fn sum<I: Iterator<Item = TokenUsage>>(usages: I) -> Self {
        usages.fold(TokenUsage::default(), |sum, usage| {
            TokenUsage::new(
                sum.prompt_tokens + usage.prompt_tokens,
                sum.cached_tokens() + usage.cached_tokens(),
                sum.completion_tokens + usage.completion_tokens,
            )
        })
    }
}

/// OpenAI's word for the reason why an answer ended.
pub(super) fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Length => "length",
        FinishReason::EosToken | FinishReason::StopSequence => "stop",
    }
}
