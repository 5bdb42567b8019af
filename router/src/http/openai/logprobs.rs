//! Log-probabilities, in the forms of chats and of completions.
//!
//! There is one entry for each token that counts in `completion_tokens`, including the token that
//! ends the answer.

use std::collections::BTreeMap;

use millrace_text::Tokenizer;
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::service::{PromptToken, TextEvent};

/// Log-probabilities in the form of chats.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ChatLogprobs {
    pub(super) content: Vec<ChatTokenLogprob>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatToken)]
pub(super) struct ChatTokenLogprob {
    #[serde(flatten)]
    token: TokenLogprob,
    top_logprobs: Vec<TokenLogprob>,
}

#[derive(Debug, Serialize, ToSchema)]
struct TokenLogprob {
    token: String,
    logprob: f32,
    /// The exact bytes of the token, which may be a part of a character.
    bytes: Vec<u8>,
}

/// Log-probabilities in the form of completions: lists of the same length. The first token of a
/// prompt follows no other token and has no log-probability.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(super) struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Option<Vec<Option<Map<String, Value>>>>,
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
        let token = |event: &TextEvent| ChatTokenLogprob {
            token: entry(event.token.id, event.token.logprob),
            top_logprobs: event.top.iter().map(|top| entry(top.id, top.logprob)).collect(),
        };
        ChatLogprobs { content: events.iter().map(token).collect() }
    }
}

impl CompletionLogprobs {
    /// The log-probabilities of a prompt that begins the text. `tokens` are those after the first
    /// token of `prompt`.
    pub(super) fn of_prompt(
        tokenizer: &Tokenizer,
        prompt: &[u32],
        tokens: &[PromptToken],
        top_n: u32,
    ) -> Self {
        let mut logprobs = CompletionLogprobs::default();
        let mut detokenizer = tokenizer.detokenizer(true, false);
        let mut offset = 0;
        for (&id, token) in prompt.iter().zip(with_first_absent(tokens)) {
            logprobs.tokens.push(tokenizer.token_text(id));
            logprobs.token_logprobs.push(token.map(|token| token.logprob));
            logprobs.text_offset.push(offset);
            if top_n > 0 {
                let text = |&(id, logprob): &(u32, f32)| (tokenizer.token_text(id), logprob.into());
                let top = token.map(|token| token.top.iter().take(top_n as usize).map(text).collect());
                logprobs.top_logprobs.get_or_insert_default().push(top);
            }
            offset += detokenizer.push(id).chars().count();
        }
        logprobs
    }

    /// Adds generated tokens. `offset` is the number of characters before the first of them.
    pub(super) fn add(&mut self, tokenizer: &Tokenizer, events: &[TextEvent], mut offset: usize) {
        for event in events {
            self.tokens.push(tokenizer.token_text(event.token.id));
            self.token_logprobs.push(Some(event.token.logprob));
            self.text_offset.push(offset);
            if !event.top.is_empty() {
                let top = event.top.iter().map(|top| (top.text.clone(), top.logprob.into())).collect();
                self.top_logprobs.get_or_insert_default().push(Some(top));
            }
            offset += event.text.chars().count();
        }
    }
}

/// Log-probabilities of a prompt in vLLM's form: for each token, the token itself and the most
/// likely ones by their ids, and nothing for the first token.
pub(super) type PromptLogprobs = Vec<Option<BTreeMap<u32, RankedLogprob>>>;

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RankedLogprob {
    logprob: f32,
    /// 1 is the most likely token.
    rank: u32,
    decoded_token: String,
}

/// Returns the log-probabilities of a prompt. `tokens` are those after its first token.
pub(super) fn prompt_logprobs(
    tokenizer: &Tokenizer,
    prompt: &[u32],
    tokens: &[PromptToken],
    top_n: u32,
) -> PromptLogprobs {
    let entry =
        |id, logprob, rank| (id, RankedLogprob { logprob, rank, decoded_token: tokenizer.token_text(id) });
    let ranked = |(&id, token): (&u32, &PromptToken)| {
        let top = token.top.iter().take(top_n as usize).zip(1..);
        let top = top.map(|(&(id, logprob), rank)| entry(id, logprob, rank));
        // The token itself is added last, since equally likely tokens may have its rank.
        top.chain([entry(id, token.logprob, token.rank)]).collect()
    };
    prompt.iter().zip(with_first_absent(tokens)).map(|(id, token)| Some(ranked((id, token?)))).collect()
}

/// Returns one entry for each token of a prompt. The first token has none, since it follows no
/// other.
fn with_first_absent(tokens: &[PromptToken]) -> impl Iterator<Item = Option<&PromptToken>> {
    [None].into_iter().chain(tokens.iter().map(Some))
}
