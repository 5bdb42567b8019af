//! The shard processes of this machine: how they are started, and that they end.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::Stdio;

use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::group::{News, StartError};

/// How a shard is started. `--connect <address> --rank <rank> --world-size <ranks>` is appended to the arguments.
#[derive(Debug, Clone)]
pub struct ShardCommand {
    /// The program; found on `PATH` if it has no slash.
    pub program: PathBuf,
    /// Its first arguments.
    pub args: Vec<OsString>,
    /// Set in addition to the router's own environment.
    pub env: HashMap<OsString, OsString>,
}

/// Starts a rank that connects to `address`.
pub(super) fn spawn(
    command: &ShardCommand,
    rank: usize,
    world_size: usize,
    address: &OsStr,
    stdout: Stdio,
) -> Result<Child, StartError> {
    Command::new(&command.program)
        .args(&command.args)
        .arg("--connect")
        .arg(address)
        .args(["--rank", &rank.to_string(), "--world-size", &world_size.to_string()])
        .envs(&command.env)
        .stdin(Stdio::piped())
        .stdout(stdout)
        .stderr(Stdio::inherit())
        // A group of its own: an interrupt at the terminal is for the router, which lets running requests end first.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|source| StartError::Spawn { program: command.program.clone(), source })
}

/// The processes of a group, each with a task that waits for its end.
#[derive(Default)]
pub(super) struct Children {
    watchers: JoinSet<()>,
    /// Writing ends of the shards' standard input. A shard exits when its own is closed.
    lifelines: Vec<ChildStdin>,
    killing: CancellationToken,
}

impl Children {
    /// Reports the end of `child`, and holds its life-line.
    pub(super) fn watch(&mut self, rank: usize, mut child: Child, report: mpsc::Sender<(usize, News)>) {
        // Taken out, because waiting for a child closes its input.
        self.lifelines.extend(child.stdin.take());
        let killing = self.killing.clone();
        self.watchers.spawn(async move {
            let status = tokio::select! {
                status = child.wait() => status,
                () = killing.cancelled() => match child.kill().await {
                    Ok(()) => child.wait().await,
                    Err(error) => Err(error),
                },
            };
            // Nobody listens any more when the group is being ended.
            let _ = report.send((rank, News::Exited(status))).await;
        });
    }

    /// How many were started.
    pub(super) fn len(&self) -> usize {
        self.lifelines.len()
    }

    /// Waits until none is left.
    pub(super) async fn wait(&mut self) {
        while self.watchers.join_next().await.is_some() {}
    }

    /// Kills all of them and waits until none is left.
    pub(super) async fn kill(&mut self) {
        self.killing.cancel();
        self.wait().await;
    }
}
