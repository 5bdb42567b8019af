//! Server-sent events.

use std::convert::Infallible;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream::{self, Stream, StreamExt};
use serde::Serialize;

use crate::service::{ServiceError, TextEvent, TextStream};

/// A stream of `data: …` events, with a comment after 15 s of silence, that no proxy shall hold back.
pub(super) fn response(events: impl Stream<Item = String> + Send + 'static) -> Response {
    let events = events.map(|data| Ok::<_, Infallible>(Event::default().data(data)));
    let mut response = Sse::new(events).keep_alive(KeepAlive::default()).into_response();
    response
        .headers_mut()
        .insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

/// The events of an answer; ends after the first error. Dropping it cancels the request.
pub(super) fn events(stream: TextStream) -> impl Stream<Item = Result<TextEvent, ServiceError>> + Send {
    stream::unfold(stream, |mut stream| async move { stream.next().await.map(|event| (event, stream)) })
}

/// One line of JSON.
pub(super) fn json(value: &impl Serialize) -> String {
    // Our own types: string keys and finite depth, so that nothing can fail but a bug, and that costs one event.
    serde_json::to_string(value).unwrap_or_else(|error| {
        tracing::error!(%error, "an event could not be written");
        r#"{"error":"event could not be written","error_type":"stream_serialization_error"}"#.into()
    })
}
