//! Closing a connection so that its client can read the last answer.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Sleep, sleep};

/// How long a client is heard after the last answer.
const TIME: Duration = Duration::from_secs(1);

/// How many bytes of it are heard.
const BYTES: usize = 8 << 20;

/// Reads and drops what a client still sends after the server has closed its side. A system that closes a connection with
/// unread bytes resets it, and the client may lose the answer that it has not read yet.
#[derive(Debug)]
pub(super) struct Linger {
    time: Pin<Box<Sleep>>,
    left: usize,
}

impl Linger {
    pub(super) fn new() -> Self {
        Linger { time: Box::pin(sleep(TIME)), left: BYTES }
    }

    /// Ready when the client has closed its side, too, or was heard long enough.
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
