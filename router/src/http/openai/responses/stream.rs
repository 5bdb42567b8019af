//! The events of a streamed response, in OpenAI's order.

use serde_json::{Value, json};

use super::super::error::OpenAiError;
use super::output::{Listen, Output};
use super::types::{Body, Status};
use crate::http::sse::{self, Events};
use crate::service::{ServiceError, TextEvent};

pub(super) struct Writer {
    /// Taken by the last event.
    body: Option<Body>,
    prompt_tokens: usize,
    output: Output,
    /// Number of the next event.
    sequence: u64,
}

/// Writes each event with its number.
struct Numbered<'a> {
    sequence: &'a mut u64,
    to: &'a mut Events,
}

impl Listen for Numbered<'_> {
    fn hear(&mut self, kind: &'static str, fields: impl FnOnce() -> Value) {
        let mut event = fields();
        event["type"] = kind.into();
        event["sequence_number"] = (*self.sequence).into();
        *self.sequence += 1;
        self.to.named(kind, &event);
    }
}

impl Writer {
    pub(super) fn new(body: Body, prompt_tokens: usize, output: Output) -> Self {
        Writer { body: Some(body), prompt_tokens, output, sequence: 0 }
    }

    fn event(&mut self, kind: &'static str, fields: Value, to: &mut Events) {
        Numbered { sequence: &mut self.sequence, to }.hear(kind, || fields);
    }
}

impl sse::Write for Writer {
    fn begin(&mut self, to: &mut Events) {
        let response = json!({"response": self.body});
        self.event("response.created", response.clone(), to);
        self.event("response.in_progress", response, to);
    }

    fn event(&mut self, _: usize, event: TextEvent, to: &mut Events) {
        self.output.push(&event, &mut Numbered { sequence: &mut self.sequence, to });
        let Some(finished) = &event.finished else { return };
        let Some(body) = self.body.take() else { return };
        let body = body.complete(self.output.items(), self.prompt_tokens, finished);
        let kind = match body.status {
            Status::Incomplete => "response.incomplete",
            _ => "response.completed",
        };
        self.event(kind, json!({"response": body}), to);
    }

    fn error(&mut self, error: ServiceError, to: &mut Events) {
        let error = OpenAiError::from(error);
        let (code, message) = (error.code(), error.message().to_owned());
        self.event("error", json!({"code": code, "message": message, "param": null}), to);
        if let Some(mut body) = self.body.take() {
            body.status = Status::Failed;
            body.error = Some(json!({"code": code, "message": message}));
            self.event("response.failed", json!({"response": body}), to);
        }
    }

    fn end(&mut self, _: &mut Events) {}
}
