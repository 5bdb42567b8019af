//! Closing a connection in a way that lets its client read the last response.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Sleep, sleep};

/// The time for which a client is read after the last response.
const MAX_TIME: Duration = Duration::from_secs(1);

/// The number of bytes that are read from it.
const MAX_BYTES: usize = 8 << 20;

/// Reads and discards the data that a client sends after the server has closed its side. If a
/// connection is closed with unread data, the system resets it, and the client may lose the
/// response that it has not read yet.
#[derive(Debug)]
pub(super) struct LingeringClose {
    time: Pin<Box<Sleep>>,
    left: usize,
}

impl LingeringClose {
    pub(super) fn new() -> Self {
        LingeringClose { time: Box::pin(sleep(MAX_TIME)), left: MAX_BYTES }
    }

    /// Completes when the client has closed its side, or when a limit is reached.
    pub(super) fn poll_end(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        context: &mut Context<'_>,
    ) -> Poll<()> {
        let mut bytes = [0; 4096];
        while self.left > 0 && self.time.as_mut().poll(context).is_pending() {
            let mut buffer = ReadBuf::new(&mut bytes);
            match Pin::new(&mut *stream).poll_read(context, &mut buffer) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.left = self.left.saturating_sub(buffer.filled().len());
                }
                Poll::Ready(_) => break,
            }
        }
        Poll::Ready(())
    }
}
