//! An answer as a response, or as OpenAI's events in their order.

use axum::Json;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::super::error::OpenAiError;
use super::output::{EventSink, ResponseOutput};
use super::types::{ResponseObject, ResponseStatus};
use crate::chat::AnswerEvent;
use crate::http::answer_pipeline::{AnswerProgress, CompleteAnswer, Renderer};
use crate::http::sse::Events;
use crate::service::{ServiceError, TokenCounts};

/// Writes one response.
pub(super) struct ResponseRenderer {
    /// The response, which the last event takes.
    response: Option<ResponseObject>,
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

impl ResponseRenderer {
    pub(super) fn new(response: ResponseObject, output: ResponseOutput) -> Self {
        ResponseRenderer { response: Some(response), output, sequence: 0 }
    }

    fn named(&mut self, kind: &'static str, fields: Value, to: &mut Events) {
        NumberedEvents { sequence: &mut self.sequence, to }.emit(kind, || fields);
    }
}

impl Renderer for ResponseRenderer {
    fn body(mut self, answers: Vec<CompleteAnswer>, _: TokenCounts) -> Response {
        for mut answer in answers {
            for event in answer.events() {
                self.output.push(event, &mut ());
            }
            let items = self.output.take();
            let complete = |response: ResponseObject| {
                response.complete(items, &answer.progress, &answer.answer.finished)
            };
            self.response = self.response.map(complete);
        }
        Json(self.response).into_response()
    }

    fn start(&mut self, _: &[AnswerProgress], to: &mut Events) {
        let response = json!({"response": self.response});
        self.named("response.created", response.clone(), to);
        self.named("response.in_progress", response, to);
    }

    fn event(&mut self, answer: &AnswerProgress, event: AnswerEvent<'_>, to: &mut Events) {
        let finished = event.generated.finished.as_ref();
        self.output.push(event, &mut NumberedEvents { sequence: &mut self.sequence, to });
        let Some(finished) = finished else { return };
        let Some(response) = self.response.take() else { return };
        let response = response.complete(self.output.take(), answer, finished);
        let kind = match response.status {
            ResponseStatus::Incomplete => "response.incomplete",
            _ => "response.completed",
        };
        self.named(kind, json!({"response": response}), to);
    }

    fn error(&mut self, error: ServiceError, to: &mut Events) {
        let error = OpenAiError::from(error);
        let (code, message) = (error.code(), error.message().to_owned());
        self.named("error", json!({"code": code, "message": message, "param": null}), to);
        if let Some(mut response) = self.response.take() {
            response.status = ResponseStatus::Failed;
            response.error = Some(json!({"code": code, "message": message}));
            self.named("response.failed", json!({"response": response}), to);
        }
    }
}
