//! Work on long bodies and long answers, which waits for a turn of its tenant and leaves the async
//! threads.

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::app::App;
use super::fields::FromObject;
use crate::service::{Answer, MAX_INLINE_BYTES, PromptToken, RequestContext, Service};

/// Bytes of JSON of a token's id, at most.
pub(super) const TOKEN_BYTES: usize = 8;

/// Bytes of JSON of a log-probability, on average.
const SCORE_BYTES: usize = 32;

/// An object in JSON. A long one is read in a turn of its tenant, and counts against the budget of
/// its key if it is refused.
#[derive(Debug)]
pub(super) struct TurnJson<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<App> for TurnJson<T> {
    type Rejection = JsonRejection;

    async fn from_request(request: Request, app: &App) -> Result<Self, JsonRejection> {
        if has_short_body(&request) {
            return Json::from_request(request, app).await.map(|Json(FromObject(value))| TurnJson(value));
        }
        check_content_type(request.headers().get(header::CONTENT_TYPE).cloned()).await?;
        let body = Bytes::from_request(request, app).await?;
        let bytes = body.len();
        if let Some(context) = RequestContext::current() {
            context.note_body(bytes);
        }
        let parsed = app.service.in_turn_for(bytes, move || Json::from_bytes(&body)).await;
        match parsed {
            Ok(Json(FromObject(value))) => Ok(TurnJson(value)),
            Err(rejection) => {
                Service::charge_refused_body();
                Err(rejection)
            }
        }
    }
}

/// Whether the headers announce a body that is read without a turn.
fn has_short_body(request: &Request) -> bool {
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    length.and_then(|length| length.parse::<usize>().ok()).is_some_and(|length| length <= MAX_INLINE_BYTES)
}

/// Refuses a body that the headers do not declare as JSON, before it is read.
async fn check_content_type(kind: Option<HeaderValue>) -> Result<(), JsonRejection> {
    let mut probe = Request::new(Body::empty());
    if let Some(kind) = kind {
        probe.headers_mut().insert(header::CONTENT_TYPE, kind);
    }
    match Json::<IgnoredAny>::from_request(probe, &()).await {
        Err(rejection @ JsonRejection::MissingJsonContentType(_)) => Err(rejection),
        // The body of the probe is empty, so it is no JSON.
        _ => Ok(()),
    }
}

/// Returns the bytes of an answer in a response, to which the time to read and write it is
/// proportional.
pub(super) fn answer_bytes(answer: &Answer) -> usize {
    let generated = answer.tokens.iter().map(|event| 1 + event.top.len() * SCORE_BYTES);
    answer.finished.text.len() + generated.sum::<usize>() + prompt_bytes(&answer.prompt)
}

/// Returns the bytes of the scores of a prompt in a response.
pub(super) fn prompt_bytes(tokens: &[PromptToken]) -> usize {
    tokens.iter().map(|token| (1 + token.top.len()) * SCORE_BYTES).sum()
}

/// Returns the response with a value whose JSON has about this number of bytes.
pub(super) async fn json<T: Serialize>(app: &App, bytes: usize, value: T) -> Response {
    app.service.in_turn_for(bytes, || Json(value).into_response()).await
}
