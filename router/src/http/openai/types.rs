//! Parts that several of OpenAI's responses have.

use std::time::{SystemTime, UNIX_EPOCH};

use millrace_scheduler::DraftCounts;
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::answer_pipeline::{AnswerProgress, total_counts};
use crate::service::{FinishReason, TokenCounts};

/// The fields that identify a response. All chunks of a stream repeat them.
#[derive(Debug, Clone)]
pub(super) struct ResponseHeader {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
}

/// Names the build, so that clients can tell when answers may change.
pub(super) const FINGERPRINT: &str = concat!(env!("CARGO_PKG_VERSION"), "-native");

/// The data of the event that ends a stream of chunks.
pub(super) const STREAM_END: &str = "[DONE]";

impl ResponseHeader {
    /// A header with a new id that begins with `prefix`.
    pub(super) fn new(prefix: &str, model: String) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        ResponseHeader { id: format!("{prefix}{:032x}", rand::random::<u128>()), created, model }
    }
}

/// The tokens that a request has used.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[schema(as = Usage)]
pub(super) struct TokenUsage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptTokensDetails,
    /// Set for models whose reasoning is separated from the answer, and if tokens were guessed.
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_tokens_details: Option<CompletionTokensDetails>,
}

#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
struct CompletionTokensDetails {
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_tokens: Option<usize>,
    /// Guesses of `--speculate` that were right; they are tokens of the completion.
    #[serde(skip_serializing_if = "Option::is_none")]
    accepted_prediction_tokens: Option<u32>,
    /// Guesses that were wrong; they are no tokens of the completion.
    #[serde(skip_serializing_if = "Option::is_none")]
    rejected_prediction_tokens: Option<u32>,
}

impl CompletionTokensDetails {
    /// Returns the details, if there are any.
    fn new(reasoning_tokens: Option<usize>, drafts: DraftCounts) -> Option<Self> {
        let DraftCounts { verified, accepted } = drafts;
        let if_guessed = |count: u32| (verified > 0).then_some(count);
        (reasoning_tokens.is_some() || verified > 0).then(|| CompletionTokensDetails {
            reasoning_tokens,
            accepted_prediction_tokens: if_guessed(accepted),
            rejected_prediction_tokens: if_guessed(verified.saturating_sub(accepted)),
        })
    }
}

#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
struct PromptTokensDetails {
    cached_tokens: usize,
}

impl TokenUsage {
    /// Returns the usage, with the number of the completion's tokens that are reasoning, if it is
    /// separated.
    pub(super) fn new(counts: TokenCounts, reasoning: Option<usize>) -> Self {
        TokenUsage {
            prompt_tokens: counts.prompt,
            completion_tokens: counts.generated as usize,
            total_tokens: counts.prompt + counts.generated as usize,
            prompt_tokens_details: PromptTokensDetails { cached_tokens: counts.cached },
            completion_tokens_details: CompletionTokensDetails::new(reasoning, counts.drafts),
        }
    }
}

/// The parts of a stream that a request asks for beside the text.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReportOptions {
    /// Whether a stream ends with a chunk that has the usage.
    pub(super) usage: bool,
    /// Whether each chunk of a stream has the usage so far.
    pub(super) continuous_usage: bool,
    /// Whether each token is reported even if it has no text: its id or its log-probability.
    pub(super) every_token: bool,
}

impl ReportOptions {
    /// Returns the usage of an answer for a chunk with one of its tokens.
    pub(super) fn chunk_usage(&self, answer: &AnswerProgress) -> Option<TokenUsage> {
        self.continuous_usage.then(|| answer_usage(answer))
    }

    /// Returns the usage for the chunk that ends a stream, if there is one.
    pub(super) fn total_usage(&self, answers: &[AnswerProgress]) -> Option<TokenUsage> {
        let reasoning = answers.iter().map(AnswerProgress::reasoning_tokens).sum();
        self.usage.then(|| TokenUsage::new(total_counts(answers), reasoning))
    }
}

/// Returns the usage of one answer so far.
pub(super) fn answer_usage(answer: &AnswerProgress) -> TokenUsage {
    TokenUsage::new(answer.counts, answer.reasoning_tokens())
}

/// OpenAI's word for the reason why an answer ended.
pub(super) fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Length => "length",
        FinishReason::EosToken | FinishReason::StopSequence => "stop",
    }
}
