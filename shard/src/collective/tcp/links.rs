//! The connections of one rank, and their end.
//!
//! There are two connections between rank 0 and each other rank: one for values, and one that only
//! carries the abort of the group. An abort can therefore arrive at any time, even while rank 0
//! waits for another rank or computes.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::collective::abort::Abort;
use crate::collective::{CollectiveError, Operation};

/// The only message on a connection for aborts.
const ABORTED: u8 = b'A';

/// Time that a rank waits for the abort message once the connection for values has ended. The
/// message was sent before that, on another connection, whose packets may have been delayed.
const ABORT_WAIT: Duration = Duration::from_millis(500);

/// Pause between two looks whether another thread has told all ranks of an abort.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Stack size of a thread that waits for one byte and closes sockets.
const STACK: usize = 64 << 10;

/// All connections of one rank: to rank 0, or on rank 0 to ranks 1, 2, ….
pub(super) struct Links {
    data: Vec<TcpStream>,
    abort: Vec<TcpStream>,
    /// Whether an abort has begun.
    aborting: AtomicBool,
    /// Whether the other ranks have been told of an abort.
    aborted: AtomicBool,
    /// The rank at the other end of the first connection.
    first: usize,
    deadline: Duration,
}

impl Links {
    /// Takes over the connections, in the order of the ranks at their other ends. The first of
    /// these is `first`.
    pub(super) fn new(
        data: Vec<TcpStream>,
        abort: Vec<TcpStream>,
        first: usize,
        deadline: Duration,
    ) -> std::io::Result<Arc<Links>> {
        // The system takes zero as no limit.
        let limit = deadline.max(Duration::from_millis(1));
        for stream in &data {
            stream.set_nonblocking(false)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(limit))?;
            stream.set_write_timeout(Some(limit))?;
        }
        for stream in &abort {
            stream.set_nonblocking(false)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(None)?;
            stream.set_write_timeout(Some(ABORT_WAIT))?;
        }
        let (aborting, aborted) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Arc::new(Links { data, abort, aborting, aborted, first, deadline }))
    }

    /// Returns the ranks at the other ends, in their order.
    pub(super) fn ranks(&self) -> std::ops::Range<usize> {
        self.first..self.first + self.data.len()
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }

    /// Sends bytes to a rank.
    pub(super) fn send(
        &self,
        rank: usize,
        bytes: &[u8],
        operation: Operation,
    ) -> Result<(), CollectiveError> {
        let sent = (&self.data[rank - self.first]).write_all(bytes);
        sent.map_err(|error| self.failure(rank, operation, error))
    }

    /// Fills `bytes` with bytes from a rank.
    pub(super) fn receive(
        &self,
        rank: usize,
        bytes: &mut [u8],
        operation: Operation,
    ) -> Result<(), CollectiveError> {
        let received = (&self.data[rank - self.first]).read_exact(bytes);
        received.map_err(|error| self.failure(rank, operation, error))
    }

    /// Returns the error that a failed transfer means.
    fn failure(&self, rank: usize, operation: Operation, error: std::io::Error) -> CollectiveError {
        if self.is_aborted() {
            return CollectiveError::Aborted;
        }
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                CollectiveError::TimedOut { operation, rank, after: self.deadline }
            }
            ErrorKind::UnexpectedEof
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe
            | ErrorKind::NotConnected => match self.was_told_of_an_abort(rank) {
                true => CollectiveError::Aborted,
                false => CollectiveError::Closed { rank },
            },
            _ => CollectiveError::Io { doing: "the connection between the ranks", source: error },
        }
    }

    /// Returns whether a rank's connection ended because of an abort. If so, rank 0 has told the
    /// other ranks.
    fn was_told_of_an_abort(&self, rank: usize) -> bool {
        let abort = &self.abort[rank - self.first];
        if abort.set_read_timeout(Some(ABORT_WAIT)).is_err() || !has_abort(abort) {
            return false;
        }
        if self.first != 0 {
            // The thread that watches this connection may be behind, or in the middle of telling
            // the other ranks. They must have been told before this rank closes the connections.
            self.abort();
            while !self.is_aborted() {
                thread::sleep(POLL_INTERVAL);
            }
        }
        true
    }

    /// Ends every wait on these connections, at both ends.
    pub(super) fn close(&self) {
        for stream in self.data.iter().chain(&self.abort) {
            // This fails only for a connection that has ended.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Abort for Links {
    fn abort(&self) {
        if self.aborting.swap(true, Ordering::AcqRel) {
            return;
        }
        for mut abort in &self.abort {
            // This fails only for a rank that has ended.
            let _ = abort.write_all(&[ABORTED]);
        }
        // The thread that waits for other ranks may close all connections as soon as it sees this.
        self.aborted.store(true, Ordering::Release);
        self.close();
    }
}

/// Waits for the message on a connection for aborts. Returns false if the connection ends without
/// it. The message stays in the socket, so that every thread that waits for it sees it.
fn has_abort(abort: &TcpStream) -> bool {
    let mut byte = [0];
    loop {
        match abort.peek(&mut byte) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            read => return matches!(read, Ok(1)) && byte[0] == ABORTED,
        }
    }
}

/// Starts the threads of rank 0 that pass an abort on, one for each other rank. They end when the
/// links are closed.
pub(super) fn watch_aborts(links: &Arc<Links>) -> std::io::Result<Vec<JoinHandle<()>>> {
    let watcher = |index: usize| {
        let links = links.clone();
        thread::Builder::new().name("abort".into()).stack_size(STACK).spawn(move || {
            if has_abort(&links.abort[index]) {
                links.abort();
            }
        })
    };
    let watchers: std::io::Result<Vec<_>> = (0..links.abort.len()).map(watcher).collect();
    if watchers.is_err() {
        // This ends the threads that have been started.
        links.close();
    }
    watchers
}
