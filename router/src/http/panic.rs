//! A panic in a handler fails its own request and no other.

use std::any::Any;

use axum::response::Response;
use tower_http::catch_panic::{CatchPanicLayer, ResponseForPanic};

/// Returns a layer that answers with `response` when a handler panics.
pub(super) fn answered_by(response: fn() -> Response) -> CatchPanicLayer<PanicResponse> {
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
