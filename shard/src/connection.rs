//! The socket to the router.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use millrace_proto::FrameError;

use crate::Error;
use crate::options::Address;

/// A stream in both directions.
pub(crate) trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// Connects to the router.
pub(crate) fn connect(address: &Address) -> Result<Box<dyn Stream>, Error> {
    open(address).map_err(|source| Error::Connect { address: address.to_string(), source })
}

fn open(address: &Address) -> io::Result<Box<dyn Stream>> {
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
