//! What may be generated, worked out beside the engine's loop.
//!
//! A constraint is a state machine over token ids. After each token of its request it is advanced on one of a few
//! threads of its own, while the shards compute the steps of others; then the scheduler is told what may come next.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, mpsc as blocking};
use std::thread;

use tokio::sync::mpsc;

use crate::scheduler::{Mask, SeqId};

/// Most threads that work masks out.
const MOST_THREADS: usize = 8;

/// The parser of a grammar recurses, and so do the structures that it drops.
const STACK: usize = 16 << 20;

/// What may be generated, from the beginning on.
pub trait Constraint: Send {
    /// Takes in the next token, which it has allowed, and says what may follow. It is bounded in time and memory.
    ///
    /// # Errors
    /// Why it cannot go on; the text is fit for a client.
    fn advance(&mut self, token: u32) -> Result<Mask, String>;
}

/// A token of a constrained sequence.
struct Job {
    id: SeqId,
    generated: usize,
    token: u32,
    constraint: Box<dyn Constraint>,
}

/// What may follow a token.
pub(super) struct Advanced {
    pub(super) id: SeqId,
    /// Tokens that have been generated, this one included.
    pub(super) generated: usize,
    /// The constraint in its new state, and what it allows; or why it does not go on.
    pub(super) result: Result<(Box<dyn Constraint>, Mask), String>,
}

/// The threads. They are started with the first job and end when this is dropped.
pub(super) struct MaskPool {
    jobs: Option<blocking::Sender<Job>>,
    results: mpsc::UnboundedReceiver<Advanced>,
    /// Kept for the threads, and so that the channel never closes.
    done: mpsc::UnboundedSender<Advanced>,
    /// Jobs without a result.
    pending: usize,
}

impl MaskPool {
    pub(super) fn new() -> Self {
        let (done, results) = mpsc::unbounded_channel();
        MaskPool { jobs: None, results, done, pending: 0 }
    }

    /// Works out what may follow `token`, the sequence's token number `generated`. There is never more than one job for
    /// a sequence, so the queue is bounded by the number of sequences.
    pub(super) fn advance(
        &mut self,
        id: SeqId,
        generated: usize,
        token: u32,
        constraint: Box<dyn Constraint>,
    ) {
        self.pending += 1;
        let jobs = self.jobs.get_or_insert_with(|| start(&self.done));
        if let Err(blocking::SendError(job)) = jobs.send(Job { id, generated, token, constraint }) {
            // No thread could be started.
            let result = Err("there is no thread for the grammar".to_owned());
            let _ = self.done.send(Advanced { id: job.id, generated, result });
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

    /// Whether more results will come.
    pub(super) fn is_busy(&self) -> bool {
        self.pending > 0
    }

    fn received(&mut self, advanced: Advanced) -> Advanced {
        self.pending -= 1;
        advanced
    }
}

fn start(done: &mpsc::UnboundedSender<Advanced>) -> blocking::Sender<Job> {
    let (jobs, queue) = blocking::channel::<Job>();
    let queue = Arc::new(Mutex::new(queue));
    let cores = thread::available_parallelism().map_or(1, usize::from);
    for index in 0..cores.div_ceil(2).min(MOST_THREADS) {
        let (queue, done) = (queue.clone(), done.clone());
        let work = move || {
            loop {
                let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                // The engine has ended.
                let Ok(job) = job else { return };
                if done.send(job.run()).is_err() {
                    return;
                }
            }
        };
        if let Err(error) = thread::Builder::new().name(format!("mask-{index}")).stack_size(STACK).spawn(work)
        {
            tracing::error!(%error, "a thread for grammars could not be started");
        }
    }
    jobs
}

impl Job {
    fn run(self) -> Advanced {
        let Job { id, generated, token, mut constraint } = self;
        // A fault in a grammar is the end of its request, not of the thread.
        let advanced = catch_unwind(AssertUnwindSafe(|| {
            let mask = constraint.advance(token)?;
            Ok((constraint, mask))
        }));
        let result = advanced.unwrap_or_else(|panic| {
            tracing::error!("a grammar panicked: {}", text_of(&*panic));
            Err("the grammar could not be followed".to_owned())
        });
        Advanced { id, generated, result }
    }
}

/// What a panic says.
pub(crate) fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("for no known reason")
}
