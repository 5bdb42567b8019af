//! Why the body of a request was not read, and the errors that clients get for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;

use super::api::Api;
use super::app::App;
use crate::metrics;
use crate::service::ServiceError;

/// The outcome of reading a request's body. The connection stores it in the request's extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum BodyOutcome {
    /// The body is being read, or has not been needed yet.
    Pending,
    /// The whole body was read.
    Complete,
    /// The body is longer than `--payload-limit`.
    TooLarge,
    /// The body took too long.
    TooSlow,
    /// The bodies of all requests together take too much memory.
    NoMemory,
    /// The server is shutting down.
    ShuttingDown,
    /// The client left, or sent data that is no valid body.
    Incomplete,
}

/// A [`BodyOutcome`] that the connection sets while a handler answers the request.
#[derive(Debug, Clone)]
pub(crate) struct SharedBodyOutcome(Arc<AtomicU8>);

impl SharedBodyOutcome {
    pub(crate) fn new() -> Self {
        SharedBodyOutcome(Arc::new(AtomicU8::new(BodyOutcome::Pending as u8)))
    }

    pub(crate) fn set(&self, outcome: BodyOutcome) {
        self.0.store(outcome as u8, Ordering::Release);
    }

    pub(crate) fn get(&self) -> BodyOutcome {
        use BodyOutcome::{Complete, Incomplete, NoMemory, Pending, ShuttingDown, TooLarge, TooSlow};
        let stored = self.0.load(Ordering::Acquire);
        let all = [Pending, Complete, TooLarge, TooSlow, NoMemory, ShuttingDown];
        all.into_iter().find(|outcome| *outcome as u8 == stored).unwrap_or(Incomplete)
    }
}

/// Sets the limit of the extractors that collect the body.
pub(super) async fn limit(State(app): State<App>, mut request: Request, next: Next) -> Response {
    DefaultBodyLimit::max(app.service.payload_limit()).apply(&mut request);
    next.run(request).await
}

/// Replaces the errors of handlers that could not read a body.
///
/// A handler reports a missing body as the client's mistake. If the server had no memory or no time
/// for it, the client gets a 503 instead. A body that is too large is refused with its length, the
/// limit and the flag that raises it.
pub(super) async fn explain(State(app): State<App>, request: Request, next: Next) -> Response {
    let outcome = request.extensions().get::<SharedBodyOutcome>().cloned();
    let api = Api::of(request.uri().path());
    let announced = content_length(request.headers());
    let response = next.run(request).await;
    let reason = match outcome.map(|outcome| outcome.get()) {
        Some(BodyOutcome::NoMemory) => {
            metrics::body_refused();
            "The bodies of all requests take as much memory as they may (--max-body-bytes-in-flight); try again"
        }
        Some(BodyOutcome::ShuttingDown) => "Server is shutting down",
        _ if response.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            return api
                .refused(StatusCode::PAYLOAD_TOO_LARGE, too_large(announced, app.service.payload_limit()));
        }
        _ => return response,
    };
    metrics::request_rejected("unavailable");
    api.error(ServiceError::Unavailable(reason.into()))
}

/// Returns the length of the body as the headers announce it.
fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// The text of the refusal. A body that is sent without a length, or that is longer when it is
/// unpacked, was not read to its end.
fn too_large(announced: Option<u64>, limit: usize) -> String {
    let length = match announced {
        Some(length) if length > limit as u64 => length.to_string(),
        _ => format!("more than {limit}"),
    };
    format!(
        "Failed to buffer the request body: length limit exceeded. The body has {length} bytes and may have at most \
         {limit} bytes, before and after it is unpacked (--payload-limit)"
    )
}
