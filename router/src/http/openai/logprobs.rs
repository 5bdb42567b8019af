//! Log-probabilities, in the form of chat and in that of completions.

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::service::{FinishReason, TextEvent};
use crate::text::Tokenizer;

/// Chat's form.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ChatLogprobs {
    pub(super) content: Vec<ChatToken>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ChatToken {
    #[serde(flatten)]
    token: TokenLogprob,
    top_logprobs: Vec<TokenLogprob>,
}

#[derive(Debug, Serialize, ToSchema)]
struct TokenLogprob {
    token: String,
    logprob: f32,
    /// A token may be half a character; its bytes are always exact.
    bytes: Vec<u8>,
}

/// Completions' form: lists of the same length.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(super) struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f32>,
    top_logprobs: Option<Vec<Map<String, Value>>>,
    /// Characters of the text before each token.
    text_offset: Vec<usize>,
}

impl ChatLogprobs {
    pub(super) fn new(tokenizer: &Tokenizer, events: &[TextEvent]) -> Self {
        let entry = |id: u32, logprob: f32| TokenLogprob {
            token: tokenizer.token_text(id),
            logprob,
            bytes: tokenizer.token_bytes(id).to_vec(),
        };
        let token = |event: &TextEvent| ChatToken {
            token: entry(event.token.id, event.token.logprob),
            top_logprobs: event.top.iter().map(|top| entry(top.id, top.logprob)).collect(),
        };
        ChatLogprobs { content: events.iter().filter(|event| is_text(event)).map(token).collect() }
    }
}

impl CompletionLogprobs {
    /// `offset`: characters of the text before the first of these tokens.
    pub(super) fn new(tokenizer: &Tokenizer, events: &[TextEvent], mut offset: usize) -> Self {
        let mut logprobs = CompletionLogprobs::default();
        for event in events.iter().filter(|event| is_text(event)) {
            logprobs.tokens.push(tokenizer.token_text(event.token.id));
            logprobs.token_logprobs.push(event.token.logprob);
            logprobs.text_offset.push(offset);
            if !event.top.is_empty() {
                let top = event.top.iter().map(|top| (top.text.clone(), top.logprob.into())).collect();
                logprobs.top_logprobs.get_or_insert_default().push(top);
            }
            offset += event.text.chars().count();
        }
        logprobs
    }
}

/// The token that ends an answer is not part of it.
fn is_text(event: &TextEvent) -> bool {
    let ends = event.finished.as_ref().is_some_and(|finished| finished.reason != FinishReason::Length);
    !(ends && event.token.special)
}
