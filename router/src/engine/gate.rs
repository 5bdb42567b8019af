//! Where ranks of other machines come in while a group is being formed.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use millrace_proto::handshake::{self, HandshakeError, Refusal, Secret};
use millrace_proto::liveness;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::group::StartError;

/// How the ranks of other machines find and prove themselves.
#[derive(Debug, Clone)]
pub struct OtherNodes {
    /// The leader's address that other machines reach.
    pub listen: SocketAddr,
    /// What all machines of the group were given.
    pub secret: Secret,
    /// Ranks of this machine: the first ones. All others come from elsewhere.
    pub local_ranks: usize,
}

/// How long a connection may take to prove itself.
const PROVEN_WITHIN: Duration = Duration::from_secs(5);

/// Connections that have not proven themselves, at most: a further one takes the place of the oldest.
const MAX_STRANGERS: usize = 64;

/// Refusals that are logged; whoever is turned away more often is no machine that was set up wrongly.
const TOLD_REFUSALS: usize = 100;

/// A pause when no connection can be taken, as when there are too many open files.
const BREATH: Duration = Duration::from_millis(100);

/// The outcome of a handshake.
type Greeted = (SocketAddr, Result<(usize, TcpStream), HandshakeError>);

/// The open port. Dropped, it is closed, and so are the connections that have not proven themselves.
pub(super) struct Gate {
    listener: TcpListener,
    secret: Secret,
    world_size: usize,
    local_ranks: usize,
    awaited: BTreeSet<usize>,
    greetings: JoinSet<Greeted>,
    /// The greetings under way, oldest first; some may have ended.
    pending: VecDeque<AbortHandle>,
    refusals: usize,
}

impl Gate {
    /// Opens the port for all ranks of other machines.
    pub(super) async fn open(others: &OtherNodes, world_size: usize) -> Result<Self, StartError> {
        let OtherNodes { listen, ref secret, local_ranks } = *others;
        let listener =
            TcpListener::bind(listen).await.map_err(|source| StartError::Gate { at: listen, source })?;
        Ok(Gate {
            listener,
            secret: secret.clone(),
            world_size,
            local_ranks,
            awaited: (local_ranks..world_size).collect(),
            greetings: JoinSet::new(),
            pending: VecDeque::new(),
            refusals: 0,
        })
    }

    /// The first rank that is waited for.
    pub(super) fn missing(&self) -> Option<usize> {
        self.awaited.first().copied()
    }

    /// Waits for a rank that had come already and has gone; false if it is one of this machine.
    pub(super) fn expect_again(&mut self, rank: usize) -> bool {
        let remote = rank >= self.local_ranks;
        if remote {
            self.awaited.insert(rank);
        }
        remote
    }

    /// The next rank that has proven itself and was waited for. Cancel safe.
    pub(super) async fn next(&mut self) -> (usize, TcpStream) {
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, peer)) => self.greet(stream, peer),
                    Err(error) => {
                        tracing::warn!("cannot take a connection from another machine: {error}");
                        sleep(BREATH).await;
                    }
                },
                Some(greeted) = self.greetings.join_next() => match greeted {
                    // Two processes may have come as the same rank at the same time.
                    Ok((peer, Ok((rank, stream)))) if self.awaited.remove(&rank) => {
                        tracing::info!("rank {rank} has come from {peer}");
                        return (rank, stream);
                    }
                    Ok((peer, Ok((rank, _)))) => self.refused(peer, &Refusal::Taken { rank }.into()),
                    Ok((peer, Err(error))) => self.refused(peer, &error),
                    // It had to make room.
                    Err(_) => {}
                },
            }
        }
    }

    fn greet(&mut self, mut stream: TcpStream, peer: SocketAddr) {
        self.pending.retain(|greeting| !greeting.is_finished());
        if self.pending.len() >= MAX_STRANGERS
            && let Some(oldest) = self.pending.pop_front()
        {
            oldest.abort();
        }
        let (secret, world_size, first) = (self.secret.clone(), self.world_size, self.local_ranks);
        let awaited = self.awaited.clone();
        let admit = move |rank: usize| {
            if awaited.contains(&rank) {
                Ok(())
            } else if (first..world_size).contains(&rank) {
                Err(Refusal::Taken { rank })
            } else {
                Err(Refusal::Rank { rank })
            }
        };
        let greeting = async move {
            // Steps are small and waited for.
            stream.set_nodelay(true)?;
            liveness::watch(&stream)?;
            let rank = handshake::receive(&mut stream, &secret, world_size, admit).await?;
            Ok((rank, stream))
        };
        let greeting = async move {
            let silent = |_| Err(io::Error::from(io::ErrorKind::TimedOut).into());
            (peer, timeout(PROVEN_WITHIN, greeting).await.unwrap_or_else(silent))
        };
        self.pending.push_back(self.greetings.spawn(greeting));
    }

    fn refused(&mut self, peer: SocketAddr, why: &HandshakeError) {
        self.refusals += 1;
        if self.refusals <= TOLD_REFUSALS {
            tracing::warn!("a connection from {peer} is no rank of this group: {why}");
        }
    }
}
