//! Layers that apply to many routes: requests from pages of other origins in a browser (CORS), and
//! panics, each of which fails its own request and no other.

use std::any::Any;

use axum::http::Method;
use axum::response::Response;
use tower_http::catch_panic::{CatchPanicLayer, ResponseForPanic};
use tower_http::cors::{AllowHeaders, AllowOrigin, Any as AnyHeader, CorsLayer};

use super::app::HttpConfig;

/// Returns the layer that answers preflight requests and allows the configured origins.
pub(super) fn cors(config: &HttpConfig) -> CorsLayer {
    let origins = match config.allowed_origins.as_slice() {
        [] => AllowOrigin::any(),
        origins => AllowOrigin::list(origins.iter().cloned()),
    };
    // All headers are allowed: a key is in a header that a page sets itself, never in a cookie, so
    // a page cannot use a key that it does not know.
    CorsLayer::new()
        .allow_methods([Method::GET, Method::POST])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(AnyHeader)
        .allow_origin(origins)
}

/// Returns a layer that answers with `response` when a handler panics.
pub(super) fn answer_panics_with(response: fn() -> Response) -> CatchPanicLayer<PanicResponse> {
    CatchPanicLayer::custom(PanicResponse(response))
}

/// Logs a panic and returns the response for it.
#[derive(Debug, Clone, Copy)]
pub(super) struct PanicResponse(fn() -> Response);

impl ResponseForPanic for PanicResponse {
    type ResponseBody = axum::body::Body;

    fn response_for_panic(&mut self, panic: Box<dyn Any + Send>) -> Response {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("unknown");
        tracing::error!(panic = text, "a request handler panicked");
        (self.0)()
    }
}
