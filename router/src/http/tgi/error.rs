//! TGI's errors: `{"error", "error_type"}`.

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::service::ServiceError;

/// An error as TGI's clients know it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TgiError)]
pub(super) struct ErrorBody {
    pub(super) error: String,
    pub(super) error_type: &'static str,
}

impl From<&ServiceError> for ErrorBody {
    fn from(error: &ServiceError) -> Self {
        let error_type = match error {
            ServiceError::Validation { .. } | ServiceError::ContextLength(_) => "validation",
            ServiceError::Forbidden { .. } => "forbidden",
            ServiceError::Template(_) => "template_error",
            ServiceError::Overloaded { .. } => "overloaded",
            ServiceError::Unavailable(_) => "unavailable",
            ServiceError::Generation(_) => "generation",
            ServiceError::Incomplete => "incomplete_generation",
        };
        ErrorBody { error: error.to_string(), error_type }
    }
}

/// A [`ServiceError`] as a response.
#[derive(Debug)]
pub(in crate::http) struct TgiError(pub(in crate::http) ServiceError);

impl From<ServiceError> for TgiError {
    fn from(error: ServiceError) -> Self {
        TgiError(error)
    }
}

impl IntoResponse for TgiError {
    fn into_response(self) -> Response {
        let status = match &self.0 {
            ServiceError::Validation { .. } | ServiceError::ContextLength(_) | ServiceError::Template(_) => {
                StatusCode::UNPROCESSABLE_ENTITY
            }
            ServiceError::Forbidden { .. } => StatusCode::FORBIDDEN,
            ServiceError::Overloaded { .. } => StatusCode::TOO_MANY_REQUESTS,
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

/// A request that no route takes.
pub(in crate::http) fn refused(status: StatusCode, error: String, error_type: &'static str) -> Response {
    (status, Json(ErrorBody { error, error_type })).into_response()
}

/// What `/health` answers when the engine is gone.
pub(in crate::http) fn unhealthy() -> Response {
    unhealthy_because("unhealthy")
}

/// What `/health` answers when the server cannot go on for this reason.
pub(in crate::http) fn unhealthy_because(why: &str) -> Response {
    let body = ErrorBody { error: why.into(), error_type: "healthcheck" };
    (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
}

/// What a request gets whose handler panicked.
pub(in crate::http) fn internal() -> Response {
    let body = ErrorBody { error: "Internal server error".into(), error_type: "internal" };
    (StatusCode::INTERNAL_SERVER_ERROR, Json(body)).into_response()
}
