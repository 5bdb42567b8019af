//! The shard processes of this machine: how they are started, and that they end.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::group::{News, StartError};
use super::kept::Kept;
use super::patience::within;

/// How a shard is started. `--connect <address> --rank <rank> --world-size <ranks>` is appended to the arguments, and
/// after a loss `--kept-pool-tokens <n> --kept-sequence-tokens <n> --kept-checkpoint <text>`.
#[derive(Debug, Clone)]
pub struct ShardCommand {
    /// The program; found on `PATH` if it has no slash.
    pub program: PathBuf,
    /// Its first arguments.
    pub args: Vec<OsString>,
    /// Set in addition to the router's own environment.
    pub env: HashMap<OsString, OsString>,
}

/// Starts a rank that connects to `address`, with what it must have in common with the first group, if there was one.
pub(super) fn spawn(
    command: &ShardCommand,
    rank: usize,
    world_size: usize,
    address: &OsStr,
    kept: Option<&Kept>,
    stdout: Stdio,
) -> Result<Child, StartError> {
    Command::new(&command.program)
        .args(&command.args)
        .arg("--connect")
        .arg(address)
        .args(["--rank", &rank.to_string(), "--world-size", &world_size.to_string()])
        .args(kept.map_or_else(Vec::new, |kept| flags(kept, rank)))
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

/// The arguments that tell a rank what the first group had.
fn flags(kept: &Kept, rank: usize) -> Vec<String> {
    let mut flags = vec![
        format!("--kept-pool-tokens={}", kept.pool_tokens),
        format!("--kept-sequence-tokens={}", kept.sequence_tokens),
    ];
    let checkpoint = kept.checkpoints.get(rank).filter(|checkpoint| !checkpoint.is_empty());
    flags.extend(checkpoint.map(|checkpoint| format!("--kept-checkpoint={checkpoint}")));
    flags
}

/// How long a process may take to end after SIGKILL. The kernel ends it at once, unless it is in the middle of a system
/// call that cannot be interrupted.
const REAPED_WITHIN: Duration = Duration::from_secs(30);

/// Processes that SIGKILL has not ended. There is nothing more that this process could do about them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} within {} s of SIGKILL. In state D a process waits for a device, its driver or a file system that does not \
     answer: see the kernel's log (dmesg). The server ends without waiting any longer; what the process holds, such as a \
     device's memory, is free only when it has ended, which may take a restart of the machine",
    .0.join("; "), REAPED_WITHIN.as_secs()
)]
pub struct Unreaped(Vec<String>);

/// What is done with a process once it runs.
pub(super) trait Process: Send + 'static {
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
pub(super) struct Children {
    watchers: JoinSet<()>,
    /// Writing ends of the shards' standard input. A shard exits when its own is closed.
    lifelines: Vec<ChildStdin>,
    killing: CancellationToken,
    /// Process ids, by rank, of the processes that have not been waited for successfully.
    running: Arc<Mutex<BTreeMap<usize, u32>>>,
}

impl Children {
    /// Reports the end of `child`, and holds its life-line.
    pub(super) fn watch(&mut self, rank: usize, mut child: Child, report: mpsc::Sender<(usize, News)>) {
        // Taken out, because waiting for a child closes its input.
        self.lifelines.extend(child.stdin.take());
        let pid = child.id().unwrap_or_default();
        self.watch_process(rank, pid, child, report);
    }

    /// The same without a life-line.
    fn watch_process(
        &mut self,
        rank: usize,
        pid: u32,
        mut process: impl Process,
        report: mpsc::Sender<(usize, News)>,
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
            // Nobody listens any more when the group is being ended.
            let _ = report.send((rank, News::Exited(status))).await;
        });
    }

    /// How many were started.
    pub(super) fn len(&self) -> usize {
        self.lifelines.len()
    }

    /// Waits until none is left, however long that takes. Cancel safe.
    pub(super) async fn wait(&mut self) {
        while self.watchers.join_next().await.is_some() {}
    }

    /// Kills all of them and waits until none is left.
    ///
    /// # Errors
    /// [`Unreaped`] names those that are still there after [`REAPED_WITHIN`].
    pub(super) async fn kill(&mut self) -> Result<(), Unreaped> {
        self.killing.cancel();
        if within(REAPED_WITHIN, self.wait()).await.is_ok() {
            return Ok(());
        }
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let describe = |(rank, pid): (&usize, &u32)| {
            format!("shard {rank} (process {pid}, in state {}) has not ended", state(*pid))
        };
        Err(Unreaped(running.iter().map(describe).collect()))
    }
}

/// The state of a process as the kernel names it, such as `D`.
fn state(pid: u32) -> String {
    // Of the files in /proc, this one can be read whatever the process waits for.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name of the program, in parentheses, may contain anything.
    let state = stat.rsplit(')').next().unwrap_or_default().split_whitespace().next();
    state.unwrap_or("unknown").to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use tokio::time::Instant;

    use super::*;

    /// A process that ends so long after SIGKILL, if ever.
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
            let (report, _) = mpsc::channel(1);
            let process = Stubborn { killed: false, ends_after };
            children.watch_process(rank, std::process::id(), process, report);
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
    async fn a_slow_end_is_waited_for() {
        let slow = Some(Duration::from_secs(20));
        assert_eq!(children(&[slow, slow]).kill().await, Ok(()));
        assert_eq!(Children::default().kill().await, Ok(()));
    }
}
