//! The socket to the router.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use millrace_proto::{FrameError, FromShard, Pong, ToShard, frame, from_shard, to_shard};

use crate::collective::Aborter;
use crate::options::{Address, ShardOptions};
use crate::{Error, remote};

/// Messages that are read before the ones ahead of them are answered, at most. The router has two steps in flight.
const READ_AHEAD: usize = 4;

/// A stream in both directions, whose ends can be given to threads of their own.
pub trait Connection {
    /// The reading end.
    ///
    /// # Errors
    /// The system's.
    fn reader(&self) -> io::Result<Box<dyn Read + Send>>;

    /// The writing end.
    ///
    /// # Errors
    /// The system's.
    fn writer(&self) -> io::Result<Box<dyn Write + Send>>;
}

#[cfg(unix)]
impl Connection for std::os::unix::net::UnixStream {
    fn reader(&self) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(self.try_clone()?))
    }

    fn writer(&self) -> io::Result<Box<dyn Write + Send>> {
        Ok(Box::new(self.try_clone()?))
    }
}

impl Connection for TcpStream {
    fn reader(&self) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(self.try_clone()?))
    }

    fn writer(&self) -> io::Result<Box<dyn Write + Send>> {
        Ok(Box::new(self.try_clone()?))
    }
}

/// Connects to the router.
pub(crate) fn connect(options: &ShardOptions) -> Result<Box<dyn Connection>, Error> {
    let ShardOptions { address, secret, rank, world_size, .. } = options;
    let to = address.to_string();
    match (address, secret) {
        #[cfg(unix)]
        (Address::Unix(path), _) => match std::os::unix::net::UnixStream::connect(path) {
            Ok(stream) => Ok(Box::new(stream)),
            Err(source) => Err(Error::Connect { address: to, source }),
        },
        #[cfg(not(unix))]
        (Address::Unix(_), _) => {
            let source = io::Error::new(ErrorKind::Unsupported, "this system has no Unix sockets");
            Err(Error::Connect { address: to, source })
        }
        (Address::Tcp(leader), Some(secret)) => {
            Ok(Box::new(remote::connect(leader, secret, *rank, *world_size)?))
        }
        (Address::Tcp(address), None) => {
            // Answers are small and waited for.
            let stream = TcpStream::connect(address).and_then(|stream| {
                stream.set_nodelay(true)?;
                Ok(stream)
            });
            Ok(Box::new(stream.map_err(|source| Error::Connect { address: to, source })?))
        }
    }
}

/// What a shard says to the router and hears of it. A thread reads ahead, so that the next step is there when the one
/// before it ends, and answers pings whatever is being computed.
pub(crate) struct Router {
    outbox: Outbox,
    inbox: Receiver<Received>,
    collectives: Arc<Mutex<Vec<Aborter>>>,
}

/// A message, and when it was there.
type Received = Result<(to_shard::Message, Instant), Error>;

impl Router {
    pub(crate) fn new(connection: &(impl Connection + ?Sized)) -> Result<Self, Error> {
        let from = connection.reader().map_err(FrameError::Io)?;
        let outbox = Outbox(Arc::new(Mutex::new(connection.writer().map_err(FrameError::Io)?)));
        let (sender, inbox) = mpsc::sync_channel(READ_AHEAD);
        let collectives = Arc::new(Mutex::new(Vec::<Aborter>::new()));
        let (pongs, others) = (outbox.clone(), collectives.clone());
        let reader = thread::Builder::new().name("reader".into()).spawn(move || {
            read_all(from, &pongs, &sender);
            // Whoever waits for another rank would otherwise learn last that there is nothing to wait for.
            others.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(Aborter::abort);
        });
        reader.map_err(Error::Reader)?;
        Ok(Router { outbox, inbox, collectives })
    }

    /// Sends a message.
    pub(crate) fn send(&self, message: from_shard::Message) -> Result<(), Error> {
        self.outbox.send(message)
    }

    /// The next message that is not a ping, and when it came.
    pub(crate) fn receive(&self) -> Received {
        // The reader says why before it ends.
        self.inbox.recv().unwrap_or(Err(FrameError::Closed.into()))
    }

    /// Ends these collectives when the router goes away.
    pub(crate) fn abort_with_it(&self, collectives: Aborter) {
        self.collectives.lock().unwrap_or_else(PoisonError::into_inner).push(collectives);
    }
}

/// The writing end, shared by the threads of a shard.
#[derive(Clone)]
struct Outbox(Arc<Mutex<Box<dyn Write + Send>>>);

impl Outbox {
    fn send(&self, message: from_shard::Message) -> Result<(), Error> {
        let mut router = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(frame::write(&mut *router, &FromShard { message: Some(message) })?)
    }
}

/// Ends with the connection, or when nobody takes its messages any more.
fn read_all(mut from: Box<dyn Read + Send>, pongs: &Outbox, to: &SyncSender<Received>) {
    let mut scratch = Vec::new();
    loop {
        let received = match frame::read::<ToShard>(&mut from, &mut scratch) {
            Ok(ToShard { message: Some(to_shard::Message::Ping(_)) }) => {
                match pongs.send(from_shard::Message::Pong(Pong {})) {
                    Ok(()) => continue,
                    Err(error) => Err(error),
                }
            }
            Ok(ToShard { message: Some(message) }) => Ok((message, Instant::now())),
            Ok(ToShard { message: None }) => Err(Error::EmptyMessage),
            Err(error) => Err(error.into()),
        };
        let last = received.is_err();
        if to.send(received).is_err() || last {
            return;
        }
    }
}

/// The router has ended, or closed the connection: nothing is left to do, and nobody to tell.
pub(crate) fn is_hang_up(error: &Error) -> bool {
    match error {
        Error::Connection(FrameError::Closed) => true,
        Error::Connection(FrameError::Io(error)) => matches!(
            error.kind(),
            ErrorKind::BrokenPipe
                | ErrorKind::ConnectionReset
                | ErrorKind::ConnectionAborted
                | ErrorKind::UnexpectedEof
        ),
        _ => false,
    }
}
