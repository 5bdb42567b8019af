//! The body of a response.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use http_body::{Frame, SizeHint};

use super::connection_activity::{ConnectionActivity, InFlightRequest};
use super::response_state::ResponseState;

/// The number of bytes that the HTTP/2 library receives at once. It asks for more only after the
/// client has read some of them.
const MAX_FRAME_BYTES: usize = 16 << 10;

/// The body of a response. The request is in flight until the body ends.
pub(super) struct ResponseBody {
    state: Arc<ResponseState>,
    /// The part of the last frame that has not been passed on.
    rest: Bytes,
    size: SizeHint,
    is_end: bool,
    /// The maximum length of a frame in bytes.
    max_frame_bytes: usize,
    activity: Arc<ConnectionActivity>,
    _in_flight: InFlightRequest,
}

impl ResponseBody {
    /// Wraps a response's body. With HTTP/1 the connection shows whether the client reads, so that
    /// only HTTP/2 responses are watched.
    pub(super) fn new(
        body: Body,
        is_http2: bool,
        activity: Arc<ConnectionActivity>,
        in_flight: InFlightRequest,
    ) -> Self {
        let (size, is_end) = (body.size_hint(), body.is_end_stream());
        let state = Arc::new(ResponseState {
            body: Mutex::new(Some(body)),
            untaken_since: AtomicU64::new(activity.now()),
            is_stalled: AtomicBool::new(false),
        });
        if is_http2 {
            activity.answers(&state);
        }
        let max_frame_bytes = if is_http2 { MAX_FRAME_BYTES } else { usize::MAX };
        ResponseBody {
            state,
            rest: Bytes::new(),
            size,
            is_end,
            max_frame_bytes,
            activity,
            _in_flight: in_flight,
        }
    }

    /// Returns the next frame of at most `max_frame_bytes` bytes.
    fn next_frame(&mut self, mut bytes: Bytes) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.rest = bytes.split_off(bytes.len().min(self.max_frame_bytes));
        self.state.untaken_since.store(self.activity.now(), Ordering::Release);
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.state.is_stalled.load(Ordering::Acquire) {
            let stalled = io::Error::new(io::ErrorKind::TimedOut, "the client did not read the response");
            return Poll::Ready(Some(Err(axum::Error::new(stalled))));
        }
        if !self.rest.is_empty() {
            let rest = std::mem::take(&mut self.rest);
            return self.next_frame(rest);
        }
        self.state.untaken_since.store(0, Ordering::Release);
        let state = self.state.clone();
        let mut slot = state.body.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(body) = slot.as_mut() else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(&mut *body).poll_frame(context));
        (self.size, self.is_end) = (body.size_hint(), body.is_end_stream());
        match frame.map(|frame| frame.map(Frame::into_data)) {
            Some(Ok(Ok(bytes))) => self.next_frame(bytes),
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
        // The lower bound is set after the upper bound, which it must not exceed.
        size.set_lower(size.lower() + rest);
        size
    }
}
