//! The events of a streamed response, in OpenAI's order.

use serde_json::{Value, json};

use super::super::error::OpenAiError;
use super::super::logprobs::ChatLogprobs;
use super::types::{Body, Status, part};
use crate::http::sse::{self, Events};
use crate::service::{ServiceError, TextEvent};
use crate::text::Tokenizer;

pub(super) struct Writer {
    /// Taken by the last event.
    body: Option<Body>,
    item: String,
    prompt_tokens: usize,
    /// Set if log-probabilities were asked for.
    tokenizer: Option<Tokenizer>,
    /// All of them so far.
    logprobs: ChatLogprobs,
    /// Number of the next event.
    sequence: u64,
}

impl Writer {
    pub(super) fn new(body: Body, prompt_tokens: usize, tokenizer: Option<Tokenizer>) -> Self {
        let item = body.item.clone();
        let logprobs = ChatLogprobs { content: Vec::new() };
        Writer { body: Some(body), item, prompt_tokens, tokenizer, logprobs, sequence: 0 }
    }

    /// An event of this kind with these fields beside its number.
    fn event(&mut self, kind: &str, mut fields: Value, to: &mut Events) {
        fields["type"] = kind.into();
        fields["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        to.named(kind, &fields);
    }

    /// An event about the one text of the one message.
    fn text_event(&mut self, kind: &str, mut fields: Value, to: &mut Events) {
        fields["item_id"] = self.item.as_str().into();
        fields["output_index"] = 0.into();
        fields["content_index"] = 0.into();
        self.event(kind, fields, to);
    }
}

impl sse::Write for Writer {
    fn begin(&mut self, to: &mut Events) {
        let Some(body) = &self.body else { return };
        let (response, message) = (json!(body), body.message(Status::InProgress, &[]));
        self.event("response.created", json!({"response": response}), to);
        self.event("response.in_progress", json!({"response": response}), to);
        self.event("response.output_item.added", json!({"output_index": 0, "item": message}), to);
        self.text_event("response.content_part.added", json!({"part": part("", None)}), to);
    }

    fn event(&mut self, _: usize, event: TextEvent, to: &mut Events) {
        let new = self
            .tokenizer
            .as_ref()
            .map(|tokenizer| ChatLogprobs::new(tokenizer, std::slice::from_ref(&event)).content)
            .unwrap_or_default();
        if !event.text.is_empty() || !new.is_empty() {
            let delta = json!({"delta": event.text, "logprobs": new});
            self.text_event("response.output_text.delta", delta, to);
            self.logprobs.content.extend(new);
        }
        let Some(finished) = &event.finished else { return };
        let Some(body) = self.body.take() else { return };
        let status = Status::of(finished.reason);
        let logprobs = std::mem::take(&mut self.logprobs.content);
        let logprobs = self.tokenizer.is_some().then_some(ChatLogprobs { content: logprobs });
        let done = json!({
            "text": finished.text,
            "logprobs": logprobs.as_ref().map_or_else(|| json!([]), |logprobs| json!(logprobs.content)),
        });
        self.text_event("response.output_text.done", done, to);
        let body = body.complete(status, self.prompt_tokens, finished, logprobs);
        let part = body.output[0]["content"][0].clone();
        self.text_event("response.content_part.done", json!({"part": part}), to);
        let item = body.output[0].clone();
        self.event("response.output_item.done", json!({"output_index": 0, "item": item}), to);
        let kind = match status {
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
