//! What may be generated, worked out beside the engine's loop.
//!
//! A constraint is a state machine over token ids. After each token of its request it is advanced on one of a few
//! threads of its own, while the shards compute the steps of others; then the scheduler is told what may come next.
//! The threads are shared fairly ([`queue`]), and a request that takes too much of their time ends with an error.

mod queue;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::mpsc;

use self::queue::{Account, Queue, Worker};
use crate::scheduler::{Mask, SeqId};

/// Most threads that work masks out, besides the one for heavy requests alone.
const MOST_THREADS: usize = 8;

/// The parser of a grammar recurses, and so do the structures that it drops.
const STACK: usize = 16 << 20;

/// How much less important than others the thread for heavy requests is to the system's scheduler.
const NICENESS: i32 = 5;

/// What may be generated, from the beginning on.
pub trait Constraint: Send {
    /// Takes in the next token, which it has allowed, and says what may follow. It is bounded in time and memory.
    ///
    /// # Errors
    /// Why it cannot go on; the text is fit for a client.
    fn advance(&mut self, token: u32) -> Result<Mask, String>;

    /// CPU time that a token is expected to take, as far as that is known before the first one.
    fn expected_cost(&self) -> Duration {
        Duration::ZERO
    }
}

/// CPU time that this thread has taken.
pub(crate) fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // Neither is negative, and there are less than 10^9 nanoseconds.
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A request's constraint, and the CPU time that it has taken.
pub(super) struct Followed {
    constraint: Box<dyn Constraint>,
    account: Account,
}

impl From<Box<dyn Constraint>> for Followed {
    fn from(constraint: Box<dyn Constraint>) -> Self {
        let account = Account::new(constraint.expected_cost());
        Followed { constraint, account }
    }
}

/// A token of a constrained sequence.
struct Job {
    id: SeqId,
    generated: usize,
    token: u32,
    followed: Followed,
    /// Whether the request was heavy when the job came.
    is_heavy: bool,
}

/// What may follow a token.
pub(super) struct Advanced {
    pub(super) id: SeqId,
    /// Tokens that have been generated, this one included.
    pub(super) generated: usize,
    /// The constraint in its new state, and what it allows; or why it does not go on.
    pub(super) result: Result<(Followed, Mask), String>,
    is_heavy: bool,
}

/// The threads. They are started with the first job and end when this is dropped.
pub(super) struct MaskPool {
    jobs: Option<Arc<Queue<Job>>>,
    results: mpsc::UnboundedReceiver<Advanced>,
    /// Kept for the threads, and so that the channel never closes.
    done: mpsc::UnboundedSender<Advanced>,
    /// Jobs of light requests without a result.
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

    /// Works out what may follow `token`, the sequence's token number `generated`. There is never more than one job for
    /// a sequence, so the queue is bounded by the number of sequences.
    pub(super) fn advance(&mut self, id: SeqId, generated: usize, token: u32, followed: Followed) {
        let account = followed.account;
        let is_heavy = account.is_heavy();
        self.pending += usize::from(!is_heavy);
        if self.jobs.is_none() {
            self.jobs = start(&self.done);
        }
        match &self.jobs {
            Some(jobs) => jobs.push(Job { id, generated, token, followed, is_heavy }, &account),
            None => {
                let result = Err("there is no thread for the grammar".to_owned());
                let _ = self.done.send(Advanced { id, generated, result, is_heavy });
            }
        }
    }

    /// The next result. Cancel safe.
    pub(super) async fn next(&mut self) -> Advanced {
        match self.results.recv().await {
            Some(advanced) => self.received(advanced),
            // Cannot be: this holds a sender itself.
            None => std::future::pending().await,
        }
    }

    /// A result that is there.
    pub(super) fn try_next(&mut self) -> Option<Advanced> {
        let advanced = self.results.try_recv().ok()?;
        Some(self.received(advanced))
    }

    /// Whether more results will come soon: those of light requests.
    pub(super) fn is_busy(&self) -> bool {
        self.pending > 0
    }

    fn received(&mut self, advanced: Advanced) -> Advanced {
        self.pending -= usize::from(!advanced.is_heavy);
        advanced
    }
}

/// The queue of the threads; nothing if not a single thread of the kind that serves all could be started.
fn start(done: &mpsc::UnboundedSender<Advanced>) -> Option<Arc<Queue<Job>>> {
    let jobs = Arc::new(Queue::<Job>::new());
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let others = cores.div_ceil(2).min(MOST_THREADS) - 1;
    let kinds = [Worker::Light, Worker::Heavy].into_iter().chain(std::iter::repeat_n(Worker::Any, others));
    for (index, kind) in kinds.enumerate() {
        let (queue, done) = (jobs.clone(), done.clone());
        let work = move || {
            if kind == Worker::Heavy {
                // Of this thread alone. Without it heavy requests are only less considerate.
                let _ = rustix::process::setpriority_process(None, NICENESS);
            }
            while let Some(job) = queue.pop(kind) {
                if done.send(job.run()).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name(format!("mask-{index}")).stack_size(STACK);
        if let Err(error) = thread.spawn(work) {
            tracing::error!(
                %error,
                "a thread for grammars could not be started; allow this user more processes (ulimit -u)"
            );
            // Without one of the first two, some requests would wait for ever.
            if kind != Worker::Any {
                jobs.close();
                return None;
            }
        }
    }
    Some(jobs)
}

impl Job {
    fn run(self) -> Advanced {
        let Job { id, generated, token, mut followed, is_heavy } = self;
        let since = thread_time();
        // A fault in a grammar is the end of its request, not of the thread.
        let advanced = catch_unwind(AssertUnwindSafe(|| followed.constraint.advance(token)));
        let cost = thread_time().saturating_sub(since);
        let result = match advanced {
            Ok(Ok(mask)) => followed.account.charge(cost, generated).map(|()| (followed, mask)),
            Ok(Err(why)) => Err(why),
            Err(panic) => {
                tracing::error!("a grammar panicked: {}", text_of(&*panic));
                Err("the grammar could not be followed".to_owned())
            }
        };
        Advanced { id, generated, result, is_heavy }
    }
}

/// What a panic says.
pub(crate) fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("for no known reason")
}
