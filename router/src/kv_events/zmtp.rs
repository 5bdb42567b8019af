//! The part of ZMTP, ZeroMQ's protocol on TCP, that publishing needs: version 3.0 without security
//! (<https://rfc.zeromq.org/spec/23/>).
//!
//! Everything that a peer sends is bounded: the size of a frame, the number of frames of a message,
//! and the time for the greeting.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Maximum size of a frame from a peer in bytes. Peers send topics and numbers.
const MAX_FRAME: usize = 4096;

/// Maximum number of frames of a message from a peer.
const MAX_FRAMES: usize = 8;

/// Maximum time that a peer may take for the greeting.
const GREETING_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time that a peer may take to receive a message.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// A message or a command from a peer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// The frames of a message.
    Message(Vec<Vec<u8>>),
    /// The body of a command.
    Command(Vec<u8>),
}

/// Exchanges greetings with a peer. `socket` is the type of this side, such as `PUB`. Returns the
/// type of the other side.
pub(super) async fn greet<S>(stream: &mut S, socket: &str) -> io::Result<String>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    timeout(GREETING_TIMEOUT, exchange_greetings(stream, socket)).await?
}

async fn exchange_greetings<S>(stream: &mut S, socket: &str) -> io::Result<String>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    // Signature, version 3.0, mechanism NULL, and zeros.
    let mut greeting = [0; 64];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10] = 3;
    greeting[12..16].copy_from_slice(b"NULL");
    stream.write_all(&greeting).await?;
    stream.flush().await?;

    let mut theirs = [0; 64];
    stream.read_exact(&mut theirs[..11]).await?;
    if theirs[0] != 0xff || theirs[9] & 1 == 0 || theirs[10] < 3 {
        return Err(invalid("the peer does not speak ZMTP 3"));
    }
    stream.read_exact(&mut theirs[11..]).await?;
    if theirs[12..32] != greeting[12..32] {
        return Err(invalid("the peer wants a security mechanism"));
    }

    let mut ready = b"\x05READY\x0bSocket-Type".to_vec();
    ready.extend_from_slice(&(socket.len() as u32).to_be_bytes());
    ready.extend_from_slice(socket.as_bytes());
    write_frame(stream, COMMAND, &ready).await?;
    stream.flush().await?;
    let Received::Command(theirs) = receive(stream).await? else {
        return Err(invalid("the peer sends a message before its READY"));
    };
    let properties = theirs.strip_prefix(b"\x05READY").ok_or_else(|| invalid("the peer is not ready"))?;
    socket_type(properties).ok_or_else(|| invalid("the peer does not name its socket type"))
}

/// The value of the property `Socket-Type`, whose name ignores case.
fn socket_type(mut properties: &[u8]) -> Option<String> {
    loop {
        let (&name_len, rest) = properties.split_first()?;
        let (name, rest) = rest.split_at_checked(name_len.into())?;
        let (value_len, rest) = rest.split_first_chunk()?;
        let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*value_len) as usize)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return String::from_utf8(value.to_vec()).ok();
        }
        properties = rest;
    }
}

/// Receives the next message or command. It must not be cancelled between two calls for the same
/// stream.
pub(super) async fn receive<R: AsyncRead + Unpin>(stream: &mut R) -> io::Result<Received> {
    let mut frames = Vec::new();
    loop {
        let flags = stream.read_u8().await?;
        let len =
            if flags & LONG == 0 { u64::from(stream.read_u8().await?) } else { stream.read_u64().await? };
        if flags > (MORE | LONG | COMMAND) || len > MAX_FRAME as u64 || frames.len() == MAX_FRAMES {
            return Err(invalid("the peer sends a frame that is malformed or too long"));
        }
        let mut body = vec![0; len as usize];
        stream.read_exact(&mut body).await?;
        if flags & COMMAND != 0 {
            return Ok(Received::Command(body));
        }
        frames.push(body);
        if flags & MORE == 0 {
            return Ok(Received::Message(frames));
        }
    }
}

/// Sends a message.
///
/// # Errors
/// An error of the stream, or the peer receives nothing for too long.
pub(super) async fn send<W: AsyncWrite + Unpin>(stream: &mut W, frames: &[&[u8]]) -> io::Result<()> {
    let send = async {
        for (index, frame) in frames.iter().enumerate() {
            let more = if index + 1 < frames.len() { MORE } else { 0 };
            write_frame(stream, more, frame).await?;
        }
        stream.flush().await
    };
    timeout(WRITE_TIMEOUT, send).await?
}

async fn write_frame<W: AsyncWrite + Unpin>(stream: &mut W, flags: u8, body: &[u8]) -> io::Result<()> {
    match u8::try_from(body.len()) {
        Ok(len) => stream.write_all(&[flags, len]).await?,
        Err(_) => {
            stream.write_u8(flags | LONG).await?;
            stream.write_u64(body.len() as u64).await?;
        }
    }
    stream.write_all(body).await
}

fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}
