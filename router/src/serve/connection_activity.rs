//! The activity of a connection, and the checks that find it too slow.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;

use super::connection_limits::ConnectionLimits;
use super::response_state::ResponseState;

/// Reasons for closing a slow connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TooSlow {
    /// A request has begun, and its headers are incomplete.
    Headers,
    /// No request has begun.
    Idle,
    /// The client does not read the response.
    Reader,
}

/// The activity of one connection. Times are milliseconds since the connection began, plus one; 0
/// means never.
#[derive(Debug)]
pub(super) struct ConnectionActivity {
    began: Instant,
    /// The number of requests that are being answered.
    in_flight: AtomicUsize,
    /// The time of the first byte of headers that are incomplete.
    head_since: AtomicU64,
    /// The end of the last response.
    idle_since: AtomicU64,
    /// The time since which a write has been blocked.
    stalled_since: AtomicU64,
    /// Whether the connection is HTTP/2. Its frames also arrive between requests, so that a byte
    /// does not begin a request.
    is_http2: AtomicBool,
    /// Whether a request's body was refused before its end, so that its rest may still arrive.
    is_unread: AtomicBool,
    /// The responses that are being written.
    answers: Mutex<Vec<Weak<ResponseState>>>,
}

impl ConnectionActivity {
    /// Creates the activity of a connection. The time limit of its first headers starts at `began`.
    pub(super) fn new(began: Instant) -> Arc<Self> {
        Arc::new(ConnectionActivity {
            began,
            in_flight: AtomicUsize::new(0),
            // The time limit of the first request starts with the connection, so that a silent
            // client is treated like a slow one.
            head_since: AtomicU64::new(1),
            idle_since: AtomicU64::new(1),
            stalled_since: AtomicU64::new(0),
            is_http2: AtomicBool::new(false),
            is_unread: AtomicBool::new(false),
            answers: Mutex::new(Vec::new()),
        })
    }

    /// Returns the milliseconds since the connection began, plus one.
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1
    }

    /// Records the beginning of a request. The request is in flight until the guard is dropped.
    pub(super) fn request(self: &Arc<Self>, is_http2: bool) -> InFlightRequest {
        self.is_http2.store(is_http2, Ordering::Relaxed);
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        self.head_since.store(0, Ordering::Release);
        InFlightRequest(self.clone())
    }

    /// Records a response that is written from now on.
    pub(super) fn answers(&self, answer: &Arc<ResponseState>) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if answers.len() == answers.capacity() {
            answers.retain(|answer| answer.strong_count() > 0);
        }
        answers.push(Arc::downgrade(answer));
    }

    /// Records that the rest of a refused request body may still arrive.
    pub(super) fn record_unread_body(&self) {
        self.is_unread.store(true, Ordering::Release);
    }

    /// Whether the rest of a refused request body may still arrive.
    pub(super) fn has_unread_body(&self) -> bool {
        self.is_unread.load(Ordering::Acquire)
    }

    /// Whether no request is in flight and no write is blocked.
    pub(super) fn is_quiet(&self) -> bool {
        self.in_flight.load(Ordering::Acquire) == 0 && self.stalled_since.load(Ordering::Acquire) == 0
    }

    /// Ends the responses whose clients have read nothing for longer than `limit`, and returns
    /// whether no other response is left. With HTTP/2 a client can stop reading one stream while
    /// the socket continues. The HTTP library then stops asking for data of this stream.
    fn has_only_stalled(&self, limit: Duration) -> bool {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.now();
        let live = answers.iter().filter_map(Weak::upgrade);
        let ended = live.filter(|answer| answer.end_if_stalled(now, limit)).count();
        ended > 0 && ended >= self.in_flight.load(Ordering::Acquire)
    }

    /// Returns the limit that the connection has exceeded, if any.
    pub(super) fn too_slow(&self, limits: &ConnectionLimits) -> Option<TooSlow> {
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

    pub(super) fn record_read(&self) {
        if self.in_flight.load(Ordering::Acquire) == 0 && self.head_since.load(Ordering::Acquire) == 0 {
            self.head_since.store(self.now(), Ordering::Release);
        }
    }

    pub(super) fn record_write<T>(&self, result: Poll<T>) -> Poll<T> {
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
pub(super) struct InFlightRequest(Arc<ConnectionActivity>);

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        self.0.idle_since.store(self.0.now(), Ordering::Release);
        self.0.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}
