//! The connections of one rank, and how they end.
//!
//! Between rank 0 and each other rank there are two connections: one for values, and one for nothing but the news that the
//! group was aborted. So that news can overtake: rank 0 may be waiting for another rank, or not be waiting at all.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::collective::{Abort, CollectiveError, Operation};

/// The one thing said on the second connection.
const ABORTED: u8 = b'A';

/// How long that byte is waited for once the other connection has ended. It was sent before that.
const NEWS: Duration = Duration::from_millis(500);

/// The stack of a thread that reads one byte and closes sockets.
const STACK: usize = 64 << 10;

/// All connections of one rank: to rank 0, or on rank 0 to rank 1, 2, ….
pub(super) struct Links {
    data: Vec<TcpStream>,
    news: Vec<TcpStream>,
    aborted: AtomicBool,
    /// On rank 0: from which connections for news nothing more will come.
    heard: Vec<AtomicBool>,
    /// The rank at the other end of the first connection.
    first: usize,
    deadline: Duration,
}

impl Links {
    /// `data` and `news` in the order of the ranks at their ends, beginning with `first`.
    pub(super) fn new(
        data: Vec<TcpStream>,
        news: Vec<TcpStream>,
        first: usize,
        deadline: Duration,
    ) -> std::io::Result<Arc<Links>> {
        // Zero would mean no limit to the system.
        let limit = deadline.max(Duration::from_millis(1));
        for stream in &data {
            stream.set_nonblocking(false)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(limit))?;
            stream.set_write_timeout(Some(limit))?;
        }
        for stream in &news {
            stream.set_nonblocking(false)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(None)?;
            stream.set_write_timeout(Some(NEWS))?;
        }
        let heard = news.iter().map(|_| AtomicBool::new(false)).collect();
        Ok(Arc::new(Links { data, news, aborted: AtomicBool::new(false), heard, first, deadline }))
    }

    /// The ranks at the other ends, in their order.
    pub(super) fn ranks(&self) -> std::ops::Range<usize> {
        self.first..self.first + self.data.len()
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }

    /// Sends to a rank.
    pub(super) fn send(
        &self,
        rank: usize,
        bytes: &[u8],
        operation: Operation,
    ) -> Result<(), CollectiveError> {
        let sent = (&self.data[rank - self.first]).write_all(bytes);
        sent.map_err(|error| self.failure(rank, operation, error))
    }

    /// Fills `bytes` with what a rank sends.
    pub(super) fn receive(
        &self,
        rank: usize,
        bytes: &mut [u8],
        operation: Operation,
    ) -> Result<(), CollectiveError> {
        let received = (&self.data[rank - self.first]).read_exact(bytes);
        received.map_err(|error| self.failure(rank, operation, error))
    }

    /// What a failed transfer means.
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

    /// Whether a rank's connection ended because of an abort.
    fn was_told_of_an_abort(&self, rank: usize) -> bool {
        let index = rank - self.first;
        if self.first != 0 {
            // The thread that listens to this rank may be a moment behind.
            let since = Instant::now();
            while !self.heard[index].load(Ordering::Acquire) && since.elapsed() < NEWS {
                thread::sleep(Duration::from_millis(1));
            }
            return self.is_aborted();
        }
        let mut news = &self.news[index];
        let mut byte = [0];
        let told = news.set_read_timeout(Some(NEWS)).is_ok() && news.read_exact(&mut byte).is_ok();
        told && byte[0] == ABORTED
    }

    /// Ends every wait on these connections, also at their other ends.
    pub(super) fn close(&self) {
        for stream in self.data.iter().chain(&self.news) {
            // Fails only if it has ended already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Abort for Links {
    fn abort(&self) {
        if self.aborted.swap(true, Ordering::AcqRel) {
            return;
        }
        for mut news in &self.news {
            // A rank that cannot be told any more has ended.
            let _ = news.write_all(&[ABORTED]);
        }
        self.close();
    }
}

/// Rank 0's threads that pass an abort on, one for each other rank. They end when the links are closed.
pub(super) fn watch(links: &Arc<Links>) -> std::io::Result<Vec<JoinHandle<()>>> {
    let watcher = |index: usize| {
        let links = links.clone();
        thread::Builder::new().name("abort".into()).stack_size(STACK).spawn(move || {
            let mut byte = [0];
            if (&links.news[index]).read_exact(&mut byte).is_ok() && byte[0] == ABORTED {
                links.abort();
            }
            links.heard[index].store(true, Ordering::Release);
        })
    };
    let watchers: std::io::Result<Vec<_>> = (0..links.news.len()).map(watcher).collect();
    if watchers.is_err() {
        // Or those that were started would stay.
        links.close();
    }
    watchers
}
