//! The events of a streamed message, in Anthropic's order.

use serde_json::json;

use super::error::MessagesError;
use super::messages::{Message, stop_reason};
use crate::http::sse::{self, Events};
use crate::service::{ServiceError, TextEvent};

pub(super) struct Writer {
    message: Message,
}

impl Writer {
    pub(super) fn new(message: Message) -> Self {
        Writer { message }
    }
}

impl sse::Write for Writer {
    fn begin(&mut self, to: &mut Events) {
        to.named("message_start", &json!({"type": "message_start", "message": self.message}));
        let block = json!({"type": "text", "text": ""});
        to.named(
            "content_block_start",
            &json!({"type": "content_block_start", "index": 0, "content_block": block}),
        );
    }

    fn event(&mut self, _: usize, event: TextEvent, to: &mut Events) {
        if !event.text.is_empty() {
            let delta = json!({"type": "text_delta", "text": event.text});
            to.named(
                "content_block_delta",
                &json!({"type": "content_block_delta", "index": 0, "delta": delta}),
            );
        }
        let Some(finished) = event.finished else { return };
        to.named("content_block_stop", &json!({"type": "content_block_stop", "index": 0}));
        let (reason, sequence) = stop_reason(&finished);
        let mut usage = self.message.usage;
        usage.output_tokens = finished.generated_tokens;
        let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
        to.named("message_delta", &json!({"type": "message_delta", "delta": delta, "usage": usage}));
        to.named("message_stop", &json!({"type": "message_stop"}));
    }

    fn error(&mut self, error: ServiceError, to: &mut Events) {
        to.named("error", &MessagesError::from(error).body());
    }

    fn end(&mut self, _: &mut Events) {}
}
