//! Accepts the ranks of other machines while a group is being formed.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use millrace_proto::handshake::{self, HandshakeError, Refusal, Secret};
use millrace_proto::liveness;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::error::StartError;

/// The address at which ranks of other machines connect, and the secret that they must prove to
/// know.
#[derive(Debug, Clone)]
pub struct OtherNodes {
    /// The leader's address, which the other machines can reach.
    pub listen: SocketAddr,
    /// The secret that all machines of the group share.
    pub secret: Secret,
    /// Number of ranks on this machine. They are the first ranks; the other machines run the rest.
    pub local_ranks: usize,
}

/// Maximum duration of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of connections in a handshake. A further connection replaces the oldest one.
const MAX_HANDSHAKES: usize = 64;

/// Maximum number of refusals that are logged. More of them come from strangers rather than from a
/// machine with wrong settings.
const LOGGED_REFUSALS: usize = 100;

/// Pause after an error of accepting, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The outcome of a handshake.
type HandshakeResult = (SocketAddr, Result<(usize, TcpStream), HandshakeError>);

/// The open port. Dropping it closes the port and the connections whose handshake has not ended.
pub(in crate::engine) struct NodeListener {
    listener: TcpListener,
    secret: Secret,
    world_size: usize,
    local_ranks: usize,
    /// The ranks that have not connected.
    missing: BTreeSet<usize>,
    handshakes: JoinSet<HandshakeResult>,
    /// The handshakes, oldest first. Some of them may have ended.
    pending: VecDeque<AbortHandle>,
    refusals: usize,
}

impl NodeListener {
    /// Opens the port for all ranks of other machines.
    pub(in crate::engine) async fn open(others: &OtherNodes, world_size: usize) -> Result<Self, StartError> {
        let OtherNodes { listen, ref secret, local_ranks } = *others;
        let listener = TcpListener::bind(listen)
            .await
            .map_err(|source| StartError::ListenForNodes { at: listen, source })?;
        Ok(NodeListener {
            listener,
            secret: secret.clone(),
            world_size,
            local_ranks,
            missing: (local_ranks..world_size).collect(),
            handshakes: JoinSet::new(),
            pending: VecDeque::new(),
            refusals: 0,
        })
    }

    /// The first rank that has not connected.
    pub(super) fn first_missing(&self) -> Option<usize> {
        self.missing.first().copied()
    }

    /// Expects a rank again that has disconnected. Returns false if it is a rank of this machine.
    pub(super) fn expect_again(&mut self, rank: usize) -> bool {
        let remote = rank >= self.local_ranks;
        if remote {
            self.missing.insert(rank);
        }
        remote
    }

    /// Returns the next rank that has completed its handshake. Cancel safe.
    pub(in crate::engine) async fn next(&mut self) -> (usize, TcpStream) {
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, peer)) => self.start_handshake(stream, peer),
                    Err(error) => {
                        tracing::warn!("cannot accept a connection from another machine: {error}");
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(finished) = self.handshakes.join_next() => match finished {
                    // Two processes may have connected as the same rank at the same time.
                    Ok((peer, Ok((rank, stream)))) if self.missing.remove(&rank) => {
                        tracing::info!("rank {rank} has connected from {peer}");
                        return (rank, stream);
                    }
                    Ok((peer, Ok((rank, _)))) => self.log_refusal(peer, &Refusal::Taken { rank }.into()),
                    Ok((peer, Err(error))) => self.log_refusal(peer, &error),
                    // The handshake was aborted in favor of a newer one.
                    Err(_) => {}
                },
            }
        }
    }

    fn start_handshake(&mut self, mut stream: TcpStream, peer: SocketAddr) {
        self.pending.retain(|handshake| !handshake.is_finished());
        if self.pending.len() >= MAX_HANDSHAKES
            && let Some(oldest) = self.pending.pop_front()
        {
            oldest.abort();
        }
        let (secret, world_size, first) = (self.secret.clone(), self.world_size, self.local_ranks);
        let missing = self.missing.clone();
        let admit = move |rank: usize| {
            if missing.contains(&rank) {
                Ok(())
            } else if (first..world_size).contains(&rank) {
                Err(Refusal::Taken { rank })
            } else {
                Err(Refusal::Rank { rank })
            }
        };
        let handshake = async move {
            // Steps are small, and their latency matters.
            stream.set_nodelay(true)?;
            liveness::watch(&stream)?;
            let rank = handshake::receive(&mut stream, &secret, world_size, admit).await?;
            Ok((rank, stream))
        };
        let handshake = async move {
            let silent = |_| Err(io::Error::from(io::ErrorKind::TimedOut).into());
            (peer, timeout(HANDSHAKE_TIMEOUT, handshake).await.unwrap_or_else(silent))
        };
        self.pending.push_back(self.handshakes.spawn(handshake));
    }

    fn log_refusal(&mut self, peer: SocketAddr, reason: &HandshakeError) {
        self.refusals += 1;
        if self.refusals <= LOGGED_REFUSALS {
            tracing::warn!("refused a connection from {peer}: {reason}");
        }
    }
}
