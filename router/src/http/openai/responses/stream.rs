//! The events of a streamed response, in OpenAI's order.

use serde_json::{Value, json};

use super::super::error::OpenAiError;
use super::output::{EventSink, ResponseOutput};
use super::types::{ResponseObject, ResponseStatus};
use crate::http::sse::{self, Events};
use crate::service::{ServiceError, TextEvent};

/// Writes the events of one response.
pub(super) struct ResponseStreamWriter {
    /// The response, which the last event takes.
    response: Option<ResponseObject>,
    prompt_tokens: usize,
    output: ResponseOutput,
    /// The number of the next event.
    sequence: u64,
}

/// Adds its number to each event.
struct NumberedEvents<'a> {
    sequence: &'a mut u64,
    to: &'a mut Events,
}

impl EventSink for NumberedEvents<'_> {
    fn emit(&mut self, kind: &'static str, fields: impl FnOnce() -> Value) {
        let mut event = fields();
        event["type"] = kind.into();
        event["sequence_number"] = (*self.sequence).into();
        *self.sequence += 1;
        self.to.named(kind, &event);
    }
}

impl ResponseStreamWriter {
    pub(super) fn new(response: ResponseObject, prompt_tokens: usize, output: ResponseOutput) -> Self {
        ResponseStreamWriter { response: Some(response), prompt_tokens, output, sequence: 0 }
    }

    fn event(&mut self, kind: &'static str, fields: Value, to: &mut Events) {
        NumberedEvents { sequence: &mut self.sequence, to }.emit(kind, || fields);
    }
}

impl sse::Write for ResponseStreamWriter {
    fn begin(&mut self, to: &mut Events) {
        let response = json!({"response": self.response});
        self.event("response.created", response.clone(), to);
        self.event("response.in_progress", response, to);
    }

    fn event(&mut self, _: usize, event: TextEvent, to: &mut Events) {
        self.output.push(&event, &mut NumberedEvents { sequence: &mut self.sequence, to });
        let Some(finished) = &event.finished else { return };
        let Some(response) = self.response.take() else { return };
        let response = response.complete(self.output.take(), self.prompt_tokens, finished);
        let kind = match response.status {
            ResponseStatus::Incomplete => "response.incomplete",
            _ => "response.completed",
        };
        self.event(kind, json!({"response": response}), to);
    }

    fn error(&mut self, error: ServiceError, to: &mut Events) {
        let error = OpenAiError::from(error);
        let (code, message) = (error.code(), error.message().to_owned());
        self.event("error", json!({"code": code, "message": message, "param": null}), to);
        if let Some(mut response) = self.response.take() {
            response.status = ResponseStatus::Failed;
            response.error = Some(json!({"code": code, "message": message}));
            self.event("response.failed", json!({"response": response}), to);
        }
    }

    fn end(&mut self, _: &mut Events) {}
}
