//! Starts a group: processes, sockets, and the connections of all ranks.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::children::{RankArguments, ShardCommand, spawn};
use super::connection;
use super::error::StartError;
use super::event::GroupEvent;
use super::listener::{NodeListener, OtherNodes};
use super::shard_group::ShardGroup;
use super::sockets::SocketFolder;
use crate::engine::baseline::GroupBaseline;
use crate::engine::timeout::{running_sleep, running_timeout};

/// Time to wait for the connection of a rank whose process is known to have ended. Its fault
/// message may be waiting there.
const LAST_CONNECTION: Duration = Duration::from_millis(200);

/// The options for starting a group of shards.
#[derive(Debug, Clone)]
pub(in crate::engine) struct GroupOptions {
    pub(in crate::engine) command: ShardCommand,
    pub(in crate::engine) world_size: usize,
    /// The ranks of other machines, if any. Otherwise all ranks run on this machine.
    pub(in crate::engine) others: Option<OtherNodes>,
    /// Maximum time to wait for the next rank to connect.
    pub(in crate::engine) silence: Duration,
}

/// The socket on which one rank of this machine connects.
struct RankSocket {
    listener: UnixListener,
    path: PathBuf,
}

type EventSender = mpsc::Sender<(usize, GroupEvent)>;

impl ShardGroup {
    /// Starts the processes of this machine and waits until every rank has connected. After a loss,
    /// `baseline` tells the ranks what they must have in common with the first group.
    pub(in crate::engine) async fn start(
        options: &GroupOptions,
        baseline: Option<&GroupBaseline>,
    ) -> Result<Self, StartError> {
        let (events, mut group) = ShardGroup::empty();
        match group.connect_all(options, baseline, events).await {
            Ok(()) => Ok(group),
            // Every process must have ended before the next attempt begins.
            Err(error) => match group.kill().await {
                Ok(()) => Err(error),
                Err(unreaped) => Err(StartError::Unreaped { reason: error.to_string(), unreaped }),
            },
        }
    }

    async fn connect_all(
        &mut self,
        options: &GroupOptions,
        baseline: Option<&GroupBaseline>,
        events: EventSender,
    ) -> Result<(), StartError> {
        let GroupOptions { world_size, ref others, silence, .. } = *options;
        // The port is opened first, so an error is known before any process starts. Ranks that
        // connect early wait.
        let mut nodes = match others {
            Some(others) => Some((others, NodeListener::open(others, world_size).await?)),
            None => None,
        };
        let local = others.as_ref().map_or(world_size, |others| others.local_ranks);
        let folder = SocketFolder::new()
            .map_err(|source| StartError::SocketDirectory { dir: std::env::temp_dir(), source })?;
        let mut sockets = Vec::new();
        for rank in 0..local {
            sockets.push(self.start_local(rank, options, baseline, &folder, &events)?);
        }
        self.accept_local(&sockets, folder.owner(), silence, &events).await?;
        // The ranks are connected. Without the folder, nothing is left if the router is killed now.
        drop(folder);
        if let Some((others, listener)) = &mut nodes {
            tracing::info!("waiting for ranks {local} to {} at {}", world_size - 1, others.listen);
            self.accept_remote(listener, silence, events).await?;
        }
        Ok(())
    }

    /// Starts the process of a rank of this machine. Returns the socket on which it will connect.
    fn start_local(
        &mut self,
        rank: usize,
        options: &GroupOptions,
        baseline: Option<&GroupBaseline>,
        folder: &SocketFolder,
        events: &EventSender,
    ) -> Result<RankSocket, StartError> {
        let path = folder.socket(rank);
        let listener =
            UnixListener::bind(&path).map_err(|source| StartError::Listen { path: path.clone(), source })?;
        let mut address = OsString::from("unix:");
        address.push(&path);
        let arguments = RankArguments { rank, world_size: options.world_size, address: &address, baseline };
        let child = spawn(&options.command, &arguments, Stdio::inherit())?;
        self.children.watch(rank, child, events.clone());
        Ok(RankSocket { listener, path })
    }

    /// Waits until each rank of this machine has connected at its socket.
    async fn accept_local(
        &mut self,
        sockets: &[RankSocket],
        owner: u32,
        silence: Duration,
        events: &EventSender,
    ) -> Result<(), StartError> {
        for (rank, socket) in sockets.iter().enumerate() {
            let connection = running_timeout(silence, accept(&socket.listener, owner));
            tokio::pin!(connection);
            let stream = loop {
                tokio::select! {
                    accepted = &mut connection => break accepted
                        .map_err(|_| StartError::NotConnected { rank, after: silence })?
                        .map_err(|source| StartError::Listen { path: socket.path.clone(), source })?,
                    Some((of, event)) = self.events.recv() => {
                        if !event.is_loss() {
                            self.early.push_back((of, event));
                            continue;
                        }
                        if of >= rank {
                            let last = timeout(LAST_CONNECTION, accept(&sockets[of].listener, owner)).await;
                            if let Ok(Ok(stream)) = last {
                                self.add_local(of, stream, events);
                            }
                        }
                        return Err(StartError::Lost(self.explain(of, event).await));
                    }
                }
            };
            self.add_local(rank, stream, events);
        }
        Ok(())
    }

    fn add_local(&mut self, rank: usize, stream: UnixStream, events: &EventSender) {
        let sender = connection::open(rank, stream.into_split(), events.clone(), &mut self.connections);
        self.senders.insert(rank, sender);
    }

    /// Waits until all ranks of other machines have connected.
    async fn accept_remote(
        &mut self,
        listener: &mut NodeListener,
        silence: Duration,
        events: EventSender,
    ) -> Result<(), StartError> {
        let silent = running_sleep(silence);
        tokio::pin!(silent);
        while let Some(missing) = listener.first_missing() {
            tokio::select! {
                (rank, stream) = listener.next() => {
                    let halves = stream.into_split();
                    let sender = connection::open(rank, halves, events.clone(), &mut self.connections);
                    self.senders.insert(rank, sender);
                    silent.set(running_sleep(silence));
                }
                Some((rank, event)) = self.events.recv() => {
                    if !event.is_loss() {
                        self.early.push_back((rank, event));
                    } else if matches!(event, GroupEvent::Closed(_)) && listener.expect_again(rank) {
                        // The group is not complete, so nothing is lost by waiting for this rank as
                        // well.
                        tracing::warn!("rank {rank} disconnected before the group was complete; waiting for it again");
                        self.senders.remove(&rank);
                        self.early.retain(|(of, _)| *of != rank);
                    } else {
                        return Err(StartError::Lost(self.explain(rank, event).await));
                    }
                }
                () = &mut silent => {
                    return Err(StartError::NodeNotConnected { rank: missing, after: silence });
                }
            }
        }
        Ok(())
    }
}

/// Accepts the next connection from a process of this user.
async fn accept(listener: &UnixListener, owner: u32) -> io::Result<UnixStream> {
    loop {
        let (stream, _) = listener.accept().await?;
        let peer = stream.peer_cred()?.uid();
        if peer == owner {
            return Ok(stream);
        }
        tracing::warn!(peer, "a process of another user tried to connect as a shard");
    }
}
