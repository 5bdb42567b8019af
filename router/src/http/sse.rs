//! Server-sent events.
//!
//! The task of a connection writes the stream: it takes all tokens that are available, writes their
//! events into one buffer, and sends the buffer as one piece. A connection that falls behind thus
//! catches up with fewer and larger writes.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::{BufMut, BytesMut};
use futures::FutureExt;
use futures::future::BoxFuture;
use http_body::Frame;
use serde::Serialize;
use tokio::time::{Instant, Sleep, sleep};
use utoipa::ToSchema;

use super::app::App;
use crate::service::{MAX_INLINE_BYTES, Service, ServiceError, TextEvent, TextStream};
use crate::turns::Turn;

/// The time without events after which a comment or an event shows that the connection is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The size of a piece after which other tasks may run.
const MAX_PIECE_BYTES: usize = 16 << 10;

/// The longest time that a response waits for its requests to leave the queue, so that a refusal is
/// a status and not an event.
const MAX_QUEUE_WAIT: Duration = Duration::from_secs(5);

/// Writes the events of a stream in the form of an API.
pub(super) trait Write: Send + Unpin + 'static {
    /// Writes the events before the first token.
    fn begin(&mut self, _: &mut Events) {}

    /// Returns about how many bytes a token's events have, unless they are few.
    fn event_bytes(&self, _index: usize, _event: &TextEvent) -> usize {
        0
    }

    /// Writes the events of a token. `index` is the place of its answer in the response.
    fn event(&mut self, index: usize, event: TextEvent, to: &mut Events);

    /// Shows that the connection is alive: with a comment, unless the API has an event for it.
    fn silence(&mut self, to: &mut Events) {
        to.comment();
    }

    /// Writes the error that ends the stream.
    fn error(&mut self, error: ServiceError, to: &mut Events);

    /// Writes the events after all answers are complete.
    fn end(&mut self, to: &mut Events);
}

/// An event of a stream. Its data is JSON. The events of `/v1/messages` and `/v1/responses` also
/// have names.
#[derive(ToSchema)]
#[expect(dead_code, reason = "the fields are a schema; events are written as text")]
pub(super) struct EventDescription {
    /// Its name, if it has one
    #[schema(value_type = String, required = false)]
    event: Option<String>,
    /// JSON; `[DONE]` ends OpenAI's streams
    data: String,
}

/// Events that have been written and not yet sent.
#[derive(Debug, Default)]
pub(super) struct Events(BytesMut);

impl Events {
    /// Writes an event with one line of JSON.
    pub(super) fn json(&mut self, value: &impl Serialize) {
        self.0.put_slice(b"data: ");
        let begin = self.0.len();
        if let Err(error) = serde_json::to_writer((&mut self.0).writer(), value) {
            // The types of events have string keys and a finite depth, so that only a bug can get
            // here. It costs one event and not the stream.
            tracing::error!(%error, "an event could not be written");
            self.0.truncate(begin);
            self.0.put_slice(
                br#"{"error":"event could not be written","error_type":"stream_serialization_error"}"#,
            );
        }
        self.0.put_slice(b"\n\n");
    }

    /// Writes an event with a name and one line of JSON.
    pub(super) fn named(&mut self, name: &str, value: &impl Serialize) {
        self.0.put_slice(b"event: ");
        self.0.put_slice(name.as_bytes());
        self.0.put_slice(b"\n");
        self.json(value);
    }

    /// Writes a comment, which clients skip.
    pub(super) fn comment(&mut self) {
        self.0.put_slice(b":\n\n");
    }

    /// Writes an event with a line that is not JSON.
    pub(super) fn line(&mut self, line: &str) {
        self.0.put_slice(b"data: ");
        self.0.put_slice(line.as_bytes());
        self.0.put_slice(b"\n\n");
    }
}

/// Waits until the requests have left the queue, or until [`MAX_QUEUE_WAIT`] has passed. A request
/// that is refused can then be answered with a status, and the number of cached tokens with a
/// header.
///
/// # Errors
/// The [`ServiceError`] of a request that will not be answered.
pub(super) async fn begin(streams: &mut [TextStream]) -> Result<(), ServiceError> {
    let until = Instant::now() + MAX_QUEUE_WAIT;
    for stream in streams.iter_mut() {
        stream.begin(until - Instant::now()).await?;
    }
    Ok(())
}

/// Returns the response that streams these answers, with headers that keep proxies from buffering
/// it. Dropping the response cancels the requests.
pub(super) fn response(
    app: &App,
    streams: Vec<TextStream>,
    cached_tokens: Option<usize>,
    mut write: impl Write,
) -> Response {
    let mut events = Events::default();
    write.begin(&mut events);
    let streams = streams.into_iter().map(Some).collect();
    let body = EventStreamBody {
        service: app.service.clone(),
        streams,
        write,
        long: None,
        events,
        keep_alive: None,
        last_sent: Instant::now(),
        ended: false,
    };
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

/// The header with the number of tokens of the prompts that did not have to be computed.
pub(super) const CACHED_TOKENS: HeaderName = HeaderName::from_static("x-cached-tokens");

/// The body of a response that streams several answers.
struct EventStreamBody<W> {
    service: Service,
    /// The answers; `None` for those that are complete.
    streams: Vec<Option<TextStream>>,
    write: W,
    /// A token whose events are not written yet. No other token is taken meanwhile.
    long: Option<LongEvent>,
    events: Events,
    /// The timer of the next keep-alive, set when it is first needed.
    keep_alive: Option<Pin<Box<Sleep>>>,
    /// When a piece was last sent.
    last_sent: Instant,
    ended: bool,
}

/// A token with long events, such as the first one of an answer that begins with the scores of its
/// prompt.
struct LongEvent {
    index: usize,
    event: TextEvent,
    /// Resolves to the turn in which the events are written.
    turn: BoxFuture<'static, Turn>,
}

impl<W: Write> EventStreamBody<W> {
    /// Writes the events of all tokens that are available.
    fn collect(&mut self, context: &mut Context<'_>) {
        if self.write_long(context).is_pending() {
            return;
        }
        let EventStreamBody { service, streams, write, long, events, ended, .. } = self;
        for (index, place) in streams.iter_mut().enumerate() {
            while let Some(stream) = place {
                match stream.poll_next(context) {
                    Poll::Ready(Some(Ok(event))) if write.event_bytes(index, &event) > MAX_INLINE_BYTES => {
                        *long = Some(LongEvent { index, event, turn: service.turn() });
                        context.waker().wake_by_ref();
                        return;
                    }
                    Poll::Ready(Some(Ok(event))) => write.event(index, event, events),
                    Poll::Ready(Some(Err(error))) => {
                        write.error(error, events);
                        *ended = true;
                        return;
                    }
                    Poll::Ready(None) => *place = None,
                    Poll::Pending => break,
                }
                if events.0.len() >= MAX_PIECE_BYTES {
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

    /// Writes the long events that wait for a turn, if there are some and the turn has come.
    fn write_long(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(long) = &mut self.long else { return Poll::Ready(()) };
        let Poll::Ready(turn) = long.turn.poll_unpin(context) else { return Poll::Pending };
        if let Some(LongEvent { index, event, .. }) = self.long.take() {
            turn.run(|| self.write.event(index, event, &mut self.events));
        }
        Poll::Ready(())
    }

    /// Returns whether nothing has been sent for [`KEEP_ALIVE`].
    fn needs_keep_alive(&mut self, context: &mut Context<'_>) -> bool {
        loop {
            let until = self.last_sent + KEEP_ALIVE;
            let timer = self.keep_alive.get_or_insert_with(|| Box::pin(sleep(KEEP_ALIVE)));
            if timer.as_mut().poll(context).is_pending() {
                return false;
            }
            if Instant::now() >= until {
                timer.as_mut().reset(Instant::now() + KEEP_ALIVE);
                return true;
            }
            // A piece has been sent since the timer was set. The timer is not reset for each token,
            // since that would cost more than one early wake-up.
            timer.as_mut().reset(until);
        }
    }
}

impl<W: Write> HttpBody for EventStreamBody<W> {
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
            if !self.needs_keep_alive(context) {
                return Poll::Pending;
            }
            let EventStreamBody { write, events, .. } = &mut *self;
            write.silence(events);
        }
        self.last_sent = Instant::now();
        Poll::Ready(Some(Ok(Frame::data(self.events.0.split().freeze()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_cannot_be_serialized_becomes_an_error_event() {
        let mut events = Events::default();
        events.json(&std::collections::BTreeMap::from([([1, 2], "a list cannot be the key of an object")]));
        let text = std::str::from_utf8(&events.0).unwrap();
        let data = text.strip_prefix("data: ").and_then(|text| text.strip_suffix("\n\n")).unwrap();
        let error: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(error["error_type"], "stream_serialization_error");
    }
}
