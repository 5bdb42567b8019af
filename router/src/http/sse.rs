//! Server-sent events.
//!
//! A stream of tokens is written by the task of its connection: it takes all events that are there, writes them one
//! after the other into one buffer, and hands that over as one piece. So a connection that falls behind catches up with
//! fewer and larger writes.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::{BufMut, BytesMut};
use http_body::Frame;
use serde::Serialize;
use tokio::time::{Instant, Sleep, sleep};

use crate::service::{ServiceError, TextEvent, TextStream};

/// After so much silence a comment or an event shows that the connection lives.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Bytes that are written before others get their turn.
const LARGEST_PIECE: usize = 16 << 10;

/// How long the response waits for its request to leave the queue, so that a refusal is a status and not an event.
const HEADERS_WITHIN: Duration = Duration::from_secs(5);

/// How an API writes the events of its streams.
pub(super) trait Write: Send + Unpin + 'static {
    /// Before everything else.
    fn begin(&mut self, _: &mut Events) {}

    /// A token of the answer with this index.
    fn event(&mut self, index: usize, event: TextEvent, to: &mut Events);

    /// Shows that the connection lives: a comment, where the API has no event for it.
    fn silence(&mut self, to: &mut Events) {
        to.comment();
    }

    /// Nothing more will come because of this.
    fn error(&mut self, error: ServiceError, to: &mut Events);

    /// All answers are complete.
    fn end(&mut self, to: &mut Events);
}

/// Events, written and not yet sent.
#[derive(Debug, Default)]
pub(super) struct Events(BytesMut);

impl Events {
    /// An event with one line of JSON.
    pub(super) fn json(&mut self, value: &impl Serialize) {
        self.0.put_slice(b"data: ");
        let begin = self.0.len();
        if let Err(error) = serde_json::to_writer((&mut self.0).writer(), value) {
            // Our own types: string keys and finite depth, so that nothing can fail but a bug, and that costs one event.
            tracing::error!(%error, "an event could not be written");
            self.0.truncate(begin);
            self.0.put_slice(
                br#"{"error":"event could not be written","error_type":"stream_serialization_error"}"#,
            );
        }
        self.0.put_slice(b"\n\n");
    }

    /// An event with a name and one line of JSON.
    pub(super) fn named(&mut self, name: &str, value: &impl Serialize) {
        self.0.put_slice(b"event: ");
        self.0.put_slice(name.as_bytes());
        self.0.put_slice(b"\n");
        self.json(value);
    }

    /// A comment, which clients skip.
    pub(super) fn comment(&mut self) {
        self.0.put_slice(b":\n\n");
    }

    /// An event with this line.
    pub(super) fn line(&mut self, line: &str) {
        self.0.put_slice(b"data: ");
        self.0.put_slice(line.as_bytes());
        self.0.put_slice(b"\n\n");
    }
}

/// Waits until the requests have left the queue (for a while; then it goes on without), so that what is refused is told
/// by a status, and what was cached can be told by a header.
///
/// # Errors
/// What became of a request that will never be answered.
pub(super) async fn begin(streams: &mut [TextStream]) -> Result<(), ServiceError> {
    let until = Instant::now() + HEADERS_WITHIN;
    for stream in streams.iter_mut() {
        stream.begin(until - Instant::now()).await?;
    }
    Ok(())
}

/// The response that streams these answers; no proxy shall hold it back. Dropping it cancels the requests.
pub(super) fn response(
    streams: Vec<TextStream>,
    cached_tokens: Option<usize>,
    mut write: impl Write,
) -> Response {
    let mut events = Events::default();
    write.begin(&mut events);
    let streams = streams.into_iter().map(Some).collect();
    let body = Streaming { streams, write, events, silence: None, spoke: Instant::now(), ended: false };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    let mut response = (headers, Body::new(body)).into_response();
    if let Some(cached) = cached_tokens {
        response.headers_mut().insert(CACHED_TOKENS, cached.into());
    }
    response
}

/// The header that tells how many tokens of the prompts did not have to be computed.
pub(super) const CACHED_TOKENS: HeaderName = HeaderName::from_static("x-cached-tokens");

struct Streaming<W> {
    /// `None` for those that are complete.
    streams: Vec<Option<TextStream>>,
    write: W,
    events: Events,
    /// Wakes after the silence that a comment breaks; set when first needed.
    silence: Option<Pin<Box<Sleep>>>,
    /// The last time that something was sent.
    spoke: Instant,
    ended: bool,
}

impl<W: Write> Streaming<W> {
    /// Writes what is there.
    fn collect(&mut self, context: &mut Context<'_>) {
        let Streaming { streams, write, events, ended, .. } = self;
        for (index, place) in streams.iter_mut().enumerate() {
            while let Some(stream) = place {
                match stream.poll_next(context) {
                    Poll::Ready(Some(Ok(event))) => write.event(index, event, events),
                    Poll::Ready(Some(Err(error))) => {
                        write.error(error, events);
                        *ended = true;
                        return;
                    }
                    Poll::Ready(None) => *place = None,
                    Poll::Pending => break,
                }
                if events.0.len() >= LARGEST_PIECE {
                    context.waker().wake_by_ref();
                    return;
                }
            }
        }
        if streams.iter().all(Option::is_none) {
            write.end(events);
            *ended = true;
        }
    }

    /// Whether there has been silence for so long that the client must be told that the connection lives.
    fn is_silent(&mut self, context: &mut Context<'_>) -> bool {
        loop {
            let until = self.spoke + KEEP_ALIVE;
            let silence = self.silence.get_or_insert_with(|| Box::pin(sleep(KEEP_ALIVE)));
            if silence.as_mut().poll(context).is_pending() {
                return false;
            }
            if Instant::now() >= until {
                silence.as_mut().reset(Instant::now() + KEEP_ALIVE);
                return true;
            }
            // Something was said since the alarm was set. It is not set anew for each token.
            silence.as_mut().reset(until);
        }
    }
}

impl<W: Write> HttpBody for Streaming<W> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        self.collect(context);
        if self.events.0.is_empty() {
            if self.ended {
                return Poll::Ready(None);
            }
            if !self.is_silent(context) {
                return Poll::Pending;
            }
            let Streaming { write, events, .. } = &mut *self;
            write.silence(events);
        }
        self.spoke = Instant::now();
        Poll::Ready(Some(Ok(Frame::data(self.events.0.split().freeze()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_is_an_event_all_the_same() {
        let mut events = Events::default();
        events.json(&std::collections::BTreeMap::from([([1, 2], "a list is no key of an object")]));
        let text = std::str::from_utf8(&events.0).unwrap();
        let data = text.strip_prefix("data: ").and_then(|text| text.strip_suffix("\n\n")).unwrap();
        let error: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(error["error_type"], "stream_serialization_error");
    }
}
