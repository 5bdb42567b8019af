//! TGI's errors: `{"error", "error_type"}`.

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::chat::ChatError;
use crate::http::model_name::UnknownModel;
use crate::service::ServiceError;

/// The JSON of an error.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TgiError)]
pub(in crate::http) struct ErrorBody {
    pub(in crate::http) error: String,
    pub(in crate::http) error_type: &'static str,
}

impl From<&ServiceError> for ErrorBody {
    fn from(error: &ServiceError) -> Self {
        let error_type = match error {
            ServiceError::Validation { .. } | ServiceError::ContextLength(_) => "validation",
            ServiceError::Forbidden { .. } => "forbidden",
            ServiceError::Template(_) => "template_error",
            ServiceError::Overloaded { .. } => "overloaded",
            ServiceError::LimitExceeded { .. } => "rate_limit_exceeded",
            ServiceError::Unavailable(_) => "unavailable",
            ServiceError::Generation(_) => "generation",
            ServiceError::Incomplete => "incomplete_generation",
        };
        ErrorBody { error: error.to_string(), error_type }
    }
}

/// An error of the service, which becomes a response in TGI's form.
#[derive(Debug)]
pub(in crate::http) struct TgiError(pub(in crate::http) ServiceError);

impl From<ServiceError> for TgiError {
    fn from(error: ServiceError) -> Self {
        TgiError(error)
    }
}

impl From<ChatError> for TgiError {
    fn from(error: ChatError) -> Self {
        TgiError(match error {
            // TGI's errors do not name the field.
            ChatError::Invalid { message, .. } => ServiceError::invalid("messages", message),
            ChatError::Service(error) => error,
        })
    }
}

impl From<UnknownModel> for TgiError {
    fn from(error: UnknownModel) -> Self {
        TgiError(ServiceError::invalid("model", error.message()))
    }
}

impl IntoResponse for TgiError {
    fn into_response(self) -> Response {
        let status = match &self.0 {
            ServiceError::Validation { .. } | ServiceError::ContextLength(_) | ServiceError::Template(_) => {
                StatusCode::UNPROCESSABLE_ENTITY
            }
            ServiceError::Forbidden { .. } => StatusCode::FORBIDDEN,
            ServiceError::Overloaded { .. } | ServiceError::LimitExceeded { .. } => {
                StatusCode::TOO_MANY_REQUESTS
            }
            ServiceError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            ServiceError::Generation(_) => StatusCode::FAILED_DEPENDENCY,
            ServiceError::Incomplete => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let mut response = (status, Json(ErrorBody::from(&self.0))).into_response();
        if let Some(seconds) = self.0.retry_after() {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// The response to a request that no route takes.
pub(in crate::http) fn refused(status: StatusCode, error: String, error_type: &'static str) -> Response {
    (status, Json(ErrorBody { error, error_type })).into_response()
}

/// The response of `/health` when the engine has failed.
pub(in crate::http) fn unhealthy() -> Response {
    unhealthy_because("unhealthy")
}

/// The response of `/health` when the server has failed for a reason.
pub(in crate::http) fn unhealthy_because(reason: &str) -> Response {
    let body = ErrorBody { error: reason.into(), error_type: "healthcheck" };
    (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
}

/// The response to a request whose handler panicked.
pub(in crate::http) fn internal() -> Response {
    let body = ErrorBody { error: "Internal server error".into(), error_type: "internal" };
    (StatusCode::INTERNAL_SERVER_ERROR, Json(body)).into_response()
}
