//! The router's side: workers that are started when they are needed, kept while they are well, and killed when
//! they take too long.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::{Answer, CPU_TIME, LONGEST_ANSWER, MEMORY, Verdict, WALL_TIME, WorkerCommand};
use crate::grammar::bounds::too_complex;
use crate::grammar::{GrammarError, meter};

/// Workers that are kept for the next grammars.
const MOST_IDLE: usize = 2;
/// How long a worker may take until it is ready.
const START: Duration = Duration::from_secs(30);
/// After a worker could not be started, how long none is tried; it doubles with each failure in a row.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Workers of one kind.
pub(in crate::grammar) struct Pool {
    command: WorkerCommand,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Workers that are ready, the one that was used last at the end.
    idle: Vec<Worker>,
    /// Workers that could not be started in a row.
    failures: u32,
    /// When another may be started.
    pause: Option<Instant>,
}

/// A worker process. It is killed when this is dropped.
struct Worker {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
}

impl Pool {
    pub(in crate::grammar) fn new(command: WorkerCommand) -> Self {
        Pool { command, state: Mutex::default() }
    }

    /// A worker that has the vocabulary, and is not used by anybody else.
    ///
    /// # Errors
    /// [`GrammarError::Busy`] if none can be started; the log says why.
    pub(in crate::grammar) async fn worker(&self, vocabulary: &[u8]) -> Result<Trial<'_>, GrammarError> {
        let idle = || self.state().idle.pop();
        while let Some(mut worker) = idle() {
            // Something else may have ended it meanwhile.
            if matches!(worker.child.try_wait(), Ok(None)) {
                return Ok(Trial { pool: self, worker });
            }
        }
        if self.state().pause.is_some_and(|until| until > Instant::now()) {
            return Err(GrammarError::Busy);
        }
        let started = timeout(START, Worker::start(&self.command, vocabulary)).await;
        let error = match started {
            Ok(Ok(worker)) => {
                let mut state = self.state();
                (state.failures, state.pause) = (0, None);
                return Ok(Trial { pool: self, worker });
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("it was not ready within {} s", START.as_secs()),
        };
        let mut state = self.state();
        let pause = FIRST_PAUSE.saturating_mul(1 << state.failures.min(16)).min(LONGEST_PAUSE);
        state.failures += 1;
        state.pause = Some(Instant::now() + pause);
        drop(state);
        meter::worker_not_started();
        tracing::error!(
            "cannot start `{}`, which compiles grammars: {error}; requests with new grammars are refused for {:.1} s. \
             Check that the program is still there and that the system allows more processes, or serve without \
             grammars (--disable-grammar-support)",
            self.command.program.display(),
            pause.as_secs_f64(),
        );
        Err(GrammarError::Busy)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_back(&self, worker: Worker) {
        let mut state = self.state();
        if state.idle.len() < MOST_IDLE {
            state.idle.push(worker);
        }
    }
}

/// A worker that is about to try a grammar.
pub(in crate::grammar) struct Trial<'a> {
    pool: &'a Pool,
    worker: Worker,
}

impl Trial<'_> {
    /// Tries a grammar. Dropping the future kills the worker.
    ///
    /// # Errors
    /// Why the grammar is refused, and whether that may have been the fault of a busy machine.
    pub(in crate::grammar) async fn run(mut self, job: &[u8]) -> Result<(), (GrammarError, bool)> {
        let answer = match timeout(WALL_TIME, self.worker.ask(job)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => {
                // The limits have ended it; all that can take time is the end itself.
                let status = timeout(WALL_TIME, self.worker.child.wait()).await;
                let (why, reason) = cause(status.ok().and_then(Result::ok));
                meter::worker_killed(reason);
                return Err((too_complex(why), false));
            }
            Err(_) => {
                // Dropping it would kill it too, but leave it to be collected later.
                let _ = self.worker.child.kill().await;
                meter::worker_killed("wall_time");
                let why = format!("it takes longer than {} s to compile", WALL_TIME.as_secs());
                return Err((too_complex(why), true));
            }
        };
        if !answer.is_worn {
            self.pool.give_back(self.worker);
        }
        match answer.verdict {
            Verdict::Fits => Ok(()),
            Verdict::Invalid(why) => Err((GrammarError::Invalid(why), false)),
            Verdict::TooComplex(why) => Err((GrammarError::TooComplex(why), false)),
        }
    }
}

/// Why a worker has ended in the middle of a grammar: a text for the client, and a label for the metric.
fn cause(status: Option<ExitStatus>) -> (String, &'static str) {
    let signal = status.and_then(|status| status.signal());
    if signal == Some(Signal::XCPU.as_raw()) {
        return (format!("it takes more than {} s of CPU time to compile", CPU_TIME.as_secs()), "cpu_time");
    }
    // An allocation that fails aborts, and so does a stack that overflows.
    (format!("it takes more than {} MiB of memory to compile", MEMORY >> 20), "memory")
}

impl Worker {
    async fn start(command: &WorkerCommand, vocabulary: &[u8]) -> io::Result<Worker> {
        // It needs nothing from the environment, which may hold keys, except where to find libraries.
        let libraries = ["LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"];
        let kept = libraries.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
        let mut child = Command::new(&command.program)
            .args(&command.args)
            .env_clear()
            .envs(kept)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // A group of its own: an interrupt at the terminal is for the router.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("its pipes are not there"));
        };
        let mut worker = Worker { child, input, output };
        match worker.ask(vocabulary).await {
            Ok(_) => Ok(worker),
            Err(error) => {
                let _ = worker.child.start_kill();
                let status = worker.child.wait().await?;
                Err(io::Error::other(format!("{error} ({status})")))
            }
        }
    }

    /// Sends a message and waits for its answer.
    async fn ask(&mut self, message: &[u8]) -> io::Result<Answer> {
        let too_long = |_| io::Error::new(io::ErrorKind::InvalidInput, "a message is too long");
        let length = u32::try_from(message.len()).map_err(too_long)?;
        self.input.write_all(&length.to_le_bytes()).await?;
        self.input.write_all(message).await?;
        self.input.flush().await?;
        let length = self.output.read_u32_le().await? as usize;
        if length > LONGEST_ANSWER {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "an answer is too long"));
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

    use super::*;
    use crate::grammar::{Compiler, Grammar};
    use crate::test_support::{self, EOS};

    /// A shell script in place of a worker. It says that it is ready, then does `then`; each start adds a line to
    /// the file `starts`.
    fn pretend(folder: &Path, then: &str) -> Compiler {
        let ready = r#"{"verdict":"Fits","is_worn":false}"#;
        assert_eq!(ready.len(), 0o42);
        let script =
            format!("echo >> {}/starts; printf '\\042\\000\\000\\000{ready}'; {then}", folder.display());
        let command = WorkerCommand { program: "/bin/sh".into(), args: vec!["-c".into(), script.into()] };
        Compiler::with_workers(test_support::tokenizer(), Arc::new([EOS]), Some(command))
    }

    fn starts(folder: &Path) -> usize {
        std::fs::read_to_string(folder.join("starts")).unwrap_or_default().lines().count()
    }

    async fn compile(compiler: &Compiler, text: &str) -> Result<(), GrammarError> {
        compiler.compile(&Grammar::Regex(text.into()), EOS + 1).await.map(drop)
    }

    #[tokio::test]
    async fn a_grammar_that_ends_its_worker_is_refused_and_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let compiler = pretend(folder.path(), "/usr/bin/head -c 600 > /dev/null; kill -ABRT $$");
        for _ in 0..3 {
            // The vocabulary is longer than what the script reads, so that it ends in any case.
            let error = compile(&compiler, "a").await.unwrap_err();
            assert!(error.to_string().contains("MiB of memory"), "{error}");
        }
        assert_eq!(starts(folder.path()), 1);
        assert!(compile(&compiler, "b").await.is_err());
        assert_eq!(starts(folder.path()), 2);
        assert_eq!(compiler.free_places(), (2, 1));
    }

    #[tokio::test]
    async fn grammars_that_take_long_leave_the_quick_lane() {
        let folder = tempfile::tempdir().unwrap();
        let compiler = pretend(folder.path(), "exec /bin/sleep 3");
        let texts = ["a", "b", "c", "d", "e"];
        let since = Instant::now();
        let outcomes = futures::future::join_all(texts.map(|text| compile(&compiler, text))).await;
        let slow =
            outcomes.iter().filter(|outcome| matches!(outcome, Err(GrammarError::TooComplex(_)))).count();
        let put_off = outcomes.iter().filter(|outcome| matches!(outcome, Err(GrammarError::Busy))).count();
        // One goes on in the slow lane until its worker ends; others find it occupied.
        assert!(slow >= 1 && put_off >= 1 && slow + put_off == texts.len(), "{outcomes:?}");
        assert!(since.elapsed() < Duration::from_secs(9), "{:?}", since.elapsed());
        assert_eq!(compiler.free_places(), (2, 1));
    }

    #[tokio::test]
    async fn a_worker_that_cannot_be_started_is_not_tried_again_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let script = format!("echo >> {}/starts; exit 1", folder.path().display());
        for (program, args) in [("/bin/sh", vec!["-c".into(), script.into()]), ("/nowhere/at/all", vec![])] {
            let command = WorkerCommand { program: program.into(), args };
            let compiler = Compiler::with_workers(test_support::tokenizer(), Arc::new([EOS]), Some(command));
            for text in ["a", "b", "c"] {
                assert_eq!(compile(&compiler, text).await, Err(GrammarError::Busy));
            }
            assert_eq!(compiler.free_places(), (2, 1));
        }
        assert!(starts(folder.path()) < 3);
    }
}
