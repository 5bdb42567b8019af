//! How the ranks come together: rank 0 listens, and lets in who knows the token.
//!
//! A joiner connects, says hello, is welcomed or refused; connects a second time for the news of an abort; and is told on the
//! first connection when all have come.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::collective::address::Token;
use crate::collective::{CollectiveError, Operation};

/// How long a connection may take to say hello.
pub(super) const HELLO_WITHIN: Duration = Duration::from_secs(5);

/// Connections that have not said hello yet, at most. A further one takes the place of the oldest: a rank says hello at
/// once, so that those who have been silent for longest are the least likely to be ranks.
const MAX_STRANGERS: usize = 256;

/// Connections that are taken at once, before those that are there are listened to again. Each stays for several turns, in
/// which a rank is heard.
const TAKEN_AT_ONCE: usize = MAX_STRANGERS / 4;

/// How long rank 0 sleeps when nothing has come.
const PAUSE: Duration = Duration::from_millis(1);

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Purpose {
    Data = 1,
    News = 2,
}

/// What rank 0 answers: one byte, and four that belong to it.
const WELCOME: u8 = 1;
const READY: u8 = 2;
const WORLD_SIZE: u8 = 3;
const TAKEN: u8 = 4;
const ANSWER: usize = 5;

/// The first bytes on a connection: token, purpose, rank and world size.
const HELLO: usize = Token::LEN + 1 + 4 + 4;

fn hello(token: Token, purpose: Purpose, rank: usize, world_size: usize) -> [u8; HELLO] {
    let mut hello = [0; HELLO];
    hello[..Token::LEN].copy_from_slice(&token.bytes());
    hello[Token::LEN] = purpose as u8;
    hello[Token::LEN + 1..][..4].copy_from_slice(&(rank as u32).to_le_bytes());
    hello[Token::LEN + 5..].copy_from_slice(&(world_size as u32).to_le_bytes());
    hello
}

fn answer(kind: u8, value: u32) -> [u8; ANSWER] {
    let [a, b, c, d] = value.to_le_bytes();
    [kind, a, b, c, d]
}

/// A connection that has not said hello yet.
struct Stranger {
    stream: TcpStream,
    since: Instant,
    hello: [u8; HELLO],
    read: usize,
}

impl Stranger {
    fn new(stream: TcpStream) -> std::io::Result<Stranger> {
        stream.set_nonblocking(true)?;
        Ok(Stranger { stream, since: Instant::now(), hello: [0; HELLO], read: 0 })
    }

    /// Reads what there is of the hello: whether it is complete, and `None` to drop the connection.
    fn listen(&mut self) -> Option<bool> {
        while self.read < HELLO {
            match self.stream.read(&mut self.hello[self.read..]) {
                Ok(0) => return None,
                Ok(read) => self.read += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return (self.since.elapsed() < HELLO_WITHIN).then_some(false);
                }
                Err(_) => return None,
            }
        }
        Some(true)
    }
}

/// The group as far as it has come; the connections of rank 1 come first.
struct Arrivals {
    token: Token,
    world_size: usize,
    data: Vec<Option<TcpStream>>,
    news: Vec<Option<TcpStream>>,
}

impl Arrivals {
    /// Takes the connection in or refuses it. What a refused one does with the answer does not matter here.
    fn admit(&mut self, Stranger { stream, hello, .. }: Stranger) {
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
            p if p == Purpose::News as u8 => &mut self.news,
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

    /// The first rank that has not come.
    fn missing(&self) -> Option<usize> {
        let has_come = |index: usize| self.data[index].is_some() && self.news[index].is_some();
        (0..self.data.len()).find(|&index| !has_come(index)).map(|index| index + 1)
    }
}

/// Rank 0: waits until all have come. Returns their connections for values and for news, those of rank 1 first.
pub(super) fn gather(
    listener: &TcpListener,
    token: Token,
    world_size: usize,
    deadline: Duration,
) -> Result<(Vec<TcpStream>, Vec<TcpStream>), CollectiveError> {
    let since = Instant::now();
    let nobody = || (1..world_size).map(|_| None).collect();
    let mut arrivals = Arrivals { token, world_size, data: nobody(), news: nobody() };
    let mut strangers = VecDeque::new();
    while let Some(rank) = arrivals.missing() {
        accept(listener, &mut strangers)?;
        // Each once, in the order in which they came.
        for _ in 0..strangers.len() {
            let Some(mut stranger): Option<Stranger> = strangers.pop_front() else { break };
            match stranger.listen() {
                Some(false) => strangers.push_back(stranger),
                Some(true) => arrivals.admit(stranger),
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
        thread::sleep(PAUSE);
    }
    let Arrivals { data, news, .. } = arrivals;
    let data: Vec<_> = data.into_iter().flatten().collect();
    for (index, mut stream) in data.iter().enumerate() {
        let told = stream.write_all(&answer(READY, 0));
        told.map_err(|_| CollectiveError::Closed { rank: index + 1 })?;
    }
    Ok((data, news.into_iter().flatten().collect()))
}

/// Takes some of the connections that there are. The oldest come first in `strangers`.
fn accept(listener: &TcpListener, strangers: &mut VecDeque<Stranger>) -> Result<(), CollectiveError> {
    for _ in 0..TAKEN_AT_ONCE {
        match listener.accept() {
            Ok((stream, _)) => {
                if strangers.len() >= MAX_STRANGERS {
                    strangers.pop_front();
                }
                strangers.extend(Stranger::new(stream));
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock => return Ok(()),
                // One that has left before it was taken.
                ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::Interrupted => {}
                _ => return Err(CollectiveError::io("taking the connections of other ranks")(error)),
            },
        }
    }
    Ok(())
}

/// Another rank: connects twice and waits until all have come. Returns the connections for values and for news.
pub(super) fn call(
    to: SocketAddr,
    token: Token,
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
    let news = greet(Purpose::News)?;
    listen(&news, WELCOME)?;
    listen(&data, READY)?;
    Ok((data, news))
}
