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
use std::time::{Duration, Instant};

use crate::collective::abort::Abort;
use crate::collective::{CollectiveError, Operation};

/// The only message on a connection for aborts.
const ABORTED: u8 = b'A';

/// Time that a rank waits for the abort message once the connection for values has ended. The
/// message was sent before that.
const ABORT_WAIT: Duration = Duration::from_millis(500);

/// Stack size of a thread that reads one byte and closes sockets.
const STACK: usize = 64 << 10;

/// All connections of one rank: to rank 0, or on rank 0 to ranks 1, 2, ….
pub(super) struct Links {
    data: Vec<TcpStream>,
    abort: Vec<TcpStream>,
    /// Whether an abort has begun.
    aborting: AtomicBool,
    /// Whether the other ranks have been told of an abort.
    aborted: AtomicBool,
    /// For each connection for aborts on rank 0, whether its reader has ended.
    abort_read: Vec<AtomicBool>,
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
        let abort_read = abort.iter().map(|_| AtomicBool::new(false)).collect();
        let (aborting, aborted) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Arc::new(Links { data, abort, aborting, aborted, abort_read, first, deadline }))
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

    /// Returns whether a rank's connection ended because of an abort.
    fn was_told_of_an_abort(&self, rank: usize) -> bool {
        let index = rank - self.first;
        if self.first != 0 {
            // The thread that reads the abort of this rank may be a moment behind.
            let since = Instant::now();
            while !self.abort_read[index].load(Ordering::Acquire) && since.elapsed() < ABORT_WAIT {
                thread::sleep(Duration::from_millis(1));
            }
            return self.is_aborted();
        }
        let mut abort = &self.abort[index];
        let mut byte = [0];
        let told = abort.set_read_timeout(Some(ABORT_WAIT)).is_ok() && abort.read_exact(&mut byte).is_ok();
        told && byte[0] == ABORTED
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

/// Starts the threads of rank 0 that pass an abort on, one for each other rank. They end when the
/// links are closed.
pub(super) fn watch_aborts(links: &Arc<Links>) -> std::io::Result<Vec<JoinHandle<()>>> {
    let watcher = |index: usize| {
        let links = links.clone();
        thread::Builder::new().name("abort".into()).stack_size(STACK).spawn(move || {
            let mut byte = [0];
            if (&links.abort[index]).read_exact(&mut byte).is_ok() && byte[0] == ABORTED {
                links.abort();
            }
            links.abort_read[index].store(true, Ordering::Release);
        })
    };
    let watchers: std::io::Result<Vec<_>> = (0..links.abort.len()).map(watcher).collect();
    if watchers.is_err() {
        // This ends the threads that have been started.
        links.close();
    }
    watchers
}
