//! A response's body, and whether its reader takes it.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use http_body::{Frame, SizeHint};

use super::pulse::{InFlight, Pulse};

/// Bytes that the HTTP/2 library is given at once. It takes more only when the reader has taken some of them.
const PIECE: usize = 16 << 10;

/// What the watchdog of a connection knows of an answer.
#[derive(Debug)]
pub(super) struct AnswerState {
    /// `None` after its end, or when its reader has stopped: that cancels the request.
    body: Mutex<Option<Body>>,
    /// The library has asked for nothing since then, in the pulse's milliseconds; 0 while it waits for the body.
    untaken_since: AtomicU64,
    is_stalled: AtomicBool,
}

impl AnswerState {
    /// Drops the body if its reader has taken nothing for `limit`. True if that has happened, now or before.
    pub(super) fn end_if_stalled(&self, now: u64, limit: Duration) -> bool {
        let since = self.untaken_since.load(Ordering::Acquire);
        let is_over = since != 0 && u128::from(now.saturating_sub(since)) > limit.as_millis();
        // A lock that is held means that the body is being read right now.
        if is_over && let Ok(mut body) = self.body.try_lock() {
            self.is_stalled.store(true, Ordering::Release);
            drop(body.take());
        }
        self.is_stalled.load(Ordering::Acquire)
    }
}

/// A response's body, until whose end its request is in flight.
pub(super) struct Answer {
    state: Arc<AnswerState>,
    /// Of the frame before, what has not been taken.
    rest: Bytes,
    size: SizeHint,
    is_end: bool,
    /// Bytes of a frame at most.
    piece: usize,
    pulse: Arc<Pulse>,
    _in_flight: InFlight,
}

impl Answer {
    /// With HTTP/1 the connection shows whether its reader goes on, so that only answers of HTTP/2 are watched.
    pub(super) fn new(body: Body, is_http2: bool, pulse: Arc<Pulse>, in_flight: InFlight) -> Self {
        let (size, is_end) = (body.size_hint(), body.is_end_stream());
        let state = Arc::new(AnswerState {
            body: Mutex::new(Some(body)),
            untaken_since: AtomicU64::new(pulse.now()),
            is_stalled: AtomicBool::new(false),
        });
        if is_http2 {
            pulse.answers(&state);
        }
        let piece = if is_http2 { PIECE } else { usize::MAX };
        Answer { state, rest: Bytes::new(), size, is_end, piece, pulse, _in_flight: in_flight }
    }

    /// Cuts the next piece off.
    fn piece(&mut self, mut bytes: Bytes) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.rest = bytes.split_off(bytes.len().min(self.piece));
        self.state.untaken_since.store(self.pulse.now(), Ordering::Release);
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.state.is_stalled.load(Ordering::Acquire) {
            let stalled = io::Error::new(io::ErrorKind::TimedOut, "the client read nothing of its answer");
            return Poll::Ready(Some(Err(axum::Error::new(stalled))));
        }
        if !self.rest.is_empty() {
            let rest = std::mem::take(&mut self.rest);
            return self.piece(rest);
        }
        self.state.untaken_since.store(0, Ordering::Release);
        let state = self.state.clone();
        let mut slot = state.body.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(body) = slot.as_mut() else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(&mut *body).poll_frame(context));
        (self.size, self.is_end) = (body.size_hint(), body.is_end_stream());
        match frame.map(|frame| frame.map(Frame::into_data)) {
            Some(Ok(Ok(bytes))) => self.piece(bytes),
            Some(Ok(Err(other))) => Poll::Ready(Some(Ok(other))),
            Some(Err(error)) => Poll::Ready(Some(Err(error))),
            None => {
                self.is_end = true;
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.is_end && self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let mut size = self.size;
        if let Some(upper) = size.upper() {
            size.set_upper(upper + rest);
        }
        // After the upper bound, which it must not exceed.
        size.set_lower(size.lower() + rest);
        size
    }
}
