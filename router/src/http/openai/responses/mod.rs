//! `/v1/responses`, without memory: a response is answered and forgotten.

mod input;
mod output;
mod request;
mod stream;
mod tools;
mod types;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};

use self::output::Output;
use self::request::{Asking, ResponsesRequest};
use self::types::Body;
use super::error::{OpenAiError, OpenAiJson};
use super::plain;
use super::prompt::Ready;
use super::types::Header;
use crate::http::{App, headers, offload, sse};
use crate::service::{Service, ServiceError};

/// Answers once, at once or as a stream of OpenAI's events.
#[utoipa::path(post, path = "/v1/responses", tag = "OpenAI", request_body = ResponsesRequest, responses((status = 200, description = "The answer, or OpenAI's events if `stream` is true", body = Body)))]
pub(super) async fn responses(
    State(app): State<App>,
    OpenAiJson(request): OpenAiJson<ResponsesRequest>,
) -> Result<Response, OpenAiError> {
    let mut header = Header::new("resp", plain::check_model(&app, request.model.clone())?);
    header.id = header.id.replacen('-', "_", 1);
    let Asking { chat, functions, effort } = request.asking(&app)?;
    let prepared =
        chat.prepare(&app, request.params()?).await.map_err(|error| error.renamed("messages", "input"))?;
    let Ready { prepared, calling, characters, ignored } = prepared;
    let prompt_tokens = prepared.prompt().len();
    let body = Body::new(header, &request, effort, app.service.sampling_defaults());
    let tokenizer = request.wants_logprobs().then(|| app.service.tokenizer().clone());
    let mut output = Output::new(calling.as_ref(), functions, tokenizer);
    let mut streams = vec![app.service.start(prepared)?];
    if request.stream.unwrap_or(false) {
        sse::begin(&mut streams).await?;
        let cached_tokens = streams[0].cached_tokens();
        let writer = stream::Writer::new(body, prompt_tokens, output);
        let headers = headers::before(&app, characters, &ignored);
        return Ok((headers, sse::response(streams, cached_tokens, writer)).into_response());
    }
    let answers = Service::collect(streams).await?;
    let headers = headers::after(&app, characters, &ignored, prompt_tokens, &answers);
    let bytes = offload::bytes(&answers);
    let Some(answer) = answers.into_iter().next() else { return Err(ServiceError::Incomplete.into()) };
    let write = move || {
        for event in &answer.tokens {
            output.push(event, &mut ());
        }
        Json(body.complete(output.items(), prompt_tokens, &answer.finished)).into_response()
    };
    Ok((headers, offload::run(bytes, write).await).into_response())
}
