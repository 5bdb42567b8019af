//! Answers: tokens with their text, and complete answers.

use millrace_scheduler::DraftCounts;

use crate::engine::PromptToken;
use crate::metrics::Timings;

/// A token with its text.
#[derive(Debug, Clone, PartialEq)]
pub struct TextToken {
    /// Token id.
    pub id: u32,
    /// Text of the token.
    pub text: String,
    /// Log-probability of the token.
    pub logprob: f32,
    /// Whether it is a special token, which is not part of the answer's text.
    pub special: bool,
}

/// A generated token and the text that it adds to the answer.
#[derive(Debug, Clone, PartialEq)]
pub struct TextEvent {
    /// With the first token, the scores of the prompt's tokens from the second one on, if the
    /// request asked for them.
    pub prompt: Vec<PromptToken>,
    /// The token. Its text is the text that it adds, or its own text if it is special.
    pub token: TextToken,
    /// The most likely tokens at this position, each with its own text.
    pub top: Vec<TextToken>,
    /// The text that can be shown now. Shown text is never taken back.
    pub text: String,
    /// Set with the last token.
    pub finished: Option<Finished>,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// The maximum number of tokens was generated.
    Length,
    /// The model generated an end token.
    EosToken,
    /// A stop string was found.
    StopSequence,
}

/// The end of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// Why the answer ended.
    pub reason: FinishReason,
    /// The stop string that ended it.
    pub stop: Option<String>,
    /// The complete text.
    pub text: String,
    /// Number of generated tokens, including the one that ended the answer.
    pub generated_tokens: u32,
    /// Number of tokens of the prompt that were found in the prefix cache.
    pub cached_tokens: usize,
    /// Guesses of generated tokens.
    pub drafts: DraftCounts,
    /// Time of the request by phase.
    pub timings: Timings,
}

/// A complete answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The sampling seed; `None` if the request was greedy.
    pub seed: Option<u64>,
    /// Scores of the prompt's tokens from the second one on, if the request asked for them.
    pub prompt: Vec<PromptToken>,
    /// The tokens of the answer.
    pub tokens: Vec<TextEvent>,
    /// The vector of the prompt, `[hidden]`, if the request asked for it.
    pub vector: Vec<f32>,
    /// The text of the answer, and how it ended.
    pub finished: Finished,
}

impl Answer {
    /// The mean log-probability of the tokens, by which answers to one prompt are compared.
    pub fn mean_logprob(&self) -> f32 {
        let sum: f32 = self.tokens.iter().map(|event| event.token.logprob).sum();
        sum / self.tokens.len().max(1) as f32
    }
}
