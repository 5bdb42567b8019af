//! `/v1/responses` without storage: a response is forgotten when it has been sent.

mod input;
mod output;
mod request;
mod stream;
mod tool_set;
mod types;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};

use self::output::ResponseOutput;
use self::request::{ResponseInput, ResponsesRequest};
use self::stream::ResponseStreamWriter;
use self::types::ResponseObject;
use super::error::{OpenAiError, OpenAiJson};
use super::types::ResponseHeader;
use crate::chat::PreparedChat;
use crate::http::app::App;
use crate::http::field_names::FieldNames;
use crate::http::model_name::served_model;
use crate::http::sse::{self, EventDescription};
use crate::http::{headers, offload};
use crate::service::{Service, ServiceError};

/// Returns one answer, at once or as a stream of OpenAI's events.
#[utoipa::path(post, path = "/v1/responses", tag = "OpenAI", request_body = ResponsesRequest, responses((status = 200, description = "The answer, or OpenAI's events if `stream` is true", content((ResponseObject = "application/json"), (inline(EventDescription) = "text/event-stream")))))]
pub(super) async fn responses(
    State(app): State<App>,
    OpenAiJson(request): OpenAiJson<ResponsesRequest>,
) -> Result<Response, OpenAiError> {
    let header = ResponseHeader::new("resp_", served_model(&app, request.model.as_deref())?);
    let input = app.service.in_turn(|| request.input(&app)).await;
    let ResponseInput { chat, tools, effort } = input.inspect_err(|_| Service::charge_refused_body())?;
    let chat = chat.prepare(&app.service, request.params()?).await;
    let PreparedChat { prepared, format, characters, ignored } =
        chat.map_err(|error| OpenAiError::from_chat(error, &FieldNames::RESPONSES))?;
    let prompt_tokens = prepared.prompt().len();
    let response = ResponseObject::new(header, &request, effort, app.service.sampling_defaults());
    let tokenizer = request.wants_logprobs().then(|| app.service.tokenizer().clone());
    let mut output = ResponseOutput::new(format.as_ref(), tools, tokenizer);
    let mut streams = vec![app.service.start(prepared)?];
    if request.stream.unwrap_or(false) {
        sse::begin(&mut streams).await?;
        let cached_tokens = streams[0].cached_tokens();
        let writer = ResponseStreamWriter::new(response, prompt_tokens, output);
        let headers = headers::before(&app, characters, &ignored);
        return Ok((headers, sse::response(&app, streams, cached_tokens, writer)).into_response());
    }
    let answers = Service::collect(streams).await?;
    let headers = headers::after(&app, characters, &ignored, prompt_tokens, &answers);
    let bytes = offload::bytes(&answers);
    let Some(answer) = answers.into_iter().next() else { return Err(ServiceError::Incomplete.into()) };
    let write = move || {
        for event in &answer.tokens {
            output.push(event, &mut ());
        }
        Json(response.complete(output.take(), prompt_tokens, &answer.finished)).into_response()
    };
    Ok((headers, app.service.in_turn_for(bytes, write).await).into_response())
}
