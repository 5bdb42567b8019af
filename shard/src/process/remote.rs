//! The connection to a router on another machine.
//!
//! The router cannot end a process on another machine. Therefore the process ends by itself when
//! the connection ends, whatever it is computing. A process that hangs altogether stops writing its
//! heartbeat, and its parent kills it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::thread;
use std::time::Duration;

use millrace_proto::handshake::{self, HandshakeError, Secret};
use millrace_proto::liveness;

use crate::Error;
use crate::process::connection::Connection;

/// Pause after the first failed attempt to connect. The pause doubles with each further attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Time limit of one attempt to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Time limit for each message of the handshake. The router may be busy with starting its own
/// ranks.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time that the process has to end in good order once the connection has ended.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);

/// A connection to a router on another machine. The process ends when the connection does.
pub(super) struct RemoteConnection(TcpStream);

/// Connects to the router at `leader` (`host:port`) and proves that this rank belongs to its group.
/// Waits while no router listens there.
///
/// # Errors
/// If the router refuses this rank, or this rank refuses the router.
pub(super) fn connect(
    leader: &str,
    secret: &Secret,
    rank: usize,
    world_size: usize,
) -> Result<RemoteConnection, Error> {
    thread::Builder::new().name("heartbeat".into()).spawn(send_heartbeats).map_err(Error::Lifeline)?;
    let (mut pause, mut is_logged) = (FIRST_PAUSE, false);
    loop {
        let why = match attempt(leader, secret, rank, world_size) {
            Ok(stream) => {
                tracing::info!("rank {rank} has joined the leader at {leader}");
                return Ok(RemoteConnection(stream));
            }
            Err(HandshakeError::Io(why)) => why,
            Err(source) => return Err(Error::Handshake { address: leader.into(), source }),
        };
        if !std::mem::replace(&mut is_logged, true) {
            tracing::info!("rank {rank} waits for the leader at {leader}: {why}");
        }
        thread::sleep(pause);
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

/// Writes a heartbeat to standard output, which the parent reads, until the parent closes the pipe.
fn send_heartbeats() {
    let mut parent = io::stdout();
    while parent.write_all(b".").and_then(|()| parent.flush()).is_ok() {
        thread::sleep(liveness::HEARTBEAT);
    }
}

fn attempt(
    leader: &str,
    secret: &Secret,
    rank: usize,
    world_size: usize,
) -> Result<TcpStream, HandshakeError> {
    let mut stream = connect_to_any_address(leader)?;
    // Messages are small, and the other side waits for each of them.
    stream.set_nodelay(true)?;
    liveness::watch(&stream)?;
    stream.set_read_timeout(Some(HANDSHAKE_TIMEOUT))?;
    stream.set_write_timeout(Some(HANDSHAKE_TIMEOUT))?;
    handshake::introduce(&mut stream, secret, rank, world_size)?;
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    Ok(stream)
}

/// Connects to the first address of `leader` that answers. Each call looks up the name again,
/// because the name may stand for another address by then.
fn connect_to_any_address(leader: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in leader.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl Connection for RemoteConnection {
    fn reader(&self) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(EndingReader(self.0.try_clone()?)))
    }

    fn writer(&self) -> io::Result<Box<dyn Write + Send>> {
        Ok(Box::new(self.0.try_clone()?))
    }
}

/// The reading end of the connection, which makes sure that the process ends soon after the
/// connection.
///
/// The shard normally ends by itself when it reads the end of the stream. It cannot do so while it
/// computes, or while it waits for a rank on a machine that is also out of reach. Therefore the
/// reader ends the process after [`SHUTDOWN_GRACE`].
struct EndingReader(TcpStream);

impl Read for EndingReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(out);
        let has_ended = match &read {
            Ok(0) => !out.is_empty(),
            Ok(_) => false,
            Err(error) => error.kind() != ErrorKind::Interrupted,
        };
        if has_ended {
            let end_later = || {
                thread::sleep(SHUTDOWN_GRACE);
                std::process::exit(0);
            };
            // Without a thread for the timer, the process ends at once.
            if thread::Builder::new().name("shutdown".into()).spawn(end_later).is_err() {
                std::process::exit(0);
            }
        }
        read
    }
}
