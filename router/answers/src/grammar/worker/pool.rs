//! The router's side: starts workers on demand, keeps them while they work, and kills them if they
//! take too long.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::{Instant, timeout};

use super::protocol::{CPU_TIME, MAX_REPLY_BYTES, MEMORY, Verdict, WALL_TIME, WorkerReply};
use crate::grammar::error::GrammarError;
use crate::grammar::metrics;

/// The number of workers that are kept for the next grammars.
const MAX_IDLE: usize = 2;
/// The time in which a worker must become ready.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The time for which no worker is started after a failure. It doubles with each consecutive
/// failure.
const MIN_RESTART_DELAY: Duration = Duration::from_millis(500);
const MAX_RESTART_DELAY: Duration = Duration::from_secs(60);

/// The command that starts a worker: a program that calls [`run`](super::run).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrammarWorkerCommand {
    /// The program.
    pub program: PathBuf,
    /// The arguments of the program.
    pub args: Vec<OsString>,
}

/// The workers of one model.
pub(in crate::grammar) struct WorkerPool {
    command: GrammarWorkerCommand,
    state: Mutex<PoolState>,
}

#[derive(Default)]
struct PoolState {
    /// Workers that are ready. The most recently used one is at the end.
    idle: Vec<WorkerProcess>,
    /// The number of consecutive failures to start a worker.
    failures: u32,
    /// The time at which a worker may be started again.
    pause: Option<Instant>,
}

/// A worker process. It is killed when this is dropped.
struct WorkerProcess {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
}

impl WorkerPool {
    pub(in crate::grammar) fn new(command: GrammarWorkerCommand) -> Self {
        WorkerPool { command, state: Mutex::default() }
    }

    /// Returns a worker that has the vocabulary and that no other grammar uses.
    ///
    /// # Errors
    /// [`GrammarError::Busy`] if no worker can be started. The log has the reason.
    pub(in crate::grammar) async fn worker(
        &self,
        vocabulary: &[u8],
    ) -> Result<GrammarTrial<'_>, GrammarError> {
        let idle = || self.state().idle.pop();
        while let Some(mut worker) = idle() {
            // The process may have ended for another reason.
            if matches!(worker.child.try_wait(), Ok(None)) {
                return Ok(GrammarTrial { pool: self, worker });
            }
        }
        self.new_worker(vocabulary).await
    }

    /// Starts a worker.
    ///
    /// # Errors
    /// As for [`worker`](Self::worker).
    async fn new_worker(&self, vocabulary: &[u8]) -> Result<GrammarTrial<'_>, GrammarError> {
        if self.state().pause.is_some_and(|until| until > Instant::now()) {
            return Err(GrammarError::Busy);
        }
        let started = timeout(START_TIMEOUT, WorkerProcess::start(&self.command, vocabulary)).await;
        let error = match started {
            Ok(Ok(worker)) => {
                let mut state = self.state();
                (state.failures, state.pause) = (0, None);
                return Ok(GrammarTrial { pool: self, worker });
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("it was not ready within {} s", START_TIMEOUT.as_secs()),
        };
        let mut state = self.state();
        let pause = MIN_RESTART_DELAY.saturating_mul(1 << state.failures.min(16)).min(MAX_RESTART_DELAY);
        state.failures += 1;
        state.pause = Some(Instant::now() + pause);
        drop(state);
        metrics::worker_not_started();
        tracing::error!(
            "cannot start `{}`, which compiles grammars: {error}; requests with new grammars are refused for {:.1} s. \
             Check that the program is still there and that the system allows more processes, or serve without \
             grammars (--disable-grammar-support)",
            self.command.program.display(),
            pause.as_secs_f64(),
        );
        Err(GrammarError::Busy)
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_back(&self, worker: WorkerProcess) {
        let mut state = self.state();
        if state.idle.len() < MAX_IDLE {
            state.idle.push(worker);
        }
    }
}

/// A worker that is reserved for one grammar.
pub(in crate::grammar) struct GrammarTrial<'a> {
    pool: &'a WorkerPool,
    worker: WorkerProcess,
}

/// The reason why a grammar did not pass its trial.
pub(in crate::grammar) struct TrialError {
    /// The error for the client.
    pub error: GrammarError,
    /// The grammar may pass later: something else than the grammar may have been the cause.
    pub may_succeed_later: bool,
}

/// The reasons why one worker did not accept a grammar.
enum AttemptError {
    /// The grammar is refused.
    Refused(TrialError),
    /// Something else than a limit ended the worker, such as an operator or a system that is out of
    /// memory.
    WorkerLost,
}

impl AttemptError {
    fn refused(error: GrammarError) -> Self {
        AttemptError::Refused(TrialError { error, may_succeed_later: false })
    }
}

impl GrammarTrial<'_> {
    /// Tries a grammar. Dropping the future kills the worker. If something else than a limit ends
    /// the worker, a new worker tries the grammar once more.
    ///
    /// # Errors
    /// The reason why the grammar is refused.
    pub(in crate::grammar) async fn run(self, vocabulary: &[u8], job: &[u8]) -> Result<(), TrialError> {
        let pool = self.pool;
        let mut attempt = self.run_once(job).await;
        if matches!(attempt, Err(AttemptError::WorkerLost)) {
            let busy = |error| TrialError { error, may_succeed_later: true };
            attempt = pool.new_worker(vocabulary).await.map_err(busy)?.run_once(job).await;
        }
        attempt.map_err(|failure| match failure {
            AttemptError::Refused(refused) => refused,
            // The grammar itself may be the cause, because it makes the system run out of memory.
            AttemptError::WorkerLost => {
                let error = GrammarError::too_complex("the process that compiles it was ended twice");
                TrialError { error, may_succeed_later: true }
            }
        })
    }

    async fn run_once(mut self, job: &[u8]) -> Result<(), AttemptError> {
        let answer = match timeout(WALL_TIME, self.worker.ask(job)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => {
                // The worker has ended or is ending, so only the exit itself can take time.
                let status = timeout(WALL_TIME, self.worker.child.wait()).await;
                let status = status.ok().and_then(Result::ok);
                let Some((message, reason)) = exceeded_limit(status) else {
                    metrics::worker_killed("other");
                    tracing::warn!(
                        "a process that compiles grammars has ended: {}",
                        status.map_or_else(|| "its status is unknown".into(), |status| status.to_string()),
                    );
                    return Err(AttemptError::WorkerLost);
                };
                metrics::worker_killed(reason);
                return Err(AttemptError::refused(GrammarError::too_complex(message)));
            }
            Err(_) => {
                // Dropping the child would also kill it, but would reap it later.
                let _ = self.worker.child.kill().await;
                metrics::worker_killed("wall_time");
                let message = format!("it takes longer than {} s to compile", WALL_TIME.as_secs());
                let error = GrammarError::too_complex(message);
                return Err(AttemptError::Refused(TrialError { error, may_succeed_later: true }));
            }
        };
        if !answer.is_worn {
            self.pool.give_back(self.worker);
        }
        match answer.verdict {
            Verdict::Fits => Ok(()),
            Verdict::Invalid(message) => Err(AttemptError::refused(GrammarError::Invalid(message))),
            Verdict::TooComplex(message) => Err(AttemptError::refused(GrammarError::TooComplex(message))),
        }
    }
}

/// Returns the limit that a worker exceeded according to its exit status: a text for the client and
/// a label for the metric. Returns `None` if the worker ended for another reason.
fn exceeded_limit(status: Option<ExitStatus>) -> Option<(String, &'static str)> {
    let signal = status?.signal()?;
    if signal == Signal::XCPU.as_raw() {
        let message = format!("it takes more than {} s of CPU time to compile", CPU_TIME.as_secs());
        return Some((message, "cpu_time"));
    }
    // A failed allocation aborts the process, and a stack overflow ends it with one of these too.
    let memory_signals = [Signal::ABORT, Signal::SEGV, Signal::BUS, Signal::ILL, Signal::TRAP];
    let message = || format!("it takes more than {} MiB of memory to compile", MEMORY >> 20);
    memory_signals
        .into_iter()
        .any(|memory_signals| memory_signals.as_raw() == signal)
        .then(|| (message(), "memory"))
}

impl WorkerProcess {
    async fn start(command: &GrammarWorkerCommand, vocabulary: &[u8]) -> io::Result<WorkerProcess> {
        // The worker needs only the library paths. Other variables may contain keys.
        let libraries = ["LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"];
        let kept = libraries.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
        let mut child = Command::new(&command.program)
            .args(&command.args)
            .env_clear()
            .envs(kept)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // In its own process group, the worker does not receive an interrupt from the terminal.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("its pipes are missing"));
        };
        let mut worker = WorkerProcess { child, input, output };
        match worker.ask(vocabulary).await {
            Ok(_) => Ok(worker),
            Err(error) => {
                let _ = worker.child.start_kill();
                let status = worker.child.wait().await?;
                Err(io::Error::other(format!("{error} ({status})")))
            }
        }
    }

    /// Sends a message and waits for the reply.
    async fn ask(&mut self, message: &[u8]) -> io::Result<WorkerReply> {
        let too_long = |_| io::Error::new(io::ErrorKind::InvalidInput, "a message is too long");
        let length = u32::try_from(message.len()).map_err(too_long)?;
        self.input.write_all(&length.to_le_bytes()).await?;
        self.input.write_all(message).await?;
        self.input.flush().await?;
        let length = self.output.read_u32_le().await? as usize;
        if length > MAX_REPLY_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a reply is too long"));
        }
        let mut answer = vec![0; length];
        self.output.read_exact(&mut answer).await?;
        Ok(serde_json::from_slice(&answer)?)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use millrace_text::test_support::{self, EOS, still_clock};

    use super::*;
    use crate::grammar::{Grammar, GrammarCompiler};

    /// Creates a compiler whose worker is a shell script. The script reports that it is ready and
    /// then runs `then`. Each start adds a line to the file `starts`.
    fn fake_worker(folder: &Path, then: &str) -> GrammarCompiler {
        let ready = r#"{"verdict":"Fits","is_worn":false}"#;
        assert_eq!(ready.len(), 0o42);
        let script =
            format!("echo >> {}/starts; printf '\\042\\000\\000\\000{ready}'; {then}", folder.display());
        let command =
            GrammarWorkerCommand { program: "/bin/sh".into(), args: vec!["-c".into(), script.into()] };
        GrammarCompiler::with_workers(test_support::tokenizer(), Arc::new([EOS]), Some(command))
    }

    fn starts(folder: &Path) -> usize {
        std::fs::read_to_string(folder.join("starts")).unwrap_or_default().lines().count()
    }

    async fn compile(compiler: &GrammarCompiler, text: &str) -> Result<(), GrammarError> {
        compiler.compile(&Grammar::Regex(text.into()), EOS + 1).await.map(drop)
    }

    #[tokio::test(start_paused = true)]
    async fn a_grammar_that_ends_its_worker_is_refused_and_remembered() {
        let _still = still_clock();
        let folder = tempfile::tempdir().unwrap();
        let compiler = fake_worker(folder.path(), "/usr/bin/head -c 600 > /dev/null; kill -ABRT $$");
        for _ in 0..3 {
            // The vocabulary is longer than the part that the script reads, so that the script ends
            // in any case.
            let error = compile(&compiler, "a").await.unwrap_err();
            assert!(error.to_string().contains("MiB of memory"), "{error}");
        }
        assert_eq!(starts(folder.path()), 1);
        assert!(compile(&compiler, "b").await.is_err());
        assert_eq!(starts(folder.path()), 2);
        assert_eq!(compiler.free_permits(), (2, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_grammar_whose_worker_is_killed_from_outside_is_tried_again() {
        let _still = still_clock();
        let folder = tempfile::tempdir().unwrap();
        let fits = r#"printf '\042\000\000\000{"verdict":"Fits","is_worn":false}'"#;
        let read = "/usr/bin/head -c 600 > /dev/null";
        // The first worker is killed. The second one accepts the grammar.
        let first_start = format!("[ $(wc -l < {}/starts) -eq 1 ]", folder.path().display());
        let then = format!("{read}; if {first_start}; then kill -KILL $$; fi; {fits}; exec /bin/sleep 3");
        let compiler = fake_worker(folder.path(), &then);
        assert_eq!(compile(&compiler, "a").await, Ok(()));
        assert_eq!(starts(folder.path()), 2);

        // A grammar whose workers are always killed is refused after two of them.
        let folder = tempfile::tempdir().unwrap();
        let compiler = fake_worker(folder.path(), &format!("{read}; kill -KILL $$"));
        let error = compile(&compiler, "a").await.unwrap_err();
        assert!(error.to_string().contains("ended twice"), "{error}");
        assert_eq!(starts(folder.path()), 2);
        assert_eq!(compiler.free_permits(), (2, 1));
    }

    #[tokio::test]
    async fn grammars_that_take_long_leave_the_quick_lane() {
        let folder = tempfile::tempdir().unwrap();
        let compiler = fake_worker(folder.path(), "exec /bin/sleep 3");
        let texts = ["a", "b", "c", "d", "e"];
        let outcomes = futures::future::join_all(texts.map(|text| compile(&compiler, text))).await;
        let slow =
            outcomes.iter().filter(|outcome| matches!(outcome, Err(GrammarError::TooComplex(_)))).count();
        let put_off = outcomes.iter().filter(|outcome| matches!(outcome, Err(GrammarError::Busy))).count();
        // One grammar continues in the slow lane until its worker ends. The others find the lane
        // occupied.
        assert!(slow >= 1 && put_off >= 1 && slow + put_off == texts.len(), "{outcomes:?}");
        assert_eq!(compiler.free_permits(), (2, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_cannot_be_started_is_not_tried_again_at_once() {
        let _still = still_clock();
        let folder = tempfile::tempdir().unwrap();
        let script = format!("echo >> {}/starts; exit 1", folder.path().display());
        for (program, args) in [("/bin/sh", vec!["-c".into(), script.into()]), ("/nowhere/at/all", vec![])] {
            let command = GrammarWorkerCommand { program: program.into(), args };
            let compiler =
                GrammarCompiler::with_workers(test_support::tokenizer(), Arc::new([EOS]), Some(command));
            for text in ["a", "b", "c"] {
                assert_eq!(compile(&compiler, text).await, Err(GrammarError::Busy));
            }
            assert_eq!(compiler.free_permits(), (2, 1));
        }
        assert!(starts(folder.path()) < 3);
    }
}
