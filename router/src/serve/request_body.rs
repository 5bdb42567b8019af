//! A request's body, collected in one buffer in bounded time and memory.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Bytes, HttpBody};
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt, Full, Limited};
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::body_budget::BodyCharge;
use super::connection_activity::ConnectionActivity;
use crate::http::{BodyOutcome, SharedBodyOutcome};

/// The interval of the checks of a slow body. Its time limit may shrink meanwhile.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Limits of a body.
pub(super) struct BodyLimits {
    /// The maximum length of a body in bytes.
    pub(super) bytes: usize,
    /// The time from the first wait for the body to its end.
    pub(super) time: Duration,
    /// Cancelled when the server ends and waits for no more bodies.
    pub(super) stop: CancellationToken,
}

/// A request's body. Its frames are copied into one buffer, which becomes one frame at the end.
/// Without the copy, a frame of a single byte from a slow client would keep the connection's whole
/// read buffer alive.
pub(super) struct RequestBody<B> {
    /// `None` after the end and after an error.
    body: Option<B>,
    buffer: Vec<u8>,
    limits: Arc<BodyLimits>,
    /// The body's share of the memory. The handler of the request holds it, too.
    charge: Arc<BodyCharge>,
    outcome: SharedBodyOutcome,
    activity: Arc<ConnectionActivity>,
    /// Set when the body is waited for the first time.
    wait: Option<Pin<Box<BodyWait>>>,
}

struct BodyWait {
    began: Instant,
    check: Pin<Box<Sleep>>,
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl<B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin> RequestBody<B> {
    pub(super) fn new(
        body: B,
        limits: Arc<BodyLimits>,
        charge: Arc<BodyCharge>,
        outcome: SharedBodyOutcome,
        activity: Arc<ConnectionActivity>,
    ) -> Self {
        if body.is_end_stream() {
            outcome.set(BodyOutcome::Complete);
        }
        RequestBody { body: Some(body), buffer: Vec::new(), limits, charge, outcome, activity, wait: None }
    }

    /// Ends the body early.
    fn fail(
        &mut self,
        outcome: BodyOutcome,
        error: BoxError,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.outcome.set(outcome);
        self.body = None;
        self.buffer = Vec::new();
        if outcome != BodyOutcome::Incomplete {
            self.activity.record_unread_body();
        }
        Poll::Ready(Some(Err(error)))
    }

    /// Returns the reason for which a body of this many bytes is refused, if there is one.
    fn refusal(&self, bytes: u64) -> Option<BodyOutcome> {
        let Some(bytes) = usize::try_from(bytes).ok().filter(|bytes| *bytes <= self.limits.bytes) else {
            return Some(BodyOutcome::TooLarge);
        };
        let more = bytes.saturating_sub(self.buffer.capacity());
        (!self.charge.budget().has_room_for(more)).then_some(BodyOutcome::NoMemory)
    }

    /// Appends a frame to the buffer.
    fn append(&mut self, data: &[u8], declared: u64) -> Result<(), BodyOutcome> {
        let length = self.buffer.len() + data.len();
        if length > self.limits.bytes {
            return Err(BodyOutcome::TooLarge);
        }
        let capacity = self.buffer.capacity();
        if length > capacity {
            // The buffer doubles, but does not exceed the announced or the allowed length.
            let announced = usize::try_from(declared).unwrap_or(usize::MAX).saturating_add(self.buffer.len());
            let max_length = if declared > 0 { announced.max(length) } else { self.limits.bytes };
            let wanted = length.max(capacity * 2).min(max_length);
            if !self.charge.grow(wanted - capacity) {
                return Err(BodyOutcome::NoMemory);
            }
            self.buffer.reserve_exact(wanted - self.buffer.len());
        }
        self.buffer.extend_from_slice(data);
        Ok(())
    }

    /// Completes when the body has been waited for too long.
    fn poll_time_limit(&mut self, context: &mut Context<'_>) -> Poll<BodyOutcome> {
        let (limits, budget) = (&self.limits, self.charge.budget());
        let wait = self.wait.get_or_insert_with(|| {
            Box::pin(BodyWait {
                began: Instant::now(),
                check: Box::pin(sleep(CHECK_INTERVAL.min(limits.time))),
                stop: Box::pin(limits.stop.clone().cancelled_owned()),
            })
        });
        if wait.stop.as_mut().poll(context).is_ready() {
            return Poll::Ready(BodyOutcome::ShuttingDown);
        }
        while wait.check.as_mut().poll(context).is_ready() {
            let (elapsed, limit) = (wait.began.elapsed(), budget.time_limit(limits.time));
            if elapsed >= limits.time {
                return Poll::Ready(BodyOutcome::TooSlow);
            }
            if elapsed >= limit {
                return Poll::Ready(BodyOutcome::NoMemory);
            }
            wait.check.as_mut().reset(Instant::now() + CHECK_INTERVAL.min(limit - elapsed));
        }
        Poll::Pending
    }

    fn poll_whole_body(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            let Some(body) = &mut self.body else { return Poll::Ready(None) };
            // The number of announced bytes that have not arrived; 0 if no length was announced.
            let declared = body.size_hint().lower();
            if let Some(refusal) = self.refusal(declared.saturating_add(self.buffer.len() as u64)) {
                return self.fail(refusal, body_error(refusal));
            }
            let Some(body) = &mut self.body else { return Poll::Ready(None) };
            match Pin::new(body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => {
                    // Trailers are ignored.
                    let Ok(data) = frame.into_data() else { continue };
                    if let Err(refusal) = self.append(&data, declared) {
                        return self.fail(refusal, body_error(refusal));
                    }
                }
                Poll::Ready(Some(Err(error))) => return self.fail(BodyOutcome::Incomplete, error.into()),
                Poll::Ready(None) => {
                    self.outcome.set(BodyOutcome::Complete);
                    self.body = None;
                    let whole = std::mem::take(&mut self.buffer);
                    let frame = (!whole.is_empty()).then(|| Ok(Frame::data(Bytes::from(whole))));
                    return Poll::Ready(frame);
                }
                Poll::Pending => {
                    let Poll::Ready(outcome) = self.poll_time_limit(context) else { return Poll::Pending };
                    return self.fail(outcome, body_error(outcome));
                }
            }
        }
    }
}

/// Returns the error that the route receives.
fn body_error(outcome: BodyOutcome) -> BoxError {
    let text = match outcome {
        BodyOutcome::TooLarge => return too_large(),
        BodyOutcome::TooSlow => "the body took too long",
        BodyOutcome::NoMemory => "the server has no memory for it now",
        BodyOutcome::ShuttingDown => "the server is shutting down",
        BodyOutcome::Pending | BodyOutcome::Complete | BodyOutcome::Incomplete => "the body is incomplete",
    };
    io::Error::new(io::ErrorKind::TimedOut, text).into()
}

/// Returns the error by which routes recognize a body that is too long. Only the library can create
/// it.
fn too_large() -> BoxError {
    let mut body = Limited::new(Full::new(Bytes::from_static(b"x")), 0);
    let mut context = Context::from_waker(std::task::Waker::noop());
    match Pin::new(&mut body.frame()).poll(&mut context) {
        Poll::Ready(Some(Err(error))) => error,
        _ => "length limit exceeded".into(),
    }
}

impl<B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin> HttpBody for RequestBody<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.poll_whole_body(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream) && self.buffer.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Some(body) if self.buffer.is_empty() => body.size_hint(),
            _ => SizeHint::default(),
        }
    }
}

impl<B> Drop for RequestBody<B> {
    fn drop(&mut self) {
        // A route that refuses a request by its headers reads nothing.
        if self.body.is_some() && self.outcome.get() == BodyOutcome::Pending {
            self.activity.record_unread_body();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::body_budget::BodyBudget;

    /// A connection's read buffer. It is counted while it lives.
    struct ReadBuffer {
        _alive: Arc<()>,
        bytes: Vec<u8>,
    }

    impl AsRef<[u8]> for ReadBuffer {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }

    /// A body that arrives in single bytes, each in its own buffer, and then stalls.
    struct SingleByteBody {
        alive: Arc<()>,
        left: usize,
    }

    impl HttpBody for SingleByteBody {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            if self.left == 0 {
                return Poll::Pending;
            }
            self.left -= 1;
            let buffer = ReadBuffer { _alive: self.alive.clone(), bytes: vec![b' '; 8 << 10] };
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_owner(buffer).slice(..1)))))
        }
    }

    #[tokio::test]
    async fn single_bytes_do_not_keep_the_buffers_that_they_came_in() {
        const BYTES: usize = 1000;
        let (alive, budget) = (Arc::new(()), BodyBudget::new(10 * BYTES));
        let limits =
            BodyLimits { bytes: 5 * BYTES, time: Duration::from_secs(60), stop: CancellationToken::new() };
        let mut body = RequestBody::new(
            SingleByteBody { alive: alive.clone(), left: BYTES },
            Arc::new(limits),
            Arc::new(BodyCharge::new(budget.clone())),
            SharedBodyOutcome::new(),
            ConnectionActivity::new(Instant::now()),
        );
        let polled = futures::poll!(body.frame());
        assert!(polled.is_pending());
        // One reference is here, and one is in the body itself.
        assert_eq!(Arc::strong_count(&alive), 2, "no buffer is held");
        assert!(!budget.has_room_for(9 * BYTES + 1), "received bytes are counted");
        assert!(budget.has_room_for(7 * BYTES), "and counted only once");
        drop(body);
        assert!(budget.has_room_for(10 * BYTES));
    }
}
