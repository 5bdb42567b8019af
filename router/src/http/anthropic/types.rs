//! The object that `/v1/messages` returns.

use base64::Engine;
use base64::prelude::BASE64_STANDARD as BASE64;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::chat::AnswerBlock;
use crate::http::answer_pipeline::AnswerProgress;
use crate::service::{FinishReason, Finished, TokenCounts};

/// An answer, as far as it is known.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct AnthropicMessage {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    model: String,
    pub(super) content: Vec<Value>,
    pub(super) stop_reason: Option<&'static str>,
    pub(super) stop_sequence: Option<String>,
    pub(super) usage: AnthropicUsage,
}

/// The tokens of a request. Tokens from the cache do not count as input tokens.
#[derive(Debug, Clone, Copy, Default, Serialize, ToSchema)]
pub(super) struct AnthropicUsage {
    input_tokens: usize,
    cache_creation_input_tokens: usize,
    cache_read_input_tokens: usize,
    pub(super) output_tokens: u32,
}

impl AnthropicMessage {
    /// A message before its first token.
    pub(super) fn new(model: String) -> Self {
        AnthropicMessage {
            id: format!("msg_{:032x}", rand::random::<u128>()),
            kind: "message",
            role: "assistant",
            model,
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage: AnthropicUsage::default(),
        }
    }
}

impl AnthropicUsage {
    pub(super) fn new(counts: TokenCounts) -> Self {
        AnthropicUsage {
            input_tokens: counts.prompt.saturating_sub(counts.cached),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: counts.cached,
            output_tokens: counts.generated,
        }
    }
}

/// Returns a block of a whole answer as content. A call whose arguments were cut off is left out:
/// the client must not run it.
pub(super) fn content(block: &AnswerBlock) -> Option<Value> {
    match block {
        AnswerBlock::Reasoning(text) => {
            Some(json!({"type": "thinking", "thinking": text, "signature": signature(text)}))
        }
        AnswerBlock::Text(text) => Some(json!({"type": "text", "text": text})),
        AnswerBlock::Call { id, name, arguments } => {
            let input = serde_json::from_str(arguments).ok().filter(Value::is_object)?;
            Some(json!({"type": "tool_use", "id": id, "name": name, "input": input}))
        }
    }
}

/// Returns a block that begins in a stream, still empty.
pub(super) fn empty_content(block: &AnswerBlock) -> Value {
    match block {
        AnswerBlock::Reasoning(_) => json!({"type": "thinking", "thinking": "", "signature": ""}),
        AnswerBlock::Text(_) => json!({"type": "text", "text": ""}),
        AnswerBlock::Call { id, name, .. } => {
            json!({"type": "tool_use", "id": id, "name": name, "input": {}})
        }
    }
}

/// Returns the signature of a text of thinking. Clients expect one and send it back with the text.
/// Nothing checks it, and blocks without a signature are accepted, too.
pub(super) fn signature(thinking: &str) -> String {
    BASE64.encode(blake3::hash(thinking.as_bytes()).as_bytes())
}

/// Returns the reason why an answer ended, and the stop string that ended it.
pub(super) fn stop_reason(finished: &Finished, answer: &AnswerProgress) -> (&'static str, Option<String>) {
    match finished.reason {
        reason if answer.ended_with_calls(reason) => ("tool_use", None),
        FinishReason::Length => ("max_tokens", None),
        FinishReason::EosToken => ("end_turn", None),
        FinishReason::StopSequence => ("stop_sequence", finished.stop.clone()),
    }
}
