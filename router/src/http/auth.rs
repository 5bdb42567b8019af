//! The check of API keys, and the tenant of a request.

use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;

use super::adapter_admin::ADMIN_PATHS;
use super::api::Api;
use super::app::App;
use crate::service::RequestContext;

/// Refuses a POST without a valid key, and stores the caller and the tenant in the context of other
/// requests.
pub(super) async fn require_key(State(app): State<App>, request: Request, next: Next) -> Response {
    // Requests for adapters need the admin key, which their handlers check.
    if request.method() != Method::POST || ADMIN_PATHS.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let keys = &app.config.api_keys;
    let caller = keys.caller(request.headers());
    if caller.is_none() && !keys.is_empty() {
        return Api::of(request.uri().path()).unauthorized();
    }
    if let Some(context) = RequestContext::current() {
        if let Some(caller) = caller {
            context.is_from(caller);
        }
        if let Some(tenant) = app.config.fair_by.named_tenant(request.headers()) {
            context.is_for(tenant);
        }
    }
    next.run(request).await
}
