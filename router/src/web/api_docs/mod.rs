//! The documentation of the API: `/api-doc/openapi.json`, and a page at `/docs/`.

mod page;

use std::sync::Arc;

use axum::Router;
use axum::http::header;
use axum::response::Redirect;
use axum::routing::get;
use utoipa::openapi::OpenApi;

/// The path that leads to the page.
pub(crate) const PAGE_PATH: &str = "/docs";

/// The path of the description as JSON.
pub(crate) const JSON_PATH: &str = "/api-doc/openapi.json";

/// The page loads nothing and runs nothing.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// Returns the routes of the documentation, which is written once.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>(docs: &OpenApi) -> Router<S> {
    let html: Arc<str> = page::html(docs).into();
    let json: Arc<str> = to_json(docs).into();
    let openapi = move || async move { ([(header::CONTENT_TYPE, "application/json")], json.to_string()) };
    let page = move || async move {
        let headers =
            [(header::CONTENT_TYPE, "text/html; charset=utf-8"), (header::CONTENT_SECURITY_POLICY, POLICY)];
        (headers, html.to_string())
    };
    Router::new()
        .route(JSON_PATH, get(openapi))
        .route(PAGE_PATH, get(async || Redirect::to("/docs/")))
        .route("/docs/", get(page))
}

/// Returns the description of the API as JSON.
pub(crate) fn to_json(docs: &OpenApi) -> String {
    serde_json::to_string(docs).unwrap_or_else(|error| {
        // The description consists of types that can be serialized, so only a bug can get here.
        tracing::error!(%error, "the description of the API could not be written");
        "{}".into()
    })
}
