//! Runs the ranks of a machine that is not the leader, and restarts them whenever their group is
//! lost.
//!
//! The reason for which a rank ended does not matter here: the leader knows it and logs it. A
//! lasting reason, such as a model that is missing on this machine, is in the log of the ranks. The
//! ranks are then restarted with growing pauses, so that the machine joins again when the reason
//! has been removed.

use std::ffi::OsString;
use std::ops::Range;
use std::process::Stdio;
use std::time::Duration;

use millrace_proto::liveness::HEARTBEAT;
use tokio::io::AsyncReadExt;
use tokio::process::ChildStdout;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::group::{Children, GroupEvent, RankArguments, ShardCommand, StartError, Unreaped, spawn};
use super::timeout::running_timeout;

/// The ranks of one machine, and the address of their router.
#[derive(Debug, Clone)]
pub struct Node {
    /// The ranks of this machine.
    pub ranks: Range<usize>,
    /// Number of ranks of all machines.
    pub world_size: usize,
    /// Address of the leader, as `host:port`.
    pub leader: String,
}

/// Maximum time for the other ranks of this machine to end after the first one, before they are
/// killed.
const OTHERS_TIMEOUT: Duration = Duration::from_secs(5);

/// A rank that has written no heartbeat for this time is killed. Its router has given it up and
/// cannot kill a process on another machine.
const HEARTBEAT_TIMEOUT: Duration = HEARTBEAT.saturating_mul(10);

/// Ranks that have run for this time are restarted without a pause.
const SETTLED: Duration = Duration::from_secs(10);

/// Pause before the third start in a row. It doubles with each further start.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Longest pause between two starts.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Runs the ranks of `node` until `stop` completes. No process is left afterwards. `command` must
/// give the secret to each rank.
///
/// # Errors
/// [`Unreaped`] if a process cannot be killed.
pub async fn run(
    node: &Node,
    command: &ShardCommand,
    stop: impl Future<Output = ()>,
) -> Result<(), Unreaped> {
    tokio::pin!(stop);
    let mut short_lives = 0;
    loop {
        let since = Instant::now();
        let mut children = Children::default();
        let ended = tokio::select! {
            ended = run_once(node, command, &mut children) => ended,
            () = &mut stop => return children.kill().await,
        };
        children.kill().await?;
        short_lives = if since.elapsed() < SETTLED { short_lives + 1 } else { 0 };
        let pause = match short_lives {
            0 | 1 => Duration::ZERO,
            again => FIRST_PAUSE.saturating_mul(1 << (again - 2).min(16)).min(LONGEST_PAUSE),
        };
        let ended = ended.unwrap_or_else(|error| error.to_string());
        let when = match pause.is_zero() {
            true => "at once".to_owned(),
            false => format!("in {:.1} s", pause.as_secs_f64()),
        };
        tracing::warn!("{ended}; restarting the ranks of this machine {when}");
        tokio::select! {
            () = sleep(pause) => {}
            () = &mut stop => return Ok(()),
        }
    }
}

/// Starts the ranks and waits until one has ended and the others have had the time to end as well.
/// Returns a description of the end. The caller kills the processes that are left.
async fn run_once(
    node: &Node,
    command: &ShardCommand,
    children: &mut Children,
) -> Result<String, StartError> {
    let mut address = OsString::from("tcp:");
    address.push(&node.leader);
    // Each rank reports its end once.
    let (events, mut ends) = mpsc::channel(node.ranks.len().max(1));
    let mut heartbeats = JoinSet::new();
    for rank in node.ranks.clone() {
        let world_size = node.world_size;
        let arguments = RankArguments { rank, world_size, address: &address, baseline: None };
        let mut child = spawn(command, &arguments, Stdio::piped())?;
        heartbeats.extend(child.stdout.take().map(|stdout| async move {
            heartbeat_lost(stdout).await;
            rank
        }));
        children.watch(rank, child, events.clone());
    }
    drop(events);
    let first = tokio::select! {
        first = ends.recv() => first,
        Some(Ok(rank)) = heartbeats.join_next() => {
            return Ok(format!("rank {rank} has sent no heartbeat for {} s", HEARTBEAT_TIMEOUT.as_secs()));
        }
    };
    let _ = running_timeout(OTHERS_TIMEOUT, children.wait()).await;
    Ok(match first {
        Some((rank, GroupEvent::Exited(Ok(status)))) if status.success() => {
            format!("the leader has ended the group of rank {rank}")
        }
        Some((rank, GroupEvent::Exited(Ok(status)))) => format!("rank {rank} ended ({status})"),
        Some((rank, GroupEvent::Exited(Err(error)))) => format!("cannot wait for rank {rank}: {error}"),
        _ => "there are no ranks to run".into(),
    })
}

/// Completes when a rank has begun to write heartbeats and then stops. It never completes if the
/// process ends, which is reported otherwise.
async fn heartbeat_lost(mut stdout: ChildStdout) {
    let mut bytes = [0; 64];
    // A process may take any time until its first heartbeat.
    let mut read = stdout.read(&mut bytes).await;
    while let Ok(1..) = read {
        match running_timeout(HEARTBEAT_TIMEOUT, stdout.read(&mut bytes)).await {
            Ok(next) => read = next,
            Err(_) => return,
        }
    }
    std::future::pending().await
}
