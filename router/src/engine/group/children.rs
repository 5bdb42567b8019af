//! The shard processes of this machine.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::error::{KILL_TIMEOUT, StartError, Unreaped};
use super::event::GroupEvent;
use crate::engine::baseline::GroupBaseline;
use crate::engine::timeout::running_timeout;

/// The command that starts a shard. The router appends `--connect <address> --rank <rank>
/// --world-size <ranks>` to the arguments and, after a loss, `--kept-pool-tokens <n>
/// --kept-sequence-tokens <n> --kept-checkpoint <text>`.
#[derive(Debug, Clone)]
pub struct ShardCommand {
    /// The program. It is searched on `PATH` if it has no slash.
    pub program: PathBuf,
    /// The first arguments.
    pub args: Vec<OsString>,
    /// Environment variables in addition to those of the router.
    pub env: HashMap<OsString, OsString>,
}

/// The arguments of one rank.
pub(in crate::engine) struct RankArguments<'a> {
    pub(in crate::engine) rank: usize,
    pub(in crate::engine) world_size: usize,
    /// The address at which the rank connects to the router.
    pub(in crate::engine) address: &'a OsStr,
    /// The properties of the first group, if there was one. The rank must have the same.
    pub(in crate::engine) baseline: Option<&'a GroupBaseline>,
}

/// Starts the process of a rank.
pub(in crate::engine) fn spawn(
    command: &ShardCommand,
    arguments: &RankArguments,
    stdout: Stdio,
) -> Result<Child, StartError> {
    let RankArguments { rank, world_size, address, baseline } = *arguments;
    Command::new(&command.program)
        .args(&command.args)
        .arg("--connect")
        .arg(address)
        .args(["--rank", &rank.to_string(), "--world-size", &world_size.to_string()])
        .args(baseline.map_or_else(Vec::new, |baseline| baseline_flags(baseline, rank)))
        .envs(&command.env)
        .stdin(Stdio::piped())
        .stdout(stdout)
        .stderr(Stdio::inherit())
        // A process group of its own: an interrupt at the terminal is for the router, which lets
        // running requests end.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|source| StartError::Spawn { program: command.program.clone(), source })
}

/// The arguments that tell a rank what it must have in common with the first group.
fn baseline_flags(baseline: &GroupBaseline, rank: usize) -> Vec<String> {
    let mut flags = vec![
        format!("--kept-pool-tokens={}", baseline.pool_tokens),
        format!("--kept-sequence-tokens={}", baseline.sequence_tokens),
    ];
    let checkpoint = baseline.checkpoints.get(rank).filter(|checkpoint| !checkpoint.is_empty());
    flags.extend(checkpoint.map(|checkpoint| format!("--kept-checkpoint={checkpoint}")));
    flags
}

/// A running process.
trait Process: Send + 'static {
    /// Waits until the process has ended. Cancel safe.
    fn wait(&mut self) -> impl Future<Output = io::Result<ExitStatus>> + Send;

    /// Sends SIGKILL.
    fn start_kill(&mut self) -> io::Result<()>;
}

impl Process for Child {
    fn wait(&mut self) -> impl Future<Output = io::Result<ExitStatus>> + Send {
        Child::wait(self)
    }

    fn start_kill(&mut self) -> io::Result<()> {
        Child::start_kill(self)
    }
}

/// The processes of a group, each with a task that waits for its end.
#[derive(Default)]
pub(in crate::engine) struct Children {
    watchers: JoinSet<()>,
    /// The writing ends of the shards' standard input. A shard exits when its end is closed.
    stdin_pipes: Vec<ChildStdin>,
    killing: CancellationToken,
    /// Process ids by rank of the processes whose end has not been observed.
    running: Arc<Mutex<BTreeMap<usize, u32>>>,
}

impl Children {
    /// Reports the end of `child` to `events`, and keeps its standard input open.
    pub(in crate::engine) fn watch(
        &mut self,
        rank: usize,
        mut child: Child,
        events: mpsc::Sender<(usize, GroupEvent)>,
    ) {
        // Waiting for a child would close its standard input.
        self.stdin_pipes.extend(child.stdin.take());
        let pid = child.id().unwrap_or_default();
        self.watch_process(rank, pid, child, events);
    }

    /// The same for a process without standard input.
    fn watch_process(
        &mut self,
        rank: usize,
        pid: u32,
        mut process: impl Process,
        events: mpsc::Sender<(usize, GroupEvent)>,
    ) {
        let (killing, running) = (self.killing.clone(), self.running.clone());
        running.lock().unwrap_or_else(PoisonError::into_inner).insert(rank, pid);
        self.watchers.spawn(async move {
            let ended = tokio::select! {
                status = process.wait() => Some(status),
                () = killing.cancelled() => None,
            };
            let status = match ended {
                Some(status) => status,
                None => match process.start_kill() {
                    Ok(()) => process.wait().await,
                    Err(error) => Err(error),
                },
            };
            running.lock().unwrap_or_else(PoisonError::into_inner).remove(&rank);
            // The receiver is closed while the group is being ended.
            let _ = events.send((rank, GroupEvent::Exited(status))).await;
        });
    }

    /// Number of processes that were started.
    pub(super) fn len(&self) -> usize {
        self.stdin_pipes.len()
    }

    /// Waits until no process is left, without a time limit. Cancel safe.
    pub(in crate::engine) async fn wait(&mut self) {
        while self.watchers.join_next().await.is_some() {}
    }

    /// Kills all processes and waits until no process is left.
    ///
    /// # Errors
    /// [`Unreaped`] names the processes that are still there after [`KILL_TIMEOUT`].
    pub(in crate::engine) async fn kill(&mut self) -> Result<(), Unreaped> {
        self.killing.cancel();
        if running_timeout(KILL_TIMEOUT, self.wait()).await.is_ok() {
            return Ok(());
        }
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let describe = |(rank, pid): (&usize, &u32)| {
            format!("shard {rank} (process {pid}, in state {}) has not ended", state(*pid))
        };
        Err(Unreaped(running.iter().map(describe).collect()))
    }
}

/// The state of a process by the kernel's letter for it, such as `D`.
fn state(pid: u32) -> String {
    // Unlike other files in /proc, this one can be read whatever the process waits for.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The program's name, in parentheses, may contain any character.
    let state = stat.rsplit(')').next().unwrap_or_default().split_whitespace().next();
    state.unwrap_or("unknown").to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;

    /// A process that ends some time after SIGKILL, or never.
    struct Stubborn {
        killed: bool,
        ends_after: Option<Duration>,
    }

    impl Process for Stubborn {
        async fn wait(&mut self) -> io::Result<ExitStatus> {
            match self.ends_after {
                Some(time) if self.killed => tokio::time::sleep(time).await,
                _ => std::future::pending().await,
            }
            Ok(ExitStatus::from_raw(9))
        }

        fn start_kill(&mut self) -> io::Result<()> {
            self.killed = true;
            Ok(())
        }
    }

    fn children(processes: &[Option<Duration>]) -> Children {
        let mut children = Children::default();
        for (rank, &ends_after) in processes.iter().enumerate() {
            let (events, _) = mpsc::channel(1);
            let process = Stubborn { killed: false, ends_after };
            children.watch_process(rank, std::process::id(), process, events);
        }
        children
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_cannot_be_reaped_is_named_after_a_while() {
        let since = Instant::now();
        let quick = Some(Duration::from_millis(5));
        let error = children(&[quick, None, quick]).kill().await.unwrap_err().to_string();
        let named = format!("shard 1 (process {}, in state ", std::process::id());
        assert!(error.starts_with(&named), "{error}");
        assert!(error.contains("has not ended within 30 s of SIGKILL"), "{error}");
        assert!(!error.contains("state unknown"), "{error}");
        assert!(since.elapsed() < Duration::from_secs(40), "{:?}", since.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn processes_may_end_slowly_after_they_are_killed() {
        let slow = Some(Duration::from_secs(20));
        assert_eq!(children(&[slow, slow]).kill().await, Ok(()));
        assert_eq!(Children::default().kill().await, Ok(()));
    }
}
