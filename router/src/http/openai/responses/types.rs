//! The object that `/v1/responses` returns.

use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::super::types::ResponseHeader;
use super::request::ResponsesRequest;
use crate::assets::SamplingDefaults;
use crate::http::answer_pipeline::AnswerProgress;
use crate::service::{FinishReason, Finished};

/// The state of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum ResponseStatus {
    InProgress,
    Completed,
    /// The answer was cut off after `max_output_tokens`.
    Incomplete,
    Failed,
}

impl ResponseStatus {
    fn of(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Length => ResponseStatus::Incomplete,
            FinishReason::EosToken | FinishReason::StopSequence => ResponseStatus::Completed,
        }
    }
}

/// The response, as far as it is known. It repeats the fields of the request, as OpenAI's API does.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Response)]
pub(super) struct ResponseObject {
    pub(super) id: String,
    object: &'static str,
    created_at: u64,
    pub(super) status: ResponseStatus,
    background: bool,
    pub(super) error: Option<Value>,
    incomplete_details: Option<Value>,
    instructions: Option<String>,
    max_output_tokens: Option<u32>,
    metadata: Map<String, Value>,
    model: String,
    pub(super) output: Vec<Value>,
    parallel_tool_calls: bool,
    previous_response_id: Option<String>,
    reasoning: Value,
    store: bool,
    temperature: f32,
    text: Value,
    tool_choice: Value,
    tools: Vec<Value>,
    top_logprobs: u32,
    top_p: f32,
    truncation: &'static str,
    usage: Option<ResponseUsage>,
    user: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
struct ResponseUsage {
    input_tokens: usize,
    input_tokens_details: Value,
    output_tokens: u32,
    output_tokens_details: Value,
    total_tokens: usize,
}

impl ResponseObject {
    /// The response before its first token. `effort` is the effort that the template was given, and
    /// `defaults` apply to parameters that the request does not have.
    pub(super) fn new(
        header: ResponseHeader,
        request: &ResponsesRequest,
        effort: Option<String>,
        defaults: SamplingDefaults,
    ) -> Self {
        let ResponseHeader { id, created, model } = header;
        let format = request.text.as_ref().and_then(|text| text.format.clone()).filter(|f| !f.is_null());
        ResponseObject {
            id,
            object: "response",
            created_at: created,
            status: ResponseStatus::InProgress,
            background: false,
            error: None,
            incomplete_details: None,
            instructions: request.instructions.clone(),
            max_output_tokens: request.max_output_tokens,
            metadata: request.metadata.clone().unwrap_or_default(),
            model,
            output: Vec::new(),
            parallel_tool_calls: request.parallel_tool_calls.unwrap_or(true),
            previous_response_id: None,
            reasoning: json!({"effort": effort, "summary": null}),
            store: false,
            temperature: request.temperature.or(defaults.temperature).unwrap_or(1.0),
            text: json!({"format": format.unwrap_or_else(|| json!({"type": "text"}))}),
            tool_choice: request
                .tool_choice
                .clone()
                .filter(|c| !c.is_null())
                .unwrap_or_else(|| "auto".into()),
            tools: request.tools.clone().unwrap_or_default(),
            top_logprobs: request.top_logprobs.unwrap_or(0),
            top_p: request.top_p.or(defaults.top_p).unwrap_or(1.0),
            truncation: "disabled",
            usage: None,
            user: request.user.clone(),
        }
    }

    /// Adds the items of the complete answer.
    pub(super) fn complete(
        mut self,
        output: Vec<Value>,
        answer: &AnswerProgress,
        finished: &Finished,
    ) -> Self {
        self.status = ResponseStatus::of(finished.reason);
        self.output = output;
        self.incomplete_details =
            (self.status == ResponseStatus::Incomplete).then(|| json!({"reason": "max_output_tokens"}));
        self.usage = Some(ResponseUsage {
            input_tokens: answer.counts.prompt,
            input_tokens_details: json!({"cached_tokens": finished.cached_tokens, "cache_write_tokens": 0}),
            output_tokens: finished.generated_tokens,
            output_tokens_details: json!({"reasoning_tokens": answer.reasoning_tokens().unwrap_or(0)}),
            total_tokens: answer.counts.prompt + finished.generated_tokens as usize,
        });
        self
    }
}
