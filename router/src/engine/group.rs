//! The shard processes: started, connected, watched over and ended together.
//!
//! No shard of this machine outlives the router: each holds the reading end of a pipe as its standard input, and exits when the pipe
//! closes, however the router died. No zombie is left: a task waits for each child. No file is left: the socket of a
//! rank is removed as soon as the rank has connected.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use millrace_proto::{
    Fault, FrameError, Loading, Ready, Rendezvous, Shutdown, StepOutput, ToShard, to_shard,
};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use super::children::{Children, ShardCommand, Unreaped, spawn};
use super::gate::{Gate, OtherNodes};
use super::kept::Kept;
use super::link::{self, Outbound};
use super::losses::{Cause, Loss};
use super::patience::{pass, within};
use super::sockets::SocketFolder;

/// Why the shards could not be started. The texts are meant for the operator.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error("cannot make a private directory for sockets in {}: {source}; set TMPDIR to a writable place", .dir.display())]
    Directory { dir: PathBuf, source: io::Error },
    #[error("cannot listen on {}: {source}; if the path is too long, set TMPDIR to a shorter one", .path.display())]
    Listen { path: PathBuf, source: io::Error },
    #[error("cannot start {}: {source}", .program.display())]
    Spawn { program: PathBuf, source: io::Error },
    #[error("{}", .0.why)]
    Lost(Loss),
    #[error("{why}; {unreaped}")]
    Unreaped { why: String, unreaped: Unreaped },
    #[error("shard {rank} did not connect within {} s", .after.as_secs())]
    Silent { rank: usize, after: Duration },
    #[error("cannot listen on {at} for other machines: {source}; try another --leader-port")]
    Gate { at: SocketAddr, source: io::Error },
    #[error("rank {rank} has not come from its machine within {} s", .after.as_secs())]
    Absent { rank: usize, after: Duration },
}

impl From<StartError> for Loss {
    fn from(error: StartError) -> Loss {
        let cause = match &error {
            StartError::Lost(loss) => return loss.clone(),
            StartError::Unreaped { .. } => Cause::Lasting,
            StartError::Directory { source, .. }
            | StartError::Listen { source, .. }
            | StartError::Spawn { source, .. }
            | StartError::Gate { source, .. }
                if is_shortage(source) =>
            {
                Cause::Shortage
            }
            _ => Cause::Shards,
        };
        Loss { why: error.to_string(), cause }
    }
}

/// Whether the system has run out of something that others may give back: memory, processes or descriptors.
fn is_shortage(error: &io::Error) -> bool {
    /// ENFILE and EMFILE, which have no kind of their own. They are the same on all Unix systems.
    const TOO_MANY_FILES: [i32; 2] = [23, 24];
    matches!(error.kind(), ErrorKind::OutOfMemory | ErrorKind::WouldBlock)
        || error.raw_os_error().is_some_and(|code| TOO_MANY_FILES.contains(&code))
}

/// What is heard of a shard.
#[derive(Debug)]
pub(super) enum News {
    Loading(Loading),
    Ready(Box<Ready>),
    Output(Box<StepOutput>),
    Pong,
    /// Where it waits for the other ranks.
    Rendezvous(Rendezvous),
    /// It cannot go on and says why.
    Fault(Fault),
    /// A message of a kind that this version does not know.
    Unknown,
    /// Nothing more will be heard over its connection.
    Closed(FrameError),
    /// The process has ended.
    Exited(io::Result<ExitStatus>),
}

impl News {
    /// Nothing good can come of this rank any more.
    fn is_death(&self) -> bool {
        matches!(self, News::Fault(_) | News::Closed(_) | News::Exited(_))
    }
}

/// News waiting to be looked at, at most. A reader that is ahead of the engine waits.
const NEWS: usize = 64;

/// After a first sign of a shard's death, how long to wait for a better explanation.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How long a connection is waited for whose process is known to have ended.
const KNOCK: Duration = Duration::from_millis(200);

/// All ranks of one model.
pub(super) struct Group {
    /// By rank.
    outbound: BTreeMap<usize, Outbound>,
    /// What was heard before all ranks were connected.
    early: VecDeque<(usize, News)>,
    news: mpsc::Receiver<(usize, News)>,
    /// The tasks of the links.
    links: JoinSet<()>,
    children: Children,
}

impl Group {
    /// Starts the processes of this machine, all `world_size` unless there are others, and waits until every rank has
    /// connected. After a loss the ranks are told what they must have in common with the first group.
    pub(super) async fn start(
        command: &ShardCommand,
        world_size: usize,
        others: Option<&OtherNodes>,
        silence: Duration,
        kept: Option<&Kept>,
    ) -> Result<Self, StartError> {
        let (report, news) = mpsc::channel(NEWS);
        let mut group = Group {
            outbound: BTreeMap::new(),
            early: VecDeque::new(),
            news,
            links: JoinSet::new(),
            children: Children::default(),
        };
        let started = group.bring_up(command, world_size, others, silence, kept, report).await;
        match started {
            Ok(()) => Ok(group),
            // What has been started has ended before the next attempt begins.
            Err(error) => match group.kill().await {
                Ok(()) => Err(error),
                Err(unreaped) => Err(StartError::Unreaped { why: error.to_string(), unreaped }),
            },
        }
    }

    async fn bring_up(
        &mut self,
        command: &ShardCommand,
        world_size: usize,
        others: Option<&OtherNodes>,
        silence: Duration,
        kept: Option<&Kept>,
        report: mpsc::Sender<(usize, News)>,
    ) -> Result<(), StartError> {
        // A port that is taken is known before anything is started; whoever comes too early waits at the door.
        let mut gate = match others {
            Some(others) => Some((others, Gate::open(others, world_size).await?)),
            None => None,
        };
        let local = others.map_or(world_size, |others| others.local_ranks);
        let folder = SocketFolder::new()
            .map_err(|source| StartError::Directory { dir: std::env::temp_dir(), source })?;
        let mut doors = Vec::new();
        for rank in 0..local {
            let path = folder.socket(rank);
            let listener = UnixListener::bind(&path)
                .map_err(|source| StartError::Listen { path: path.clone(), source })?;
            let mut address = OsString::from("unix:");
            address.push(&path);
            let child = spawn(command, rank, world_size, &address, kept, Stdio::inherit())?;
            self.children.watch(rank, child, report.clone());
            doors.push((listener, path));
        }
        self.let_in(&doors, folder.owner(), silence, &report).await?;
        // The ranks are connected: whoever kills the router now finds nothing left of it.
        drop(folder);
        if let Some((others, gate)) = &mut gate {
            tracing::info!("ranks {local} to {} are waited for at {}", world_size - 1, others.listen);
            self.gather(gate, silence, report).await?;
        }
        Ok(())
    }

    /// Waits until each rank of this machine has connected at its door.
    async fn let_in(
        &mut self,
        doors: &[(UnixListener, PathBuf)],
        owner: u32,
        silence: Duration,
        report: &mpsc::Sender<(usize, News)>,
    ) -> Result<(), StartError> {
        for (rank, (listener, path)) in doors.iter().enumerate() {
            let arrival = within(silence, accept(listener, owner));
            tokio::pin!(arrival);
            let stream = loop {
                tokio::select! {
                    accepted = &mut arrival => break accepted
                        .map_err(|_| StartError::Silent { rank, after: silence })?
                        .map_err(|source| StartError::Listen { path: path.clone(), source })?,
                    Some((of, news)) = self.news.recv() => {
                        if !news.is_death() {
                            self.early.push_back((of, news));
                            continue;
                        }
                        // Its last words may be waiting at the door.
                        if of >= rank && let Ok(Ok(stream)) = timeout(KNOCK, accept(&doors[of].0, owner)).await {
                            self.admit(of, stream, report);
                        }
                        return Err(StartError::Lost(self.explain(of, news).await));
                    }
                }
            };
            self.admit(rank, stream, report);
        }
        Ok(())
    }

    /// A rank may have said why it cannot go on, and be gone, before the next one has come.
    fn admit(&mut self, rank: usize, stream: UnixStream, report: &mpsc::Sender<(usize, News)>) {
        let outbound = link::open(rank, stream.into_split(), report.clone(), &mut self.links);
        self.outbound.insert(rank, outbound);
    }

    /// Waits until all ranks of other machines have come.
    async fn gather(
        &mut self,
        gate: &mut Gate,
        silence: Duration,
        report: mpsc::Sender<(usize, News)>,
    ) -> Result<(), StartError> {
        let silent = pass(silence);
        tokio::pin!(silent);
        while let Some(missing) = gate.missing() {
            tokio::select! {
                (rank, stream) = gate.next() => {
                    let outbound = link::open(rank, stream.into_split(), report.clone(), &mut self.links);
                    self.outbound.insert(rank, outbound);
                    silent.set(pass(silence));
                }
                Some((rank, news)) = self.news.recv() => {
                    if !news.is_death() {
                        self.early.push_back((rank, news));
                    } else if matches!(news, News::Closed(_)) && gate.expect_again(rank) {
                        // Nothing is lost that was not waited for anyway.
                        tracing::warn!("rank {rank} has gone before the group was complete; it is waited for again");
                        self.outbound.remove(&rank);
                        self.early.retain(|(of, _)| *of != rank);
                    } else {
                        return Err(StartError::Lost(self.explain(rank, news).await));
                    }
                }
                () = &mut silent => return Err(StartError::Absent { rank: missing, after: silence }),
            }
        }
        Ok(())
    }

    /// A group of shards that run somewhere else, over connected streams in the order of their ranks.
    #[cfg(test)]
    pub(super) fn connected(streams: Vec<UnixStream>) -> Self {
        let (report, news) = mpsc::channel(NEWS);
        let mut links = JoinSet::new();
        let streams = streams.into_iter().enumerate();
        let outbound = streams
            .map(|(rank, stream)| (rank, link::open(rank, stream.into_split(), report.clone(), &mut links)))
            .collect();
        Group { outbound, early: VecDeque::new(), news, links, children: Children::default() }
    }

    /// Number of ranks.
    pub(super) fn world_size(&self) -> usize {
        self.outbound.len()
    }

    /// Sends the same message to every rank. If one is dead, [`next`](Self::next) tells.
    pub(super) fn send(&self, message: to_shard::Message) {
        let message = Arc::new(ToShard { message: Some(message) });
        for rank in self.outbound.values() {
            let _ = rank.send(message.clone());
        }
    }

    /// Sends a message to every rank but the first.
    pub(super) fn send_to_others(&self, message: to_shard::Message) {
        let message = Arc::new(ToShard { message: Some(message) });
        for rank in self.outbound.values().skip(1) {
            let _ = rank.send(message.clone());
        }
    }

    /// What is heard next, and of which rank. Cancel safe.
    pub(super) async fn next(&mut self) -> (usize, News) {
        if let Some(news) = self.early.pop_front() {
            return news;
        }
        match self.news.recv().await {
            Some(news) => news,
            // Every link has said that it is closed before it fell silent; there is nothing to come.
            None => std::future::pending().await,
        }
    }

    /// The best explanation of a loss that began with `first`. A dying shard is heard of more than once: its own last
    /// words, the end of its process and the end of its connection come in any order.
    pub(super) async fn explain(&mut self, rank: usize, first: News) -> Loss {
        let deadline = Instant::now() + LAST_WORDS;
        let mut heard = vec![first];
        while !self.is_explained(rank, &heard) {
            match timeout_at(deadline, self.news.recv()).await {
                Ok(Some((other, news))) if other == rank => heard.push(news),
                // The other ranks only follow the first.
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => break,
            }
        }
        heard.sort_by_key(|news| match news {
            News::Fault(_) => 0,
            News::Closed(FrameError::Malformed(_) | FrameError::TooLarge(_)) => 1,
            News::Exited(_) => 2,
            News::Closed(_) => 3,
            News::Loading(_)
            | News::Ready(_)
            | News::Output(_)
            | News::Pong
            | News::Rendezvous(_)
            | News::Unknown => 4,
        });
        obituary(rank, &heard[0])
    }

    fn is_explained(&self, rank: usize, heard: &[News]) -> bool {
        // The end of a process elsewhere is heard of by its connection only.
        let mut exited = rank >= self.children.len();
        let mut closed = false;
        for news in heard {
            match news {
                News::Fault(_) | News::Closed(FrameError::Malformed(_) | FrameError::TooLarge(_)) => {
                    return true;
                }
                News::Exited(_) => exited = true,
                News::Closed(_) => closed = true,
                News::Loading(_)
                | News::Ready(_)
                | News::Output(_)
                | News::Pong
                | News::Rendezvous(_)
                | News::Unknown => {}
            }
        }
        exited && closed
    }

    /// Asks all ranks to exit, kills those that have not after `grace`, and waits until none is left.
    pub(super) async fn end(mut self, grace: Duration) {
        self.send(to_shard::Message::Shutdown(Shutdown {}));
        self.news.close();
        self.outbound.clear();
        let ended = async {
            self.children.wait().await;
            while self.links.join_next().await.is_some() {}
        };
        if within(grace, ended).await.is_err() {
            tracing::warn!("shards did not exit within {} s and are killed", grace.as_secs());
            if let Err(unreaped) = self.kill().await {
                tracing::error!("{unreaped}");
            }
        }
    }

    /// Kills all ranks and waits until none is left.
    ///
    /// # Errors
    /// If a process cannot be ended.
    pub(super) async fn kill(mut self) -> Result<(), Unreaped> {
        self.news.close();
        self.children.kill().await
    }
}

/// What to tell the operator about a shard of which this was heard.
fn obituary(rank: usize, news: &News) -> Loss {
    let why = match news {
        News::Fault(Fault { message, lasting: true }) => {
            return Loss::lasting(format!("shard {rank}: {message}"));
        }
        News::Fault(Fault { message, .. }) => format!("shard {rank}: {message}"),
        News::Exited(Ok(status)) => format!("shard {rank} ended ({status}); its own messages are in the log"),
        News::Exited(Err(error)) => format!("shard {rank} cannot be watched: {error}"),
        News::Closed(FrameError::Closed) => format!("shard {rank} closed its connection"),
        News::Closed(error) => format!("the connection to shard {rank} broke: {error}"),
        News::Loading(_)
        | News::Ready(_)
        | News::Output(_)
        | News::Pong
        | News::Rendezvous(_)
        | News::Unknown => {
            format!("shard {rank} sent something at the wrong time")
        }
    };
    Loss::of_shards(why)
}

/// The next connection that comes from this user.
async fn accept(listener: &UnixListener, owner: u32) -> io::Result<UnixStream> {
    loop {
        let (stream, _) = listener.accept().await?;
        let peer = stream.peer_cred()?.uid();
        if peer == owner {
            return Ok(stream);
        }
        tracing::warn!(peer, "another user's process tried to connect as a shard");
    }
}
