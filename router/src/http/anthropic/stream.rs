//! The events of a streamed message, in Anthropic's order.

use serde_json::{Value, json};

use super::error::{MessagesError, request_id};
use super::types::{AnthropicMessage, empty_content, signature, stop_reason};
use crate::chat::{AnswerBlock, BlockEvent, BlockReader};
use crate::http::sse::{self, Events};
use crate::service::{ServiceError, TextEvent};

/// The kind of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockKind {
    Thinking,
    Text,
    Call,
}

/// Writes the events of one message.
pub(super) struct MessageStreamWriter {
    message: AnthropicMessage,
    blocks: BlockReader,
    /// The place of the open block in the content.
    index: usize,
    /// The kind of the open block.
    kind: BlockKind,
    /// The id of the request, which an error in the stream repeats.
    request_id: Option<String>,
}

impl MessageStreamWriter {
    pub(super) fn new(message: AnthropicMessage, blocks: BlockReader) -> Self {
        MessageStreamWriter { message, blocks, index: 0, kind: BlockKind::Text, request_id: request_id() }
    }

    fn block_event(&mut self, event: BlockEvent, to: &mut Events) {
        let (kind, mut fields) = match event {
            BlockEvent::Begin(block) => {
                self.kind = match block {
                    AnswerBlock::Reasoning(_) => BlockKind::Thinking,
                    AnswerBlock::Text(_) => BlockKind::Text,
                    AnswerBlock::Call { .. } => BlockKind::Call,
                };
                ("content_block_start", json!({"content_block": empty_content(&block)}))
            }
            BlockEvent::Append(more) => {
                let delta = match self.kind {
                    BlockKind::Thinking => json!({"type": "thinking_delta", "thinking": more}),
                    BlockKind::Text => json!({"type": "text_delta", "text": more}),
                    BlockKind::Call => json!({"type": "input_json_delta", "partial_json": more}),
                };
                ("content_block_delta", json!({"delta": delta}))
            }
            BlockEvent::End(block) => {
                if let AnswerBlock::Reasoning(text) = &block {
                    let delta = json!({"type": "signature_delta", "signature": signature(text)});
                    named("content_block_delta", json!({"delta": delta, "index": self.index}), to);
                }
                ("content_block_stop", json!({}))
            }
        };
        fields["index"] = self.index.into();
        named(kind, fields, to);
        if kind == "content_block_stop" {
            self.index += 1;
        }
    }
}

/// Writes an event whose name is also its `type`.
fn named(kind: &str, mut fields: Value, to: &mut Events) {
    fields["type"] = kind.into();
    to.named(kind, &fields);
}

impl sse::Write for MessageStreamWriter {
    fn begin(&mut self, to: &mut Events) {
        named("message_start", json!({"message": self.message}), to);
    }

    fn event(&mut self, _: usize, event: TextEvent, to: &mut Events) {
        for block_event in self.blocks.push(&event) {
            self.block_event(block_event, to);
        }
        let Some(finished) = event.finished else { return };
        let (reason, sequence) = stop_reason(&finished, &self.blocks);
        let mut usage = self.message.usage;
        usage.output_tokens = finished.generated_tokens;
        let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
        named("message_delta", json!({"delta": delta, "usage": usage}), to);
        named("message_stop", json!({}), to);
    }

    fn error(&mut self, error: ServiceError, to: &mut Events) {
        to.named("error", &MessagesError::from(error).into_envelope(self.request_id.take()));
    }

    fn silence(&mut self, to: &mut Events) {
        named("ping", json!({}), to);
    }

    fn end(&mut self, _: &mut Events) {}
}
