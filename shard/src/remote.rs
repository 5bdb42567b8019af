//! The connection to a router on another machine.
//!
//! That machine cannot end this process when it has no more use for it, so the process ends by itself when the
//! connection does, whatever it is doing. Should it stand still altogether, its parent finds that out by the beat.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::thread;
use std::time::Duration;

use millrace_proto::handshake::{self, HandshakeError, Secret};
use millrace_proto::liveness;

use crate::Error;
use crate::connection::Connection;

/// Between the first two attempts; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How long an attempt may take to reach a machine that does not answer.
const REACHED_WITHIN: Duration = Duration::from_secs(2);

/// How long a router may take over each message of the handshake. It may be starting its own ranks.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// How long the process has to end in good order once the connection has.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A connection whose end is the end of this process.
pub(crate) struct Remote(TcpStream);

/// Connects to the router at `leader` (`host:port`) and introduces this rank. While there is none, this waits for it.
///
/// # Errors
/// If the router refuses this rank, or this rank the router.
pub(crate) fn connect(
    leader: &str,
    secret: &Secret,
    rank: usize,
    world_size: usize,
) -> Result<Remote, Error> {
    thread::Builder::new().name("beat".into()).spawn(beat).map_err(Error::Lifeline)?;
    let (mut pause, mut told) = (FIRST_PAUSE, false);
    loop {
        let why = match attempt(leader, secret, rank, world_size) {
            Ok(stream) => {
                tracing::info!("rank {rank} has joined the leader at {leader}");
                return Ok(Remote(stream));
            }
            Err(HandshakeError::Io(why)) => why,
            Err(source) => return Err(Error::Handshake { address: leader.into(), source }),
        };
        if !std::mem::replace(&mut told, true) {
            tracing::info!("rank {rank} waits for the leader at {leader}: {why}");
        }
        thread::sleep(pause);
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

/// Shows the parent that this process runs, until nobody looks.
fn beat() {
    let mut parent = io::stdout();
    while parent.write_all(b".").and_then(|()| parent.flush()).is_ok() {
        thread::sleep(liveness::BEAT);
    }
}

fn attempt(
    leader: &str,
    secret: &Secret,
    rank: usize,
    world_size: usize,
) -> Result<TcpStream, HandshakeError> {
    let mut stream = reach(leader)?;
    // Answers are small and waited for.
    stream.set_nodelay(true)?;
    liveness::watch(&stream)?;
    stream.set_read_timeout(Some(ANSWERED_WITHIN))?;
    stream.set_write_timeout(Some(ANSWERED_WITHIN))?;
    handshake::introduce(&mut stream, secret, rank, world_size)?;
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    Ok(stream)
}

/// Connects to the first of the machine's addresses that answers. Its name is looked up each time: it may have moved.
fn reach(leader: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in leader.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, REACHED_WITHIN) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl Connection for Remote {
    fn reader(&self) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(Lifeline(self.0.try_clone()?)))
    }

    fn writer(&self) -> io::Result<Box<dyn Write + Send>> {
        Ok(Box::new(self.0.try_clone()?))
    }
}

/// The reading end. Whoever reads the end of it sees to it that the process ends; if that takes too long, because it
/// computes or waits for a rank that is as far away as the router, it is ended.
struct Lifeline(TcpStream);

impl Read for Lifeline {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(out);
        let ended = match &read {
            Ok(0) => !out.is_empty(),
            Ok(_) => false,
            Err(error) => error.kind() != ErrorKind::Interrupted,
        };
        if ended {
            let last_words = || {
                thread::sleep(LAST_WORDS);
                std::process::exit(0);
            };
            // Without another thread there is no time for last words.
            if thread::Builder::new().name("last words".into()).spawn(last_words).is_err() {
                std::process::exit(0);
            }
        }
        read
    }
}
