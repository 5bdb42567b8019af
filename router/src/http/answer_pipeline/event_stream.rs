//! The body of a response that streams answers as server-sent events.
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
use futures::FutureExt;
use futures::future::BoxFuture;
use http_body::Frame;
use tokio::time::{Instant, Sleep, sleep};

use super::renderer::{AnswerProgress, Renderer};
use crate::http::app::App;
use crate::http::headers;
use crate::http::sse::Events;
use crate::service::{MAX_INLINE_BYTES, Service, ServiceError, TextEvent, TextStream};
use crate::turns::Turn;

/// The time without events after which a comment or an event shows that the connection is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The size of a piece after which other tasks may run.
const MAX_PIECE_BYTES: usize = 16 << 10;

/// The longest time that a response waits for its requests to leave the queue, so that a refusal is
/// a status and not an event.
const MAX_QUEUE_WAIT: Duration = Duration::from_secs(5);

/// Waits until the requests have left the queue, or until [`MAX_QUEUE_WAIT`] has passed. A request
/// that is refused can then be answered with a status, and the number of cached tokens with a
/// header.
///
/// # Errors
/// The [`ServiceError`] of a request that will not be answered.
pub(super) async fn wait_for_start(streams: &mut [TextStream]) -> Result<(), ServiceError> {
    let until = Instant::now() + MAX_QUEUE_WAIT;
    for stream in streams.iter_mut() {
        stream.wait_for_start(until - Instant::now()).await?;
    }
    Ok(())
}

/// The answers of a response that is streamed.
pub(super) struct AnswerStreams {
    pub(super) streams: Vec<TextStream>,
    /// One for each of the streams.
    pub(super) answers: Vec<AnswerProgress>,
    /// The tokens of all prompts that did not have to be computed, if they are known.
    pub(super) cached_tokens: Option<usize>,
}

/// Returns the response that streams these answers, with headers that keep proxies from buffering
/// it. Dropping the response cancels the requests.
pub(super) fn response(app: &App, answers: AnswerStreams, mut renderer: impl Renderer) -> Response {
    let AnswerStreams { streams, answers, cached_tokens } = answers;
    let mut events = Events::default();
    renderer.start(&answers, &mut events);
    let body = EventStreamBody {
        service: app.service.clone(),
        streams: streams.into_iter().map(Some).collect(),
        answers,
        renderer,
        long: None,
        events,
        keep_alive: None,
        last_sent: Instant::now(),
        ended: false,
    };
    let stream_headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    let mut response = (stream_headers, Body::new(body)).into_response();
    if let Some(cached) = cached_tokens {
        response.headers_mut().insert(headers::CACHED_TOKENS, cached.into());
    }
    response
}

/// The body of a response that streams several answers.
struct EventStreamBody<R> {
    service: Service,
    /// The answers; `None` for those that are complete.
    streams: Vec<Option<TextStream>>,
    answers: Vec<AnswerProgress>,
    renderer: R,
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

impl<R: Renderer> EventStreamBody<R> {
    /// Writes the events of all tokens that are available.
    fn collect(&mut self, context: &mut Context<'_>) {
        if self.write_long(context).is_pending() {
            return;
        }
        let EventStreamBody { service, streams, answers, renderer, long, events, ended, .. } = self;
        for (place, answer) in streams.iter_mut().zip(answers.iter_mut()) {
            while let Some(stream) = place {
                match stream.poll_next(context) {
                    Poll::Ready(Some(Ok(event)))
                        if renderer.event_bytes(answer, &event) > MAX_INLINE_BYTES =>
                    {
                        *long = Some(LongEvent { index: answer.index, event, turn: service.turn() });
                        context.waker().wake_by_ref();
                        return;
                    }
                    Poll::Ready(Some(Ok(event))) => {
                        let event = answer.advance(&event);
                        renderer.event(answer, event, events);
                    }
                    Poll::Ready(Some(Err(error))) => {
                        renderer.error(error, events);
                        *ended = true;
                        return;
                    }
                    Poll::Ready(None) => *place = None,
                    Poll::Pending => break,
                }
                if events.len() >= MAX_PIECE_BYTES {
                    context.waker().wake_by_ref();
                    return;
                }
            }
        }
        if streams.iter().all(Option::is_none) {
            renderer.end(answers, events);
            *ended = true;
        }
    }

    /// Writes the long events that wait for a turn, if there are some and the turn has come.
    fn write_long(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(long) = &mut self.long else { return Poll::Ready(()) };
        let Poll::Ready(turn) = long.turn.poll_unpin(context) else { return Poll::Pending };
        if let Some(LongEvent { index, event, .. }) = self.long.take()
            && let Some(answer) = self.answers.get_mut(index)
        {
            turn.run(|| {
                let event = answer.advance(&event);
                self.renderer.event(answer, event, &mut self.events);
            });
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

impl<R: Renderer> HttpBody for EventStreamBody<R> {
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
        if self.events.len() == 0 {
            if self.ended {
                return Poll::Ready(None);
            }
            if !self.needs_keep_alive(context) {
                return Poll::Pending;
            }
            let EventStreamBody { renderer, events, .. } = &mut *self;
            renderer.keep_alive(events);
        }
        self.last_sent = Instant::now();
        Poll::Ready(Some(Ok(Frame::data(self.events.take()))))
    }
}
