//! News from an engine: its state, and the events of a request.

use std::sync::Arc;
use std::time::Duration;

use millrace_proto::Ready;
use millrace_scheduler::{DraftCounts, Finish};

/// A generated token.
#[derive(Debug, Clone, PartialEq)]
pub struct GeneratedToken {
    /// Token id.
    pub id: u32,
    /// Log-probability of the token.
    pub logprob: f32,
    /// The most likely tokens at this position with their log-probabilities, as many as the request
    /// asked for.
    pub top: Vec<(u32, f32)>,
    /// The drafts that were verified to get this token and the ones that follow it.
    pub drafts: DraftCounts,
}

/// The score of a token of the prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptToken {
    /// Log-probability of the token.
    pub logprob: f32,
    /// Rank of the token among all tokens by probability, from 1.
    pub rank: u32,
    /// The most likely tokens at this position with their log-probabilities, as many as the request
    /// asked for.
    pub top: Vec<(u32, f32)>,
}

/// An event of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum GenerationEvent {
    /// The request left the queue.
    Started(GenerationStart),
    /// The scores of the next tokens of the prompt, from the second token on, if the request asked
    /// for scores. With a finish reason it is the last event of a request that generates nothing.
    Prompt(Vec<PromptToken>, Option<Finish>),
    /// A token; the last token has the finish reason.
    Token(GeneratedToken, Option<Finish>),
    /// The vector of the prompt, `[hidden]`, if the request asked for it. It is the last event.
    Vector(Vec<f32>),
    /// The request has failed. It is the last event.
    Failed(GenerationFailure),
}

/// The start of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GenerationStart {
    /// Time in the queue.
    pub queued: Duration,
    /// Number of tokens of the prompt whose keys and values were found in the prefix cache.
    pub cached_tokens: usize,
}

/// Why a request failed. The texts are meant for clients.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GenerationFailure {
    /// The request never started. Another server, or this one later, may run it.
    #[error("{0}")]
    NotStarted(String),
    /// The engine failed or ended while the request was running.
    #[error("{0}")]
    Broken(String),
    /// The constraint could not compute the next mask.
    #[error("{0}")]
    Constraint(String),
    /// The model cannot run this request, whatever else is running.
    #[error("{0}")]
    Refused(String),
}

/// The state of the engine.
#[derive(Debug, Clone, PartialEq)]
pub enum EngineState {
    /// The shards are starting.
    Loading {
        /// The phase of loading, as text.
        phase: String,
        /// Bytes read so far.
        done: u64,
        /// Bytes to read.
        total: u64,
    },
    /// Requests are served.
    Ready(Arc<Ready>),
    /// The shards were lost and new ones are starting. Requests are accepted and wait; the model is
    /// the same.
    Recovering(Arc<Ready>),
    /// Running requests continue to their end, and no new ones are accepted.
    Draining,
    /// The engine has ended; the text gives the reason.
    Failed(String),
}
