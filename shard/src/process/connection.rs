//! A stream to the router, in both directions.

use std::io::{self, Read, Write};
use std::net::TcpStream;

/// A stream in both directions, whose two ends can be given to different threads.
pub trait Connection {
    /// Returns the reading end.
    ///
    /// # Errors
    /// The operating system's error, if the stream cannot be duplicated.
    fn reader(&self) -> io::Result<Box<dyn Read + Send>>;

    /// Returns the writing end.
    ///
    /// # Errors
    /// The operating system's error, if the stream cannot be duplicated.
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
