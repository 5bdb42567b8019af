//! The events of a streamed message, in Anthropic's order.

use serde_json::{Value, json};

use super::error::MessagesError;
use super::messages::{Message, content, stop_reason};
use crate::http::blocks::{Block, Blocks, Step};
use crate::http::sse::{self, Events};
use crate::service::{ServiceError, TextEvent};

pub(super) struct Writer {
    message: Message,
    blocks: Blocks,
    /// The open block's place in the content, and whether it is a call.
    index: usize,
    is_call: bool,
}

impl Writer {
    pub(super) fn new(message: Message, blocks: Blocks) -> Self {
        Writer { message, blocks, index: 0, is_call: false }
    }

    fn step(&mut self, step: Step, to: &mut Events) {
        let (kind, mut fields) = match step {
            Step::Begin(block) => {
                self.is_call = matches!(block, Block::Call { .. });
                ("content_block_start", json!({"content_block": content(&block)}))
            }
            Step::More(json) if self.is_call => {
                let delta = json!({"type": "input_json_delta", "partial_json": json});
                ("content_block_delta", json!({"delta": delta}))
            }
            Step::More(text) => {
                ("content_block_delta", json!({"delta": {"type": "text_delta", "text": text}}))
            }
            Step::End(_) => ("content_block_stop", json!({})),
        };
        fields["index"] = self.index.into();
        named(kind, fields, to);
        if kind == "content_block_stop" {
            self.index += 1;
        }
    }
}

fn named(kind: &str, mut fields: Value, to: &mut Events) {
    fields["type"] = kind.into();
    to.named(kind, &fields);
}

impl sse::Write for Writer {
    fn begin(&mut self, to: &mut Events) {
        named("message_start", json!({"message": self.message}), to);
    }

    fn event(&mut self, _: usize, event: TextEvent, to: &mut Events) {
        for step in self.blocks.push(&event) {
            self.step(step, to);
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
        to.named("error", &MessagesError::from(error).body());
    }

    fn silence(&mut self, to: &mut Events) {
        named("ping", json!({}), to);
    }

    fn end(&mut self, _: &mut Events) {}
}
