//! Anthropic's errors: `{"type": "error", "error": {"type", "message"}}`.

use axum::Json;
use axum::extract::FromRequest;
use axum::extract::rejection::JsonRejection;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::chat::ChatError;
use crate::http::app::App;
use crate::http::field_names::FieldNames;
use crate::http::json_errors::BodyError;
use crate::http::model_name::UnknownModel;
use crate::http::offload::TurnJson;
use crate::metrics;
use crate::service::{RequestContext, ServiceError};

/// An error with its HTTP status.
#[derive(Debug)]
pub(in crate::http) struct MessagesError {
    status: StatusCode,
    message: String,
    /// Seconds after which the client may try again.
    retry_after: Option<u64>,
}

/// The JSON of an error.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AnthropicError)]
pub(super) struct AnthropicErrorEnvelope {
    #[serde(rename = "type")]
    kind: &'static str,
    error: AnthropicErrorBody,
    /// The id of the request, which the header `request-id` has, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
struct AnthropicErrorBody {
    #[serde(rename = "type")]
    kind: &'static str,
    message: String,
}

impl MessagesError {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        MessagesError { status, message: message.into(), retry_after: None }
    }

    /// The error of a field with a wrong value. It is counted as a rejected request, so it must not
    /// be used for errors of the service, which counts its own.
    pub(super) fn invalid(message: impl Into<String>) -> Self {
        metrics::request_rejected("validation");
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// The error of a field that is known and not supported.
    pub(super) fn unsupported(param: &str) -> Self {
        Self::invalid(format!("`{param}` is not supported"))
    }

    /// The JSON of the error, for a response or an event of a stream.
    pub(super) fn into_envelope(self, request_id: Option<String>) -> AnthropicErrorEnvelope {
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
        let error = AnthropicErrorBody { kind, message: self.message };
        AnthropicErrorEnvelope { kind: "error", error, request_id }
    }
}

impl From<ServiceError> for MessagesError {
    fn from(error: ServiceError) -> Self {
        let status = match &error {
            ServiceError::Validation { .. } | ServiceError::ContextLength(_) | ServiceError::Template(_) => {
                StatusCode::BAD_REQUEST
            }
            ServiceError::Forbidden { .. } => StatusCode::FORBIDDEN,
            ServiceError::Overloaded { .. } | ServiceError::LimitExceeded { .. } => {
                StatusCode::TOO_MANY_REQUESTS
            }
            ServiceError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            ServiceError::Generation(_) | ServiceError::Incomplete => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let retry_after = error.retry_after();
        let message = match &error {
            // Anthropic's clients recognize this text and read the numbers in it.
            ServiceError::ContextLength(sizes) => {
                format!("prompt is too long: {} tokens > {} maximum", sizes.prompt, sizes.max_input)
            }
            _ => FieldNames::ANTHROPIC.renamed(error).to_string(),
        };
        MessagesError { status, message, retry_after }
    }
}

impl From<ChatError> for MessagesError {
    fn from(error: ChatError) -> Self {
        match error {
            ChatError::Invalid { message, .. } => Self::new(StatusCode::BAD_REQUEST, message),
            ChatError::Service(error) => error.into(),
        }
    }
}

impl From<UnknownModel> for MessagesError {
    fn from(error: UnknownModel) -> Self {
        Self::new(StatusCode::NOT_FOUND, error.message())
    }
}

impl From<JsonRejection> for MessagesError {
    fn from(rejection: JsonRejection) -> Self {
        let BodyError { status, message, .. } = rejection.into();
        Self::new(status, message)
    }
}

impl IntoResponse for MessagesError {
    fn into_response(self) -> Response {
        let (status, retry_after) = (self.status, self.retry_after);
        let mut response = (status, Json(self.into_envelope(request_id()))).into_response();
        if let Some(seconds) = retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// The id of the request for which this task works.
pub(super) fn request_id() -> Option<String> {
    RequestContext::current().map(|context| context.id().to_owned())
}

/// A JSON body, which is refused with a [`MessagesError`].
#[derive(Debug, FromRequest)]
#[from_request(via(TurnJson), rejection(MessagesError), state(App))]
pub(super) struct MessagesJson<T>(pub(super) T);

/// The response to a POST without a valid key.
pub(in crate::http) fn unauthorized() -> Response {
    MessagesError::new(StatusCode::UNAUTHORIZED, "invalid x-api-key").into_response()
}

/// The response to a request that no route takes, or whose body is not read.
pub(in crate::http) fn refused(status: StatusCode, text: String) -> Response {
    MessagesError::new(status, text).into_response()
}

/// The response for an error of the service.
pub(in crate::http) fn error(error: ServiceError) -> Response {
    MessagesError::from(error).into_response()
}

/// The response to a request whose handler panicked.
pub(super) fn internal() -> Response {
    MessagesError::new(StatusCode::INTERNAL_SERVER_ERROR, "Internal server error").into_response()
}
