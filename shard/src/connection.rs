//! The socket to the router.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::Instant;

use millrace_proto::{FrameError, ToShard, frame};

use crate::Error;
use crate::options::Address;

/// Messages that are read before the ones ahead of them are answered, at most. The router has two steps in flight.
const READ_AHEAD: usize = 4;

/// A stream in both directions, whose reading end can be given to a thread of its own.
pub trait Connection: Write {
    /// The reading end.
    ///
    /// # Errors
    /// The system's.
    fn reader(&self) -> io::Result<Box<dyn Read + Send>>;
}

#[cfg(unix)]
impl Connection for std::os::unix::net::UnixStream {
    fn reader(&self) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(self.try_clone()?))
    }
}

impl Connection for TcpStream {
    fn reader(&self) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(self.try_clone()?))
    }
}

/// A message of the router's, and when it was there.
pub(crate) type Received = Result<(ToShard, Instant), FrameError>;

/// Starts a thread that reads the router's messages, so that the next step is there when the one before it ends. It
/// ends with the connection, or when nobody takes its messages any more.
pub(crate) fn listen(router: &impl Connection) -> Result<Receiver<Received>, Error> {
    let from = router.reader().map_err(FrameError::Io)?;
    let (sender, receiver) = mpsc::sync_channel(READ_AHEAD);
    let reader = thread::Builder::new().name("reader".into()).spawn(move || read_all(from, &sender));
    reader.map_err(Error::Reader)?;
    Ok(receiver)
}

fn read_all(mut from: Box<dyn Read + Send>, to: &SyncSender<Received>) {
    let mut scratch = Vec::new();
    loop {
        let message = frame::read(&mut from, &mut scratch).map(|message| (message, Instant::now()));
        let last = message.is_err();
        if to.send(message).is_err() || last {
            return;
        }
    }
}

/// Connects to the router.
pub(crate) fn connect(address: &Address) -> Result<Box<dyn Connection>, Error> {
    open(address).map_err(|source| Error::Connect { address: address.to_string(), source })
}

impl Connection for Box<dyn Connection> {
    fn reader(&self) -> io::Result<Box<dyn Read + Send>> {
        (**self).reader()
    }
}

fn open(address: &Address) -> io::Result<Box<dyn Connection>> {
    match address {
        #[cfg(unix)]
        Address::Unix(path) => Ok(Box::new(std::os::unix::net::UnixStream::connect(path)?)),
        #[cfg(not(unix))]
        Address::Unix(_) => Err(io::Error::new(ErrorKind::Unsupported, "this system has no Unix sockets")),
        Address::Tcp(address) => {
            let stream = TcpStream::connect(address)?;
            // Answers are small and waited for.
            stream.set_nodelay(true)?;
            Ok(Box::new(stream))
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
