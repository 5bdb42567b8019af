//! `/v1/responses` without storage: a response is forgotten when it has been sent.

mod input;
mod output;
mod renderer;
mod request;
mod tool_set;
mod types;

use axum::extract::State;
use axum::response::Response;

use self::output::ResponseOutput;
use self::renderer::ResponseRenderer;
use self::request::{ResponseInput, ResponsesRequest};
use self::types::ResponseObject;
use super::error::{OpenAiError, OpenAiJson};
use super::types::ResponseHeader;
use crate::http::answer_pipeline::AnswerPipeline;
use crate::http::app::App;
use crate::http::field_names::FieldNames;
use crate::http::model_name::served_model;
use crate::http::sse::EventDescription;
use crate::service::{Params, Service};

/// Returns one answer, at once or as a stream of OpenAI's events.
#[utoipa::path(post, path = "/v1/responses", tag = "OpenAI", request_body = ResponsesRequest, responses((status = 200, description = "The answer, or OpenAI's events if `stream` is true", content((ResponseObject = "application/json"), (inline(EventDescription) = "text/event-stream")))))]
pub(super) async fn responses(
    State(app): State<App>,
    OpenAiJson(request): OpenAiJson<ResponsesRequest>,
) -> Result<Response, OpenAiError> {
    let model = served_model(&app, request.model.as_deref())?;
    let header = ResponseHeader::new("resp_", model.name);
    let input = app.service.in_turn(|| request.input(&app)).await;
    let ResponseInput { chat, tools, effort } = input.inspect_err(|_| Service::charge_refused_body())?;
    let params = Params { adapter: model.adapter, ..request.params()? };
    let chat = chat.prepare(&app.service, params).await;
    let chat = chat.map_err(|error| OpenAiError::from_chat(error, &FieldNames::RESPONSES))?;
    let response = ResponseObject::new(header, &request, effort, app.service.sampling_defaults());
    let tokenizer = request.wants_logprobs().then(|| app.service.tokenizer().clone());
    let renderer = ResponseRenderer::new(response, ResponseOutput::new(&chat.format, tools, tokenizer));
    let is_stream = request.stream.unwrap_or(false);
    Ok(AnswerPipeline::for_chat(chat, 1, is_stream, renderer).respond(&app).await?)
}
