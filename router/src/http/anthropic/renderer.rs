//! An answer as a message, or as Anthropic's events in their order.

use axum::Json;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::error::{MessagesError, request_id};
use super::types::{AnthropicMessage, AnthropicUsage, content, empty_content, signature, stop_reason};
use crate::chat::{AnswerBlock, AnswerEvent, BlockEvent, BlockReader};
use crate::http::answer_pipeline::{AnswerProgress, CompleteAnswer, Renderer};
use crate::http::sse::Events;
use crate::service::{ServiceError, TokenCounts};

/// The kind of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockKind {
    Thinking,
    Text,
    Call,
}

/// Writes one message.
pub(super) struct MessageRenderer {
    message: AnthropicMessage,
    blocks: BlockReader,
    /// The place of the open block in the content.
    index: usize,
    /// The kind of the open block.
    kind: BlockKind,
    /// The id of the request, which an error in the stream repeats.
    request_id: Option<String>,
}

impl MessageRenderer {
    pub(super) fn new(message: AnthropicMessage, blocks: BlockReader) -> Self {
        MessageRenderer { message, blocks, index: 0, kind: BlockKind::Text, request_id: request_id() }
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

impl Renderer for MessageRenderer {
    fn body(mut self, answers: Vec<CompleteAnswer>, counts: TokenCounts) -> Response {
        for mut answer in answers {
            let blocks = self.blocks.read_all(answer.events());
            self.message.content = blocks.iter().filter_map(content).collect();
            let (reason, sequence) = stop_reason(&answer.answer.finished, &answer.progress);
            (self.message.stop_reason, self.message.stop_sequence) = (Some(reason), sequence);
        }
        self.message.usage = AnthropicUsage::new(counts);
        Json(self.message).into_response()
    }

    fn start(&mut self, answers: &[AnswerProgress], to: &mut Events) {
        if let [answer, ..] = answers {
            self.message.usage = AnthropicUsage::new(answer.counts);
        }
        named("message_start", json!({"message": self.message}), to);
    }

    fn event(&mut self, answer: &AnswerProgress, event: AnswerEvent<'_>, to: &mut Events) {
        let finished = event.generated.finished.as_ref();
        for block_event in self.blocks.push(event) {
            self.block_event(block_event, to);
        }
        let Some(finished) = finished else { return };
        let (reason, sequence) = stop_reason(finished, answer);
        let mut usage = self.message.usage;
        usage.output_tokens = finished.generated_tokens;
        let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
        named("message_delta", json!({"delta": delta, "usage": usage}), to);
        named("message_stop", json!({}), to);
    }

    fn keep_alive(&mut self, to: &mut Events) {
        named("ping", json!({}), to);
    }

    fn error(&mut self, error: ServiceError, to: &mut Events) {
        to.named("error", &MessagesError::from(error).into_envelope(self.request_id.take()));
    }
}
