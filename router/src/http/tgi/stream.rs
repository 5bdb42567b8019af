//! `/generate_stream`.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::Response;
use futures::StreamExt;

use super::error::{ErrorBody, TgiError};
use super::types::{GenerateRequest, StreamDetails, StreamResponse, finish_reason};
use crate::http::{App, sse};
use crate::service::{Finished, Prompt, Service, TextEvent};
use crate::text::Specials;

/// The answer token by token. What is wrong with the request is told before the stream begins.
pub(super) async fn generate_stream(
    State(app): State<App>,
    Json(request): Json<GenerateRequest>,
) -> Result<Response, TgiError> {
    let GenerateRequest { inputs, parameters } = request;
    parameters.check_stream().map_err(Service::reject)?;
    let params = parameters.params().map_err(Service::reject)?;
    let headers = headers(&app, &inputs);
    let stream = app.service.generate(Prompt::Text(inputs.clone(), Specials::Add), params).await?;
    let (seed, input_length) = (stream.request().seed(), stream.request().prompt().len());
    let prefix = if parameters.return_full_text.unwrap_or(false) { inputs } else { String::new() };
    let describe = move |finished: &Finished| StreamDetails {
        finish_reason: finish_reason(finished.reason),
        generated_tokens: finished.generated_tokens,
        seed,
        input_length,
    };
    let body = sse::events(stream).enumerate().map(move |(index, event)| match event {
        Ok(TextEvent { token, top, finished, .. }) => sse::json(&StreamResponse {
            index: u32::try_from(index + 1).unwrap_or(u32::MAX),
            token: (&token).into(),
            top_tokens: top.iter().map(Into::into).collect(),
            details: finished.as_ref().filter(|_| parameters.details).map(&describe),
            generated_text: finished.map(|finished| prefix.clone() + &finished.text),
        }),
        Err(error) => sse::json(&ErrorBody::from(&error)),
    });
    let mut response = sse::response(body);
    response.headers_mut().extend(headers);
    Ok(response)
}

/// What is known before the first token.
pub(in crate::http) fn headers(app: &App, inputs: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let device = app.service.ready().ok().and_then(|ready| HeaderValue::from_str(&ready.device).ok());
    let device = device.unwrap_or(HeaderValue::from_static("unknown"));
    headers.insert(HeaderName::from_static("x-compute-type"), device);
    headers.insert(HeaderName::from_static("x-compute-characters"), inputs.chars().count().into());
    headers
}
