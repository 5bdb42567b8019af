//! Computes the masks of constrained requests on a thread pool, beside the event loop.
//!
//! A constraint is a state machine over token ids. After each token of its request it advances on a
//! thread of the pool, while the shards compute steps of other requests. Then the event loop gives
//! the mask to the scheduler. The threads are shared fairly ([`queue`]), and a request that takes
//! too much CPU time fails.

mod queue;

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use millrace_answers::{Constraint, Mask};
use millrace_scheduler::SeqId;
use millrace_text::thread_time;
use tokio::sync::mpsc;

use self::queue::{CpuAccount, MaskQueue, WorkerKind};

/// Maximum number of threads that compute masks, besides the thread that serves heavy requests
/// only.
const MAX_THREADS: usize = 8;

/// Stack size of a thread. The parser of a grammar recurses, and so does dropping its structures.
const STACK_SIZE: usize = 16 << 20;

/// The nice value of the thread for heavy requests, relative to other threads.
const NICENESS: i32 = 5;

/// The constraint of a request, and the CPU time that it has used.
pub(super) struct TrackedConstraint {
    constraint: Box<dyn Constraint>,
    account: CpuAccount,
}

impl fmt::Debug for TrackedConstraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TrackedConstraint")
    }
}

impl From<Box<dyn Constraint>> for TrackedConstraint {
    fn from(constraint: Box<dyn Constraint>) -> Self {
        let account = CpuAccount::new(constraint.expected_cost());
        TrackedConstraint { constraint, account }
    }
}

/// Computes the mask after a token of a constrained sequence.
struct MaskJob {
    id: SeqId,
    generated: usize,
    token: u32,
    constraint: TrackedConstraint,
    /// Whether the request was heavy when the job was queued.
    is_heavy: bool,
}

/// The mask after a token.
pub(super) struct MaskResult {
    pub(super) id: SeqId,
    /// Number of generated tokens, including this one.
    pub(super) generated: usize,
    /// The constraint in its new state and the mask, or the reason for which there is no mask.
    pub(super) result: Result<(TrackedConstraint, Mask), String>,
    is_heavy: bool,
}

/// The thread pool. The threads start with the first job and end when the pool is dropped.
pub(super) struct MaskPool {
    jobs: Option<Arc<MaskQueue<MaskJob>>>,
    results: mpsc::UnboundedReceiver<MaskResult>,
    /// The sender for the threads. It is kept here, so the channel never closes.
    done: mpsc::UnboundedSender<MaskResult>,
    /// Number of jobs of light requests without a result.
    pending: usize,
}

impl Drop for MaskPool {
    fn drop(&mut self) {
        if let Some(jobs) = &self.jobs {
            jobs.close();
        }
    }
}

impl MaskPool {
    pub(super) fn new() -> Self {
        let (done, results) = mpsc::unbounded_channel();
        MaskPool { jobs: None, results, done, pending: 0 }
    }

    /// Computes the mask after `token`, the sequence's token number `generated`. A sequence never
    /// has more than one job, so the queue is bounded by the number of sequences.
    pub(super) fn advance(&mut self, id: SeqId, generated: usize, token: u32, constraint: TrackedConstraint) {
        let account = constraint.account;
        let is_heavy = account.is_heavy();
        self.pending += usize::from(!is_heavy);
        if self.jobs.is_none() {
            self.jobs = start_threads(&self.done);
        }
        match &self.jobs {
            Some(jobs) => jobs.push(MaskJob { id, generated, token, constraint, is_heavy }, &account),
            None => {
                let result = Err("there is no thread for the grammar".to_owned());
                let _ = self.done.send(MaskResult { id, generated, result, is_heavy });
            }
        }
    }

    /// Waits for the next result. Cancel safe.
    pub(super) async fn next(&mut self) -> MaskResult {
        match self.results.recv().await {
            Some(result) => self.received(result),
            // Unreachable, because `self.done` is a sender.
            None => std::future::pending().await,
        }
    }

    /// Returns a result if there is one.
    pub(super) fn try_next(&mut self) -> Option<MaskResult> {
        let result = self.results.try_recv().ok()?;
        Some(self.received(result))
    }

    /// Whether more results will come soon, because jobs of light requests are queued or running.
    pub(super) fn is_busy(&self) -> bool {
        self.pending > 0
    }

    fn received(&mut self, result: MaskResult) -> MaskResult {
        self.pending -= usize::from(!result.is_heavy);
        result
    }
}

/// Starts the threads and returns their queue, or `None` if one of the first two threads could not
/// be started.
fn start_threads(done: &mpsc::UnboundedSender<MaskResult>) -> Option<Arc<MaskQueue<MaskJob>>> {
    let jobs = Arc::new(MaskQueue::<MaskJob>::new());
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let others = cores.div_ceil(2).min(MAX_THREADS) - 1;
    let kinds = [WorkerKind::Light, WorkerKind::Heavy]
        .into_iter()
        .chain(std::iter::repeat_n(WorkerKind::Any, others));
    for (index, kind) in kinds.enumerate() {
        let (queue, done) = (jobs.clone(), done.clone());
        let work = move || {
            if kind == WorkerKind::Heavy {
                // It applies to this thread alone. If it fails, heavy requests merely disturb other
                // work more.
                let _ = rustix::process::setpriority_process(None, NICENESS);
            }
            while let Some(job) = queue.pop(kind) {
                if done.send(job.run()).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name(format!("mask-{index}")).stack_size(STACK_SIZE);
        if let Err(error) = thread.spawn(work) {
            tracing::error!(
                %error,
                "cannot start a thread for grammars; allow this user more processes (ulimit -u)"
            );
            // Without one of the first two threads, some requests would wait forever.
            if kind != WorkerKind::Any {
                jobs.close();
                return None;
            }
        }
    }
    Some(jobs)
}

impl MaskJob {
    fn run(self) -> MaskResult {
        let MaskJob { id, generated, token, mut constraint, is_heavy } = self;
        let since = thread_time();
        // A panic in a grammar ends its request, but not the thread.
        let advanced = catch_unwind(AssertUnwindSafe(|| constraint.constraint.advance(token)));
        let cost = thread_time().saturating_sub(since);
        let result = match advanced {
            Ok(Ok(mask)) => constraint.account.charge(cost, generated).map(|()| (constraint, mask)),
            Ok(Err(reason)) => Err(reason),
            Err(panic) => {
                tracing::error!("a grammar panicked: {}", text_of(&*panic));
                Err("the grammar could not be followed".to_owned())
            }
        };
        MaskResult { id, generated, result, is_heavy }
    }
}

/// The message of a panic.
pub(crate) fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("for no known reason")
}
