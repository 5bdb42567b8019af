//! A request's body: gathered into one buffer, in bounded time and memory.

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

use super::budget::Charge;
use super::pulse::Pulse;
use crate::http::{BodyFate, SharedFate};

/// How often a body that is waited for is looked at: its time may have become shorter.
const LOOK: Duration = Duration::from_secs(1);

/// What a body may cost.
pub(super) struct BodyLimits {
    /// Bytes of the whole body.
    pub(super) bytes: usize,
    /// From the first wait for it to its end.
    pub(super) time: Duration,
    /// The server ends, and does not wait for bodies any more.
    pub(super) stop: CancellationToken,
}

/// A request's body. Its frames are copied into one buffer and come out as one frame at its end: a frame of one byte, as a
/// slow client sends it, would otherwise keep the whole buffer alive that the connection was read into.
pub(super) struct RequestBody<B> {
    /// `None` after its end, and after an error.
    body: Option<B>,
    buffer: Vec<u8>,
    limits: Arc<BodyLimits>,
    /// The bytes of the buffer; whoever answers the request holds it, too.
    charge: Arc<Charge>,
    fate: SharedFate,
    pulse: Arc<Pulse>,
    /// Set when the body is first waited for.
    wait: Option<Pin<Box<Wait>>>,
}

struct Wait {
    began: Instant,
    look: Pin<Box<Sleep>>,
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl<B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin> RequestBody<B> {
    pub(super) fn new(
        body: B,
        limits: Arc<BodyLimits>,
        charge: Arc<Charge>,
        fate: SharedFate,
        pulse: Arc<Pulse>,
    ) -> Self {
        if body.is_end_stream() {
            fate.set(BodyFate::Whole);
        }
        RequestBody { body: Some(body), buffer: Vec::new(), limits, charge, fate, pulse, wait: None }
    }

    /// Ends the body without its rest.
    fn fail(&mut self, fate: BodyFate, error: BoxError) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.fate.set(fate);
        self.body = None;
        self.buffer = Vec::new();
        if fate != BodyFate::Broken {
            self.pulse.leaves_unread();
        }
        Poll::Ready(Some(Err(error)))
    }

    /// What a body of so many bytes is refused for, if it is.
    fn refusal(&self, bytes: u64) -> Option<BodyFate> {
        let Some(bytes) = usize::try_from(bytes).ok().filter(|bytes| *bytes <= self.limits.bytes) else {
            return Some(BodyFate::TooLarge);
        };
        let more = bytes.saturating_sub(self.buffer.capacity());
        (!self.charge.budget().has_room_for(more)).then_some(BodyFate::NoRoom)
    }

    /// Appends a frame.
    fn gather(&mut self, data: &[u8], declared: u64) -> Result<(), BodyFate> {
        let length = self.buffer.len() + data.len();
        if length > self.limits.bytes {
            return Err(BodyFate::TooLarge);
        }
        let capacity = self.buffer.capacity();
        if length > capacity {
            // Twice as much each time, but not more than will come or may come.
            let announced = usize::try_from(declared).unwrap_or(usize::MAX).saturating_add(self.buffer.len());
            let most = if declared > 0 { announced.max(length) } else { self.limits.bytes };
            let wanted = length.max(capacity * 2).min(most);
            if !self.charge.grow(wanted - capacity) {
                return Err(BodyFate::NoRoom);
            }
            self.buffer.reserve_exact(wanted - self.buffer.len());
        }
        self.buffer.extend_from_slice(data);
        Ok(())
    }

    /// Whether the body, of which nothing has come, has been waited for too long.
    fn poll_patience(&mut self, context: &mut Context<'_>) -> Poll<BodyFate> {
        let (limits, budget) = (&self.limits, self.charge.budget());
        let wait = self.wait.get_or_insert_with(|| {
            Box::pin(Wait {
                began: Instant::now(),
                look: Box::pin(sleep(LOOK.min(limits.time))),
                stop: Box::pin(limits.stop.clone().cancelled_owned()),
            })
        });
        if wait.stop.as_mut().poll(context).is_ready() {
            return Poll::Ready(BodyFate::Stopping);
        }
        while wait.look.as_mut().poll(context).is_ready() {
            let (elapsed, limit) = (wait.began.elapsed(), budget.time_limit(limits.time));
            if elapsed >= limits.time {
                return Poll::Ready(BodyFate::TooSlow);
            }
            if elapsed >= limit {
                return Poll::Ready(BodyFate::NoRoom);
            }
            wait.look.as_mut().reset(Instant::now() + LOOK.min(limit - elapsed));
        }
        Poll::Pending
    }

    fn poll_gathered(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            let Some(body) = &mut self.body else { return Poll::Ready(None) };
            // Bytes that are still to come and known of; 0 if none are announced.
            let declared = body.size_hint().lower();
            if let Some(refusal) = self.refusal(declared.saturating_add(self.buffer.len() as u64)) {
                return self.fail(refusal, error_of(refusal));
            }
            let Some(body) = &mut self.body else { return Poll::Ready(None) };
            match Pin::new(body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => {
                    // Trailers mean nothing here.
                    let Ok(data) = frame.into_data() else { continue };
                    if let Err(refusal) = self.gather(&data, declared) {
                        return self.fail(refusal, error_of(refusal));
                    }
                }
                Poll::Ready(Some(Err(error))) => return self.fail(BodyFate::Broken, error.into()),
                Poll::Ready(None) => {
                    self.fate.set(BodyFate::Whole);
                    self.body = None;
                    let whole = std::mem::take(&mut self.buffer);
                    let frame = (!whole.is_empty()).then(|| Ok(Frame::data(Bytes::from(whole))));
                    return Poll::Ready(frame);
                }
                Poll::Pending => {
                    let Poll::Ready(fate) = self.poll_patience(context) else { return Poll::Pending };
                    return self.fail(fate, error_of(fate));
                }
            }
        }
    }
}

/// What the route is told.
fn error_of(fate: BodyFate) -> BoxError {
    let text = match fate {
        BodyFate::TooLarge => return too_large(),
        BodyFate::TooSlow => "the body took too long",
        BodyFate::NoRoom => "the server has no memory for it now",
        BodyFate::Stopping => "the server ends",
        BodyFate::Open | BodyFate::Whole | BodyFate::Broken => "the body is incomplete",
    };
    io::Error::new(io::ErrorKind::TimedOut, text).into()
}

/// The error that routes know a body by that is too long. The library makes it only itself.
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
        self.poll_gathered(context)
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
        if self.body.is_some() && self.fate.get() == BodyFate::Open {
            self.pulse.leaves_unread();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::budget::BodyBudget;

    /// What a connection was read into; counted as long as it lives.
    struct ReadBuffer {
        _alive: Arc<()>,
        bytes: Vec<u8>,
    }

    impl AsRef<[u8]> for ReadBuffer {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }

    /// A body that comes byte by byte, each in a buffer of its own, and then no further.
    struct Dribble {
        alive: Arc<()>,
        left: usize,
    }

    impl HttpBody for Dribble {
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
            Dribble { alive: alive.clone(), left: BYTES },
            Arc::new(limits),
            Arc::new(Charge::new(budget.clone())),
            SharedFate::new(),
            Pulse::new(Instant::now()),
        );
        let polled = futures::poll!(body.frame());
        assert!(polled.is_pending());
        // One here, and one in the body itself.
        assert_eq!(Arc::strong_count(&alive), 2, "no buffer is held");
        assert!(!budget.has_room_for(9 * BYTES + 1), "what has come is counted");
        assert!(budget.has_room_for(7 * BYTES), "and not many times over");
        drop(body);
        assert!(budget.has_room_for(10 * BYTES));
    }
}
