//! What clients are told whose requests' bodies could not be read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::anthropic;
use super::openai::OpenAiError;
use super::tgi::{self, TgiError};
use crate::metrics;
use crate::service::ServiceError;

/// What became of a request's body. Whoever reads the connection puts it into the request's extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum BodyFate {
    /// It is being read, or nobody has asked for it.
    Open,
    /// All of it was read.
    Whole,
    /// It is longer than any body may be.
    TooLarge,
    /// It took too long.
    TooSlow,
    /// The bodies of all requests together take too much memory.
    NoRoom,
    /// The server ends.
    Stopping,
    /// The client left, or wrote what is no body.
    Broken,
}

/// A [`BodyFate`] that the body changes while its request is answered.
#[derive(Debug, Clone)]
pub(crate) struct SharedFate(Arc<AtomicU8>);

impl SharedFate {
    pub(crate) fn new() -> Self {
        SharedFate(Arc::new(AtomicU8::new(BodyFate::Open as u8)))
    }

    pub(crate) fn set(&self, fate: BodyFate) {
        self.0.store(fate as u8, Ordering::Release);
    }

    pub(crate) fn get(&self) -> BodyFate {
        use BodyFate::{Broken, NoRoom, Open, Stopping, TooLarge, TooSlow, Whole};
        let is = |fate: &BodyFate| *fate as u8 == self.0.load(Ordering::Acquire);
        [Open, Whole, TooLarge, TooSlow, NoRoom, Stopping].into_iter().find(is).unwrap_or(Broken)
    }
}

/// Turns the client's error that a missing body looks like into the server's, where it is the server that had no memory or no
/// time for it.
pub(super) async fn explain(request: Request, next: Next) -> Response {
    let Some(fate) = request.extensions().get::<SharedFate>().cloned() else {
        return next.run(request).await;
    };
    let api = Api::of(request.uri().path());
    let response = next.run(request).await;
    let why = match fate.get() {
        BodyFate::NoRoom => {
            metrics::body_refused();
            "The server reads as many bytes of requests as it may (--max-body-bytes-in-flight); try again"
        }
        BodyFate::Stopping => "Server is shutting down",
        _ => return response,
    };
    metrics::request_rejected("unavailable");
    api.error(ServiceError::Unavailable(why.into()))
}

/// Whose errors a path answers with.
#[derive(Debug, Clone, Copy)]
pub(super) enum Api {
    Anthropic,
    OpenAi,
    Tgi,
}

impl Api {
    pub(super) fn of(path: &str) -> Self {
        match path {
            path if path.starts_with("/v1/messages") => Api::Anthropic,
            path if path.starts_with("/v1/") => Api::OpenAi,
            _ => Api::Tgi,
        }
    }

    /// A path that is not served, or not by this method.
    pub(super) fn absent(self, status: StatusCode, text: String) -> Response {
        match self {
            Api::Anthropic => anthropic::refused(status, text),
            Api::OpenAi => OpenAiError::absent(status, text).into_response(),
            Api::Tgi => {
                let is_path = status == StatusCode::NOT_FOUND;
                tgi::refused(status, text, if is_path { "not_found" } else { "method_not_allowed" })
            }
        }
    }

    /// A body that is not read. TGI's API tells that in plain text.
    pub(super) fn refused(self, status: StatusCode, text: String) -> Response {
        match self {
            Api::Anthropic => anthropic::refused(status, text),
            Api::OpenAi => OpenAiError::plain(status, text).into_response(),
            Api::Tgi => (status, text).into_response(),
        }
    }

    fn error(self, error: ServiceError) -> Response {
        match self {
            Api::Anthropic => anthropic::error(error),
            Api::OpenAi => OpenAiError::from(error).into_response(),
            Api::Tgi => TgiError(error).into_response(),
        }
    }
}
