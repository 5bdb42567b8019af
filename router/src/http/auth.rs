//! API keys.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::{Choice, ConstantTimeEq};

use super::{App, anthropic, openai};

/// The header that Anthropic's clients send their key in.
const API_KEY: &str = "x-api-key";

/// Lets a POST pass only with one of the keys.
pub(super) async fn require_key(State(app): State<App>, request: Request, next: Next) -> Response {
    let guarded = request.method() == Method::POST && !app.config.api_keys.is_empty();
    if !guarded || knows(&app.config.api_keys, request.headers()) {
        next.run(request).await
    } else if request.uri().path().starts_with("/v1/messages") {
        anthropic::unauthorized()
    } else if request.uri().path().starts_with("/v1/") {
        openai::unauthorized()
    } else {
        StatusCode::UNAUTHORIZED.into_response()
    }
}

/// Compares with every key in a time that does not depend on where they differ.
fn knows(keys: &[String], headers: &HeaderMap) -> bool {
    let bearer =
        headers.get(header::AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    let Some(given) = bearer.or_else(|| headers.get(API_KEY).map(|value| value.as_bytes())) else {
        return false;
    };
    keys.iter().fold(Choice::from(0), |found, key| found | key.as_bytes().ct_eq(given)).into()
}
