//! Requests of administrators, which need the admin key.

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};

use super::api::Api;
use super::app::App;
use super::openai::OpenAiError;

/// A request with the admin key.
pub(super) struct AdminKey;

impl FromRequestParts<App> for AdminKey {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Response> {
        let keys = &app.config.adapter_admin.keys;
        if keys.is_empty() {
            return Err(forbidden("--admin-key (ADMIN_KEY)"));
        }
        keys.caller(&parts.headers).map(|_| AdminKey).ok_or_else(|| Api::OpenAi.unauthorized())
    }
}

/// The response to an administrator of a server that was started without a flag.
pub(super) fn forbidden(flag: &str) -> Response {
    let message = format!("This path is forbidden: the server was started without {flag}");
    OpenAiError::plain(StatusCode::FORBIDDEN, message).into_response()
}
