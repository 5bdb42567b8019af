//! What a connection is doing, as its watchdog sees it.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::Connections;
use super::answer::AnswerState;
use super::linger::Linger;

/// Why a connection is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TooSlow {
    /// A request has begun, and its headers do not end.
    Headers,
    /// Nothing is asked.
    Idle,
    /// Nothing is read of what is written to it.
    Reader,
}

/// Times are milliseconds since the connection began, plus one; 0 is never.
#[derive(Debug)]
pub(super) struct Pulse {
    began: Instant,
    /// Requests that are being answered.
    in_flight: AtomicUsize,
    /// The first byte of headers that have not ended yet.
    head_since: AtomicU64,
    /// The end of the last answer.
    idle_since: AtomicU64,
    /// A write has waited since then.
    stalled_since: AtomicU64,
    /// Frames of HTTP/2 come between requests, too, so that a byte does not begin one.
    is_http2: AtomicBool,
    /// A request's body was refused before its end, so its rest may still come.
    is_unread: AtomicBool,
    /// The answers that are being written.
    answers: Mutex<Vec<Weak<AnswerState>>>,
}

impl Pulse {
    /// The pulse of a connection whose first headers have been waited for since `began`.
    pub(super) fn new(began: Instant) -> Arc<Self> {
        Arc::new(Pulse {
            began,
            in_flight: AtomicUsize::new(0),
            // The first request is waited for as if it had begun: silence must not be cheaper than slowness.
            head_since: AtomicU64::new(1),
            idle_since: AtomicU64::new(1),
            stalled_since: AtomicU64::new(0),
            is_http2: AtomicBool::new(false),
            is_unread: AtomicBool::new(false),
            answers: Mutex::new(Vec::new()),
        })
    }

    /// Milliseconds since the connection began, plus one.
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1
    }

    /// A request has come; it is answered when the guard is dropped.
    pub(super) fn request(self: &Arc<Self>, is_http2: bool) -> InFlight {
        self.is_http2.store(is_http2, Ordering::Relaxed);
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        self.head_since.store(0, Ordering::Release);
        InFlight(self.clone())
    }

    /// An answer is written from now on.
    pub(super) fn answers(&self, answer: &Arc<AnswerState>) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if answers.len() == answers.capacity() {
            answers.retain(|answer| answer.strong_count() > 0);
        }
        answers.push(Arc::downgrade(answer));
    }

    /// Some of a request's body may still come, although nobody wants it any more.
    pub(super) fn leaves_unread(&self) {
        self.is_unread.store(true, Ordering::Release);
    }

    /// Whether nothing is being answered, and nothing waits to be written.
    pub(super) fn is_quiet(&self) -> bool {
        self.in_flight.load(Ordering::Acquire) == 0 && self.stalled_since.load(Ordering::Acquire) == 0
    }

    /// Ends answers whose readers have taken nothing for longer than they may. Their bytes wait in the HTTP library, which asks
    /// for no more of them: with HTTP/2 a reader can stop one stream while the socket goes on. True if no other is left.
    fn has_only_stalled(&self, limit: Duration) -> bool {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.now();
        let live = answers.iter().filter_map(Weak::upgrade);
        let ended = live.filter(|answer| answer.end_if_stalled(now, limit)).count();
        ended > 0 && ended >= self.in_flight.load(Ordering::Acquire)
    }

    /// Whether something has taken longer than it may.
    pub(super) fn too_slow(&self, limits: &Connections) -> Option<TooSlow> {
        let now = self.now();
        let over = |since: &AtomicU64, limit: Duration| {
            let since = since.load(Ordering::Acquire);
            since != 0 && u128::from(now.saturating_sub(since)) > limit.as_millis()
        };
        if over(&self.stalled_since, limits.write_timeout) {
            return Some(TooSlow::Reader);
        }
        if self.has_only_stalled(limits.write_timeout) {
            return Some(TooSlow::Reader);
        }
        if self.in_flight.load(Ordering::Acquire) > 0 {
            return None;
        }
        let reads_head =
            !self.is_http2.load(Ordering::Relaxed) && self.head_since.load(Ordering::Acquire) != 0;
        if reads_head {
            return over(&self.head_since, limits.header_timeout).then_some(TooSlow::Headers);
        }
        over(&self.idle_since, limits.idle_timeout).then_some(TooSlow::Idle)
    }

    fn read(&self) {
        if self.in_flight.load(Ordering::Acquire) == 0 && self.head_since.load(Ordering::Acquire) == 0 {
            self.head_since.store(self.now(), Ordering::Release);
        }
    }

    fn written<T>(&self, result: Poll<T>) -> Poll<T> {
        if result.is_ready() {
            self.stalled_since.store(0, Ordering::Release);
        } else if self.stalled_since.load(Ordering::Acquire) == 0 {
            self.stalled_since.store(self.now(), Ordering::Release);
        }
        result
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(super) struct InFlight(Arc<Pulse>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.idle_since.store(self.0.now(), Ordering::Release);
        self.0.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A stream that tells what passes through it.
#[derive(Debug)]
pub(super) struct Felt<S> {
    stream: S,
    pulse: Arc<Pulse>,
    /// Set when the writing side is closed while a client may still be writing.
    linger: Option<Linger>,
}

impl<S> Felt<S> {
    pub(super) fn new(stream: S, pulse: Arc<Pulse>) -> Self {
        Felt { stream, pulse, linger: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Felt<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        if buffer.filled().len() > before {
            self.pulse.read();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Felt<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.pulse.written(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.pulse.written(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(context);
        self.pulse.written(result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Felt { stream, pulse, linger } = &mut *self;
        if linger.is_none() {
            let result = Pin::new(&mut *stream).poll_shutdown(context);
            ready!(pulse.written(result))?;
            if !pulse.is_unread.load(Ordering::Acquire) {
                return Poll::Ready(Ok(()));
            }
        }
        linger.get_or_insert_with(Linger::new).poll_end(stream, context).map(Ok)
    }
}
