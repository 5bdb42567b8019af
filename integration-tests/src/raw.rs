//! Raw requests over a socket that no HTTP client would send.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use crate::wait_limit;

/// The result of a raw request.
#[derive(Debug, PartialEq, Eq)]
pub enum AttackOutcome {
    /// A response with this status.
    Status(u16),
    /// The connection was closed without a response.
    Closed,
    /// No response and no end of the connection.
    TimedOut,
}

/// A raw request.
#[derive(Debug, Clone)]
pub enum Attack {
    /// Sends these bytes and waits.
    Write(Vec<u8>),
    /// Sends these bytes and closes the writing side.
    HalfClose(Vec<u8>),
    /// Sends these bytes, and then single bytes for as long as the server accepts them.
    SendSlowly(Vec<u8>),
    /// Sends these bytes and disconnects at once.
    Disconnect(Vec<u8>),
}

/// Sends a raw request to the server at this address.
pub fn attack(address: &str, attack: &Attack) -> AttackOutcome {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    stream.set_write_timeout(Some(wait_limit())).unwrap();
    let (Attack::Write(bytes)
    | Attack::HalfClose(bytes)
    | Attack::SendSlowly(bytes)
    | Attack::Disconnect(bytes)) = attack;
    // A server may close the connection before it has read all bytes.
    let _ = stream.write_all(bytes);
    match attack {
        Attack::Disconnect(_) => return AttackOutcome::Closed,
        Attack::HalfClose(_) => drop(stream.shutdown(Shutdown::Write)),
        Attack::Write(_) | Attack::SendSlowly(_) => {}
    }
    let (since, mut answer) = (Instant::now(), Vec::new());
    while since.elapsed() < wait_limit() {
        let mut buffer = [0; 4096];
        match stream.read(&mut buffer) {
            Ok(0) => return status(&answer).map_or(AttackOutcome::Closed, AttackOutcome::Status),
            Ok(n) => answer.extend(&buffer[..n]),
            Err(error)
                if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            Err(_) => return status(&answer).map_or(AttackOutcome::Closed, AttackOutcome::Status),
        }
        if let Some(status) = status(&answer) {
            return AttackOutcome::Status(status);
        }
        if matches!(attack, Attack::SendSlowly(_)) {
            let _ = stream.write_all(b"a");
        }
    }
    AttackOutcome::TimedOut
}

fn status(answer: &[u8]) -> Option<u16> {
    let text = std::str::from_utf8(answer.get(..12)?).ok()?;
    text.strip_prefix("HTTP/1.")?.get(2..)?.parse().ok()
}

/// Returns a POST request with exactly this body.
pub fn raw_post(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}
