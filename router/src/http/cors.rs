//! Requests from pages of other origins in a browser (CORS).

use axum::http::Method;
use tower_http::cors::{AllowHeaders, AllowOrigin, Any, CorsLayer};

use super::app::HttpConfig;

/// Returns the layer that answers preflight requests and allows the configured origins.
pub(super) fn layer(config: &HttpConfig) -> CorsLayer {
    let origins = match config.allowed_origins.as_slice() {
        [] => AllowOrigin::any(),
        origins => AllowOrigin::list(origins.iter().cloned()),
    };
    // All headers are allowed: a key is in a header that a page sets itself, never in a cookie, so
    // a page cannot use a key that it does not know.
    CorsLayer::new()
        .allow_methods([Method::GET, Method::POST])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(Any)
        .allow_origin(origins)
}
