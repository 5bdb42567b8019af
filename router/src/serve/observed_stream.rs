//! A stream that records its reads and writes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connection_activity::ConnectionActivity;
use super::lingering_close::LingeringClose;

/// Wraps a stream and records its reads and writes in the connection's activity.
#[derive(Debug)]
pub(super) struct ObservedStream<S> {
    stream: S,
    activity: Arc<ConnectionActivity>,
    /// Set while the writing side is closed and the client may still write.
    lingering_close: Option<LingeringClose>,
}

impl<S> ObservedStream<S> {
    pub(super) fn new(stream: S, activity: Arc<ConnectionActivity>) -> Self {
        ObservedStream { stream, activity, lingering_close: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ObservedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        if buffer.filled().len() > before {
            self.activity.record_read();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ObservedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.activity.record_write(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.activity.record_write(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(context);
        self.activity.record_write(result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ObservedStream { stream, activity, lingering_close } = &mut *self;
        if lingering_close.is_none() {
            let result = Pin::new(&mut *stream).poll_shutdown(context);
            ready!(activity.record_write(result))?;
            if !activity.has_unread_body() {
                return Poll::Ready(Ok(()));
            }
        }
        lingering_close.get_or_insert_with(LingeringClose::new).poll_end(stream, context).map(Ok)
    }
}
