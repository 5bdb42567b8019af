//! Forming a group: rank 0 listens, and admits connections that know the token.
//!
//! A rank connects and sends a hello message, and rank 0 admits or refuses it. The rank then
//! connects a second time, for aborts. Rank 0 tells it on the first connection when all ranks have
//! joined.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::collective::address::GroupToken;
use crate::collective::{CollectiveError, Operation};

/// Time that a connection has to send its hello message. A rank whose machine stops for some
/// seconds must not be turned away, and silent connections need no shorter limit, because new ones
/// replace them ([`MAX_PENDING`]).
const HELLO_TIMEOUT: Duration = Duration::from_secs(60);

/// The most connections that have not sent their hello message. A further connection replaces the
/// oldest one: a rank sends its hello at once, so the connections that have been silent for longest
/// are the least likely to be ranks.
const MAX_PENDING: usize = 256;

/// The number of connections that are accepted before the pending ones are read again. Each
/// connection is read several times before it can be replaced.
const ACCEPT_BATCH: usize = MAX_PENDING / 4;

/// Pause of rank 0 between two looks at the connections.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The purpose of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Purpose {
    Data = 1,
    Abort = 2,
}

// The answers of rank 0: one byte for the kind, and four bytes for a number.
const WELCOME: u8 = 1;
const READY: u8 = 2;
const WORLD_SIZE: u8 = 3;
const TAKEN: u8 = 4;
const ANSWER: usize = 5;

/// Length of a hello message in bytes: token, purpose, rank and world size.
const HELLO: usize = GroupToken::LEN + 1 + 4 + 4;

fn hello(token: GroupToken, purpose: Purpose, rank: usize, world_size: usize) -> [u8; HELLO] {
    let mut hello = [0; HELLO];
    hello[..GroupToken::LEN].copy_from_slice(&token.bytes());
    hello[GroupToken::LEN] = purpose as u8;
    hello[GroupToken::LEN + 1..][..4].copy_from_slice(&(rank as u32).to_le_bytes());
    hello[GroupToken::LEN + 5..].copy_from_slice(&(world_size as u32).to_le_bytes());
    hello
}

fn answer(kind: u8, value: u32) -> [u8; ANSWER] {
    let [a, b, c, d] = value.to_le_bytes();
    [kind, a, b, c, d]
}

/// A connection that has not sent its hello message.
struct PendingConnection {
    stream: TcpStream,
    since: Instant,
    hello: [u8; HELLO],
    read: usize,
}

impl PendingConnection {
    fn new(stream: TcpStream) -> std::io::Result<PendingConnection> {
        stream.set_nonblocking(true)?;
        Ok(PendingConnection { stream, since: Instant::now(), hello: [0; HELLO], read: 0 })
    }

    /// Reads the available part of the hello message. Returns whether the message is complete, or
    /// `None` if the connection must be dropped.
    fn read_hello(&mut self) -> Option<bool> {
        while self.read < HELLO {
            match self.stream.read(&mut self.hello[self.read..]) {
                Ok(0) => return None,
                Ok(read) => self.read += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return (self.since.elapsed() < HELLO_TIMEOUT).then_some(false);
                }
                Err(_) => return None,
            }
        }
        Some(true)
    }
}

/// The ranks that have joined so far. The connections of rank 1 come first.
struct JoinedRanks {
    token: GroupToken,
    world_size: usize,
    data: Vec<Option<TcpStream>>,
    abort: Vec<Option<TcpStream>>,
}

impl JoinedRanks {
    /// Admits the connection or refuses it. Errors of a refused connection do not matter.
    fn admit(&mut self, PendingConnection { stream, hello, .. }: PendingConnection) {
        let (Some((token, rest)), mut to) = (hello.split_first_chunk(), &stream) else { return };
        if !self.token.matches(token) {
            return;
        }
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| rest[at + i])) as usize;
        let (purpose, rank, world_size) = (rest[0], word(1), word(5));
        let mut refuse = |kind, value: usize| {
            let _ = to.write_all(&answer(kind, value as u32));
            let _ = to.shutdown(Shutdown::Write);
        };
        if world_size != self.world_size {
            return refuse(WORLD_SIZE, self.world_size);
        }
        let places = match purpose {
            p if p == Purpose::Data as u8 => &mut self.data,
            p if p == Purpose::Abort as u8 => &mut self.abort,
            _ => return,
        };
        match rank.checked_sub(1).and_then(|index| places.get_mut(index)) {
            Some(place @ None) => {
                if (&stream).write_all(&answer(WELCOME, 0)).is_ok() {
                    *place = Some(stream);
                }
            }
            _ => refuse(TAKEN, rank),
        }
    }

    /// Returns the first rank that has not joined.
    fn missing(&self) -> Option<usize> {
        let has_joined = |index: usize| self.data[index].is_some() && self.abort[index].is_some();
        (0..self.data.len()).find(|&index| !has_joined(index)).map(|index| index + 1)
    }
}

/// Waits until all ranks have joined, on rank 0. Returns their connections for values and for
/// aborts, those of rank 1 first.
pub(super) fn accept_all(
    listener: &TcpListener,
    token: GroupToken,
    world_size: usize,
    deadline: Duration,
) -> Result<(Vec<TcpStream>, Vec<TcpStream>), CollectiveError> {
    let since = Instant::now();
    let nobody = || (1..world_size).map(|_| None).collect();
    let mut joined = JoinedRanks { token, world_size, data: nobody(), abort: nobody() };
    let mut pending = VecDeque::new();
    while let Some(rank) = joined.missing() {
        accept(listener, &mut pending)?;
        // Each connection is read once, in the order of arrival.
        for _ in 0..pending.len() {
            let Some(mut connection): Option<PendingConnection> = pending.pop_front() else { break };
            match connection.read_hello() {
                Some(false) => pending.push_back(connection),
                Some(true) => joined.admit(connection),
                None => {}
            }
        }
        if since.elapsed() >= deadline {
            return Err(CollectiveError::TimedOut {
                operation: Operation::Rendezvous,
                rank,
                after: deadline,
            });
        }
        thread::sleep(POLL_INTERVAL);
    }
    let JoinedRanks { data, abort, .. } = joined;
    let data: Vec<_> = data.into_iter().flatten().collect();
    for (index, mut stream) in data.iter().enumerate() {
        let told = stream.write_all(&answer(READY, 0));
        told.map_err(|_| CollectiveError::Closed { rank: index + 1 })?;
    }
    Ok((data, abort.into_iter().flatten().collect()))
}

/// Accepts some of the new connections. The oldest come first in `pending`.
fn accept(listener: &TcpListener, pending: &mut VecDeque<PendingConnection>) -> Result<(), CollectiveError> {
    for _ in 0..ACCEPT_BATCH {
        match listener.accept() {
            Ok((stream, _)) => {
                if pending.len() >= MAX_PENDING {
                    pending.pop_front();
                }
                pending.extend(PendingConnection::new(stream));
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock => return Ok(()),
                // The connection has been closed before it was accepted.
                ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::Interrupted => {}
                _ => return Err(CollectiveError::io("accepting the connections of other ranks")(error)),
            },
        }
    }
    Ok(())
}

/// Joins the group, on another rank: connects twice and waits until all ranks have joined. Returns
/// the connections for values and for aborts.
pub(super) fn join(
    to: SocketAddr,
    token: GroupToken,
    rank: usize,
    world_size: usize,
    deadline: Duration,
) -> Result<(TcpStream, TcpStream), CollectiveError> {
    let since = Instant::now();
    let late = || CollectiveError::TimedOut { operation: Operation::Rendezvous, rank: 0, after: deadline };
    let left = || match deadline.checked_sub(since.elapsed()) {
        Some(left) if !left.is_zero() => Ok(left),
        _ => Err(late()),
    };
    let failure = |error: std::io::Error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => late(),
        ErrorKind::ConnectionRefused
        | ErrorKind::ConnectionReset
        | ErrorKind::BrokenPipe
        | ErrorKind::UnexpectedEof => CollectiveError::Gone,
        _ => CollectiveError::io("connecting to rank 0")(error),
    };
    let greet = |purpose| {
        let mut stream = TcpStream::connect_timeout(&to, left()?).map_err(failure)?;
        stream.set_write_timeout(Some(left()?)).map_err(failure)?;
        stream.write_all(&hello(token, purpose, rank, world_size)).map_err(failure)?;
        Ok(stream)
    };
    let listen = |mut stream: &TcpStream, expected: u8| {
        let mut answer = [0; ANSWER];
        stream.set_read_timeout(Some(left()?)).map_err(failure)?;
        stream.read_exact(&mut answer).map_err(failure)?;
        let [kind, value @ ..] = answer;
        match kind {
            kind if kind == expected => Ok(()),
            WORLD_SIZE => {
                let theirs = u32::from_le_bytes(value) as usize;
                Err(CollectiveError::OtherWorldSize { ours: world_size, theirs })
            }
            TAKEN => Err(CollectiveError::Taken { rank }),
            _ => Err(CollectiveError::Address),
        }
    };
    let data = greet(Purpose::Data)?;
    listen(&data, WELCOME)?;
    let abort = greet(Purpose::Abort)?;
    listen(&abort, WELCOME)?;
    listen(&data, READY)?;
    Ok((data, abort))
}
