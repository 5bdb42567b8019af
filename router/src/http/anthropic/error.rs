//! Anthropic's errors: `{"type": "error", "error": {"type", "message"}}`.

use axum::Json;
use axum::extract::FromRequest;
use axum::extract::rejection::JsonRejection;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::openai::OpenAiError;
use crate::service::{ContextOverflow, ServiceError};

/// An error with its status.
#[derive(Debug)]
pub(super) struct MessagesError {
    status: StatusCode,
    message: String,
    /// Seconds after which to try again.
    retry_after: Option<u64>,
}

/// How it is written.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AnthropicError)]
pub(super) struct Envelope {
    #[serde(rename = "type")]
    kind: &'static str,
    error: Body,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AnthropicErrorBody)]
struct Body {
    #[serde(rename = "type")]
    kind: &'static str,
    message: String,
}

impl MessagesError {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        MessagesError { status, message: message.into(), retry_after: None }
    }

    /// As an event of a stream, too.
    pub(super) fn body(self) -> Envelope {
        let kind = match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            status if status.is_server_error() => "api_error",
            _ => "invalid_request_error",
        };
        Envelope { kind: "error", error: Body { kind, message: self.message } }
    }
}

impl From<OpenAiError> for MessagesError {
    fn from(error: OpenAiError) -> Self {
        let message = match error.overflow() {
            Some(sizes) => too_long(sizes),
            None => error.message().replace("`prompt`", "`messages`").replace("`stop`", "`stop_sequences`"),
        };
        MessagesError { status: error.status, message, retry_after: error.retry_after() }
    }
}

/// A request that does not fit, in the form by which Anthropic's clients know it and read its numbers.
fn too_long(sizes: &ContextOverflow) -> String {
    format!("prompt is too long: {} tokens > {} maximum", sizes.prompt, sizes.max_input)
}

impl From<ServiceError> for MessagesError {
    fn from(error: ServiceError) -> Self {
        OpenAiError::from(error).into()
    }
}

impl From<JsonRejection> for MessagesError {
    fn from(rejection: JsonRejection) -> Self {
        let status = match rejection.status() {
            StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
            status => status,
        };
        Self::new(status, rejection.body_text())
    }
}

impl IntoResponse for MessagesError {
    fn into_response(self) -> Response {
        let (status, retry_after) = (self.status, self.retry_after);
        let mut response = (status, Json(self.body())).into_response();
        if let Some(seconds) = retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// A JSON body, refused in Anthropic's shape.
#[derive(Debug, FromRequest)]
#[from_request(via(Json), rejection(MessagesError))]
pub(super) struct MessagesJson<T>(pub(super) T);

/// The answer to a POST without a valid key.
pub(in crate::http) fn unauthorized() -> Response {
    MessagesError::new(StatusCode::UNAUTHORIZED, "invalid x-api-key").into_response()
}

/// A request that no route takes, or whose body is not read.
pub(in crate::http) fn refused(status: StatusCode, text: String) -> Response {
    MessagesError::new(status, text).into_response()
}

/// An error of the service as a response.
pub(in crate::http) fn error(error: ServiceError) -> Response {
    MessagesError::from(error).into_response()
}

/// What a request gets whose handler panicked.
pub(super) fn internal() -> Response {
    MessagesError::new(StatusCode::INTERNAL_SERVER_ERROR, "Internal server error").into_response()
}
