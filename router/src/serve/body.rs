//! Bodies that know how long they take.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Sleep, sleep};

use super::pulse::InFlight;

/// A request's body that fails if it does not end in time.
pub(super) struct InTime {
    body: Incoming,
    limit: Duration,
    /// Set when the body is first waited for.
    alarm: Option<Pin<Box<Sleep>>>,
}

impl InTime {
    pub(super) fn new(body: Incoming, limit: Duration) -> Self {
        InTime { body, limit, alarm: None }
    }
}

impl HttpBody for InTime {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let limit = self.limit;
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep(limit)));
        if alarm.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        let late = io::Error::new(io::ErrorKind::TimedOut, "the body took too long");
        Poll::Ready(Some(Err(late.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A response's body, until whose end its request is in flight.
pub(super) struct Answering {
    body: Body,
    _in_flight: InFlight,
}

impl Answering {
    pub(super) fn new(body: Body, in_flight: InFlight) -> Self {
        Answering { body, _in_flight: in_flight }
    }
}

impl HttpBody for Answering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
