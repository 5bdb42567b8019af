//! A machine that is not the leader: its ranks, started again whenever their group is lost.
//!
//! What ends a rank never matters here: the leader knows and says it. A reason that lasts, such as a model that is not on
//! this machine, is in the log of the ranks and tried again ever more slowly, so that the machine is there when it is mended.

use std::ffi::OsString;
use std::ops::Range;
use std::process::Stdio;
use std::time::Duration;

use millrace_proto::liveness::BEAT;
use tokio::io::AsyncReadExt;
use tokio::process::ChildStdout;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::children::{Children, ShardCommand, Unreaped, spawn};
use super::group::{News, StartError};
use super::patience::within;

/// The ranks of one machine, and where their router is.
#[derive(Debug, Clone)]
pub struct Node {
    /// This machine's ranks.
    pub ranks: Range<usize>,
    /// The ranks of all machines.
    pub world_size: usize,
    /// Where the leader listens, as `host:port`.
    pub leader: String,
}

/// How long the other ranks of this machine have to notice that their group is lost, before they are killed.
const OTHERS: Duration = Duration::from_secs(5);

/// A rank without a sign of life for so long is killed: its router has given it up long ago, and cannot do it from afar.
const STANDSTILL: Duration = BEAT.saturating_mul(10);

/// Ranks that have lasted so long are started again at once.
const SETTLED: Duration = Duration::from_secs(10);

/// Pause before the third start in a row; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Runs the ranks of `node` until `stop` is done; no process is left afterwards. `command` must let each of them know the
/// secret.
///
/// # Errors
/// If a process cannot be ended.
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
            ended = life(node, command, &mut children) => ended,
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
        tracing::warn!("{ended}; this machine's ranks are started again {when}");
        tokio::select! {
            () = sleep(pause) => {}
            () = &mut stop => return Ok(()),
        }
    }
}

/// From the start of the ranks until one has ended, and the others have had the time to end too; tells which one ended
/// first. The caller kills what is left.
async fn life(node: &Node, command: &ShardCommand, children: &mut Children) -> Result<String, StartError> {
    let mut address = OsString::from("tcp:");
    address.push(&node.leader);
    // Each rank has one thing to report.
    let (report, mut ends) = mpsc::channel(node.ranks.len().max(1));
    let mut beats = JoinSet::new();
    for rank in node.ranks.clone() {
        let mut child = spawn(command, rank, node.world_size, &address, None, Stdio::piped())?;
        beats.extend(child.stdout.take().map(|beat| async move {
            stands_still(beat).await;
            rank
        }));
        children.watch(rank, child, report.clone());
    }
    drop(report);
    let first = tokio::select! {
        first = ends.recv() => first,
        Some(Ok(rank)) = beats.join_next() => {
            return Ok(format!("rank {rank} has given no sign of life for {} s", STANDSTILL.as_secs()));
        }
    };
    // Those that are still there when the time is up are killed.
    let _ = within(OTHERS, children.wait()).await;
    Ok(match first {
        Some((rank, News::Exited(Ok(status)))) if status.success() => {
            format!("the leader has ended the group of rank {rank}")
        }
        Some((rank, News::Exited(Ok(status)))) => format!("rank {rank} ended ({status})"),
        Some((rank, News::Exited(Err(error)))) => format!("rank {rank} cannot be watched: {error}"),
        _ => "there are no ranks to run".into(),
    })
}

/// Done when a rank that has been beating does no more. The end of a process is no standstill.
async fn stands_still(mut beat: ChildStdout) {
    let mut beats = [0; 64];
    // However long a process takes to begin.
    let mut heard = beat.read(&mut beats).await;
    while let Ok(1..) = heard {
        match within(STANDSTILL, beat.read(&mut beats)).await {
            Ok(next) => heard = next,
            Err(_) => return,
        }
    }
    std::future::pending().await
}
