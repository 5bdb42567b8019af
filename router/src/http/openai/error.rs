//! OpenAI's errors: `{"error": {"message", "type", "param", "code"}}`.

use std::time::Duration;

use axum::Json;
use axum::extract::FromRequest;
use axum::extract::rejection::JsonRejection;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::names::FieldNames;
use crate::http::sse;
use crate::metrics;
use crate::service::{ContextOverflow, ServiceError};

/// An error with its status.
#[derive(Debug)]
pub(in crate::http) struct OpenAiError {
    pub(in crate::http) status: StatusCode,
    /// Seconds after which to try again.
    retry_after: Option<u64>,
    /// The sizes of a request that does not fit, for APIs that say it in words of their own.
    overflow: Option<Box<ContextOverflow>>,
    body: Body,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OpenAiErrorBody)]
pub(super) struct Body {
    message: String,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<String>,
    code: Option<&'static str>,
    /// TGI's clients look for it in the events of a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    http_status_code: Option<u16>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OpenAiError)]
pub(super) struct Envelope {
    error: Body,
}

const INVALID: &str = "invalid_request_error";

impl OpenAiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        let body = Body { message: message.into(), kind, param: None, code: None, http_status_code: None };
        OpenAiError { status, retry_after: None, overflow: None, body }
    }

    /// A field with a wrong value, for requests that do not get as far as the service.
    pub(in crate::http) fn invalid(param: &str, message: impl Into<String>) -> Self {
        metrics::request_rejected("validation");
        let mut error = Self::new(StatusCode::BAD_REQUEST, INVALID, message);
        error.body.param = Some(param.to_owned());
        error
    }

    /// The same for an API in which a field has another name.
    pub(super) fn renamed(mut self, from: &str, to: &str) -> Self {
        self.body.message = self.body.message.replace(&format!("`{from}`"), &format!("`{to}`"));
        self.body.param = self.body.param.map(|param| if param == from { to.to_owned() } else { param });
        self
    }

    /// An error of the service, in the words of an API that calls its fields by these names.
    pub(in crate::http) fn about(error: ServiceError, names: &FieldNames) -> Self {
        let (message, retry_after) = (error.to_string(), error.retry_after());
        let mut answer = match error {
            ServiceError::Validation { param, .. } => {
                let mut error = Self::new(StatusCode::BAD_REQUEST, INVALID, names.rename(&message));
                error.body.param = Some(names.of(param).to_owned());
                error
            }
            ServiceError::ContextLength(sizes) => {
                let mut error = Self::new(StatusCode::BAD_REQUEST, INVALID, names.overflow(&sizes));
                error.overflow = Some(Box::new(sizes));
                (error.body.param, error.body.code) =
                    (Some(names.prompt.into()), Some("context_length_exceeded"));
                error
            }
            ServiceError::Forbidden { param, .. } => {
                let mut error = Self::new(StatusCode::FORBIDDEN, INVALID, message);
                (error.body.param, error.body.code) = (Some(param.into()), Some("insufficient_permissions"));
                error
            }
            ServiceError::Template(_) => {
                let mut error = Self::new(StatusCode::BAD_REQUEST, INVALID, message);
                (error.body.param, error.body.code) = (Some("messages".into()), Some("template_error"));
                error
            }
            ServiceError::Overloaded { .. } => {
                let mut error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
                error.body.code = Some("overloaded");
                error
            }
            ServiceError::Unavailable(_) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", message)
            }
            ServiceError::Generation(_) | ServiceError::Incomplete => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
            }
        };
        answer.retry_after = retry_after;
        answer
    }

    /// The sizes of a request that does not fit into the model's context.
    pub(in crate::http) fn overflow(&self) -> Option<&ContextOverflow> {
        self.overflow.as_deref()
    }

    /// An error of the request as a whole.
    pub(in crate::http) fn plain(status: StatusCode, message: impl Into<String>) -> Self {
        Self::new(status, INVALID, message)
    }

    /// What is wrong, in words.
    pub(in crate::http) fn message(&self) -> &str {
        &self.body.message
    }

    /// Seconds after which to try again.
    pub(in crate::http) fn retry_after(&self) -> Option<u64> {
        self.retry_after
    }

    /// The same for routes that tell errors in TGI's way.
    pub(in crate::http) fn into_service_error(self) -> ServiceError {
        let OpenAiError { status, retry_after, overflow, body } = self;
        if let Some(sizes) = overflow {
            return ServiceError::ContextLength(*sizes);
        }
        let message = body.message;
        match status {
            StatusCode::TOO_MANY_REQUESTS => {
                ServiceError::Overloaded { retry_after: Duration::from_secs(retry_after.unwrap_or(1)) }
            }
            StatusCode::SERVICE_UNAVAILABLE => ServiceError::Unavailable(message),
            StatusCode::FORBIDDEN => {
                ServiceError::Forbidden { param: "priority", detail: strip(message, "Permission denied: ") }
            }
            status if status.is_server_error() => ServiceError::Incomplete,
            _ if body.code == Some("template_error") => {
                ServiceError::Template(strip(message, "Template error: "))
            }
            _ => ServiceError::invalid("messages", strip(message, "Input validation error: ")),
        }
    }

    /// A field that is understood but not served.
    pub(in crate::http) fn unsupported(param: &str) -> Self {
        let mut error = Self::invalid(param, format!("`{param}` is not supported"));
        error.body.code = Some("unsupported_parameter");
        error
    }

    /// Something that is not there, or not by this method.
    pub(in crate::http) fn absent(status: StatusCode, message: String) -> Self {
        let mut error = Self::new(status, INVALID, message);
        error.body.code =
            Some(if status == StatusCode::NOT_FOUND { "unknown_url" } else { "method_not_allowed" });
        error
    }

    /// A model that is not served here.
    pub(super) fn model_not_found(model: &str) -> Self {
        let message = format!("model not found: {model}. GET /v1/models lists what is served");
        let mut error = Self::new(StatusCode::NOT_FOUND, INVALID, message);
        error.body.param = Some("model".into());
        error.body.code = Some("model_not_found");
        error
    }

    /// The word for it: a code, or the type if there is none.
    pub(super) fn code(&self) -> &'static str {
        self.body.code.unwrap_or(self.body.kind)
    }

    /// As an event of a stream that has begun.
    pub(super) fn write(mut self, to: &mut sse::Events) {
        self.body.http_status_code = Some(self.status.as_u16());
        to.json(&Envelope { error: self.body });
    }
}

/// A text without what its type says already.
fn strip(text: String, prefix: &str) -> String {
    text.strip_prefix(prefix).map_or_else(|| text.clone(), str::to_owned)
}

impl From<ServiceError> for OpenAiError {
    fn from(error: ServiceError) -> Self {
        Self::about(error, &FieldNames::default())
    }
}

impl From<JsonRejection> for OpenAiError {
    fn from(rejection: JsonRejection) -> Self {
        let status = match rejection.status() {
            // OpenAI does not tell a wrong shape from wrong JSON.
            StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
            status => status,
        };
        Self::new(status, INVALID, rejection.body_text())
    }
}

impl IntoResponse for OpenAiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(Envelope { error: self.body })).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// A JSON body, refused in OpenAI's shape.
#[derive(Debug, FromRequest)]
#[from_request(via(Json), rejection(OpenAiError))]
pub(super) struct OpenAiJson<T>(pub(super) T);

/// The answer to a POST without a valid key.
pub(in crate::http) fn unauthorized() -> Response {
    let mut error = OpenAiError::new(StatusCode::UNAUTHORIZED, INVALID, "Incorrect API key provided");
    error.body.code = Some("invalid_api_key");
    error.into_response()
}

/// What a request gets whose handler panicked.
pub(super) fn internal() -> Response {
    OpenAiError::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", "Internal server error")
        .into_response()
}
