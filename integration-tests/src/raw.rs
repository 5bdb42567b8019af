//! Bytes to and from a socket, for requests that no HTTP client would send.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// How long a server may take to answer or to close.
const PATIENCE: Duration = Duration::from_secs(60);

/// What comes back.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A response with this status.
    Status(u16),
    /// The connection was closed without one.
    Closed,
    /// Neither.
    Hangs,
}

/// What is written, and how.
#[derive(Debug, Clone)]
pub enum Attack {
    /// These bytes, and then wait.
    Write(Vec<u8>),
    /// These bytes, and then say that no more will come.
    HalfClose(Vec<u8>),
    /// These bytes, and then one more from time to time for as long as the server takes them.
    Dribble(Vec<u8>),
    /// These bytes, and go away at once.
    Leave(Vec<u8>),
}

/// Carries out an attack on the server at this address.
pub fn attack(address: &str, attack: &Attack) -> Outcome {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let (Attack::Write(bytes) | Attack::HalfClose(bytes) | Attack::Dribble(bytes) | Attack::Leave(bytes)) =
        attack;
    // A server that has heard enough may close before the end.
    let _ = stream.write_all(bytes);
    match attack {
        Attack::Leave(_) => return Outcome::Closed,
        Attack::HalfClose(_) => drop(stream.shutdown(Shutdown::Write)),
        Attack::Write(_) | Attack::Dribble(_) => {}
    }
    let (since, mut answer) = (Instant::now(), Vec::new());
    while since.elapsed() < PATIENCE {
        let mut buffer = [0; 4096];
        match stream.read(&mut buffer) {
            Ok(0) => return status(&answer).map_or(Outcome::Closed, Outcome::Status),
            Ok(n) => answer.extend(&buffer[..n]),
            Err(error)
                if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            Err(_) => return status(&answer).map_or(Outcome::Closed, Outcome::Status),
        }
        if let Some(status) = status(&answer) {
            return Outcome::Status(status);
        }
        if matches!(attack, Attack::Dribble(_)) {
            let _ = stream.write_all(b"a");
        }
    }
    Outcome::Hangs
}

fn status(answer: &[u8]) -> Option<u16> {
    let text = std::str::from_utf8(answer.get(..12)?).ok()?;
    text.strip_prefix("HTTP/1.")?.get(2..)?.parse().ok()
}

/// A POST of this body, byte for byte.
pub fn raw_post(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}
