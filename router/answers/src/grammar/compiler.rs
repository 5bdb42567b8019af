//! Scheduling of the compilation of clients' grammars for one model: few at a time, within bounds,
//! and each grammar only once.
//!
//! ```text
//! bounds ─► cache ─► join equal requests ─► queue ─► quick lane ─► router's own parser
//!                                                                       └─► slow lane ─┘
//! ```
//!
//! Each grammar starts in the quick lane. A grammar that takes longer than [`QUICK_LANE_TIME`]
//! needs a free permit of the slow lane, or is refused for now. Therefore grammars that take
//! seconds never delay the others.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use millrace_text::Tokenizer;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

use super::cache::{CompileOutcome, GrammarCache, GrammarKey, GrammarKeys};
use super::compiled::CompiledGrammar;
use super::definition::Grammar;
use super::error::GrammarError;
use super::factory::{GrammarFactory, STACK_BYTES};
use super::vocabulary::Vocabulary;
use super::worker::{GrammarWorkerCommand, TrialError, WorkerPool, job_bytes};
use super::{bounds, metrics};

/// The number of grammars that are checked against the bounds at the same time.
const MAX_CHECKS: usize = 4;
/// The number of grammars in the quick lane.
const QUICK_LANE_PERMITS: usize = 2;
/// The number of grammars in the slow lane.
const SLOW_LANE_PERMITS: usize = 1;
/// The time that a grammar may spend in the quick lane.
const QUICK_LANE_TIME: Duration = Duration::from_millis(500);
/// The number of grammars that may wait for the quick lane.
const MAX_WAITING: usize = 64;
/// The time that a grammar waits for the quick lane.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(10);
/// The time that a client waits for the router's own parser. With workers, the router compiles only
/// grammars that a worker has compiled within its limits, which takes far less time.
const COMPILE_TIMEOUT: Duration = Duration::from_secs(5);

/// Compiles grammars for one model. Clones share the same state.
#[derive(Clone)]
pub struct GrammarCompiler(Arc<CompilerState>);

struct CompilerState {
    tokenizer: Tokenizer,
    eos: Arc<[u32]>,
    /// Created with the first grammar, because the size of the model's vocabulary is known then.
    model: OnceLock<Result<ModelContext, GrammarError>>,
    keys: GrammarKeys,
    cache: Mutex<GrammarCache>,
    pending: Mutex<HashMap<GrammarKey, PendingCompilation>>,
    checks: Arc<Semaphore>,
    queue: Semaphore,
    quick: Arc<Semaphore>,
    slow: Arc<Semaphore>,
    /// The processes in which grammars are tried. Without them, grammars are compiled in this
    /// process only.
    workers: Option<WorkerPool>,
}

/// The data for compiling grammars for the model.
struct ModelContext {
    factory: GrammarFactory,
    /// The vocabulary in the workers' format.
    vocabulary: Vec<u8>,
}

/// A grammar that has passed the bounds.
struct CompileJob {
    key: GrammarKey,
    grammar: Grammar,
    vocab_size: u32,
    /// The grammar in the workers' format.
    bytes: Vec<u8>,
}

/// A compilation that requests wait for.
#[derive(Clone)]
struct PendingCompilation {
    outcome: Shared<BoxFuture<'static, CompileOutcome>>,
    /// Each waiting request holds a clone.
    waiters: Arc<()>,
}

/// A permit for one of the lanes.
struct LanePermit {
    permit: OwnedSemaphorePermit,
    is_slow: bool,
}

impl fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiler").finish_non_exhaustive()
    }
}

impl GrammarCompiler {
    /// Creates a compiler for a model whose texts end with one of `eos`. All work is done in this
    /// process, so that only llguidance's limits bound its time and memory.
    pub fn new(tokenizer: Tokenizer, eos: Arc<[u32]>) -> Self {
        Self::with_workers(tokenizer, eos, None)
    }

    /// Creates a compiler like [`new`](Self::new). If `command` is given, grammars are tried in
    /// processes that it starts.
    pub fn with_workers(
        tokenizer: Tokenizer,
        eos: Arc<[u32]>,
        command: Option<GrammarWorkerCommand>,
    ) -> Self {
        metrics::describe();
        GrammarCompiler(Arc::new(CompilerState {
            tokenizer,
            eos,
            model: OnceLock::new(),
            keys: GrammarKeys::default(),
            cache: Mutex::default(),
            pending: Mutex::default(),
            checks: Arc::new(Semaphore::new(MAX_CHECKS)),
            queue: Semaphore::new(MAX_WAITING),
            quick: Arc::new(Semaphore::new(QUICK_LANE_PERMITS)),
            slow: Arc::new(Semaphore::new(SLOW_LANE_PERMITS)),
            workers: command.map(WorkerPool::new),
        }))
    }

    /// Compiles a grammar for a model with `vocab_size` tokens on other threads.
    ///
    /// # Errors
    /// [`GrammarError`] says what is wrong with the grammar.
    pub async fn compile(
        &self,
        grammar: &Grammar,
        vocab_size: u32,
    ) -> Result<Arc<CompiledGrammar>, GrammarError> {
        let outcome = match self.look_up(grammar, vocab_size).await {
            Ok(Lookup::Known(outcome)) => outcome,
            Ok(Lookup::New(job)) => self.join(job).await,
            Err(error) => Err(error),
        };
        outcome.inspect_err(metrics::refused)
    }

    /// Compiles a grammar like [`compile`](Self::compile). If it is too complex because of single
    /// tools, their schemas are left out. Returns the places of these tools, too.
    ///
    /// # Errors
    /// The same as [`compile`](Self::compile).
    pub async fn compile_tools(
        &self,
        grammar: &Grammar,
        vocab_size: u32,
    ) -> Result<(Arc<CompiledGrammar>, BTreeSet<usize>), GrammarError> {
        let error = match self.compile(grammar, vocab_size).await {
            Err(error @ GrammarError::TooComplex(_)) => error,
            outcome => return outcome.map(|compiled| (compiled, BTreeSet::new())),
        };
        let permit = self.0.checks.clone().acquire_owned().await.map_err(|_| GrammarError::Busy)?;
        let whole = grammar.clone();
        let reduce = move || {
            let _permit = permit;
            bounds::without_excessive_tools(&whole)
        };
        let reduced = tokio::task::spawn_blocking(reduce).await.map_err(|_| compile_failed())?;
        let Some((reduced, left_out)) = reduced else { return Err(error) };
        self.compile(&reduced, vocab_size).await.map(|compiled| (compiled, left_out))
    }

    /// Finds the grammar in the cache, or checks it against the bounds. The calling thread reads
    /// only its size.
    async fn look_up(&self, grammar: &Grammar, vocab_size: u32) -> Result<Lookup, GrammarError> {
        bounds::size_within(grammar)?;
        let permit = self.0.checks.clone().acquire_owned().await.map_err(|_| GrammarError::Busy)?;
        let (compiler, grammar) = (self.clone(), grammar.clone());
        let check = move || {
            // The work itself holds the permit. If the client disconnects, the permit stays taken
            // until the check is done.
            let _permit = permit;
            let grammar = with_plain_references(grammar);
            let bytes = job_bytes(&grammar, vocab_size);
            let key = compiler.0.keys.of(&bytes);
            if let Some(known) = compiler.cache().get(key) {
                return Ok(Lookup::Known(known));
            }
            bounds::check(&grammar)?;
            Ok(Lookup::New(CompileJob { key, grammar, vocab_size, bytes }))
        };
        tokio::task::spawn_blocking(check).await.unwrap_or_else(|_| Err(compile_failed()))
    }

    /// Waits for the result of a grammar together with all other requests for the same grammar.
    async fn join(&self, job: CompileJob) -> CompileOutcome {
        let PendingCompilation { outcome, waiters } = {
            let mut pending = self.pending();
            let key = job.key;
            // A compilation that ended after the cache was searched has left its result there.
            if !pending.contains_key(&key)
                && let Some(known) = self.cache().get(key)
            {
                return known;
            }
            // The task continues when its client disconnects, and ends within the limits.
            let start = || {
                let waiters = Arc::new(());
                let task = tokio::spawn(self.clone().work(job, waiters.clone()));
                let outcome = async move { task.await.unwrap_or_else(|_| Err(compile_failed())) };
                PendingCompilation { outcome: outcome.boxed().shared(), waiters }
            };
            pending.entry(key).or_insert_with(start).clone()
        };
        let outcome = outcome.await;
        drop(waiters);
        outcome
    }

    async fn work(self, job: CompileJob, waiters: Arc<()>) -> CompileOutcome {
        let key = job.key;
        let outcome = match self.lane_permit(key, &waiters).await {
            Ok(lane_permit) => self.attempt(job, lane_permit).await,
            Err(error) => Err(error),
        };
        let mut pending = self.pending();
        // Another request may have started the grammar again after it was given up.
        if pending.get(&key).is_some_and(|pending| Arc::ptr_eq(&pending.waiters, &waiters)) {
            pending.remove(&key);
        }
        outcome
    }

    /// Waits for a permit of the quick lane.
    ///
    /// # Errors
    /// [`GrammarError::Busy`] if no permit was free in time, or no request waits for the grammar
    /// any more.
    async fn lane_permit(&self, key: GrammarKey, waiters: &Arc<()>) -> Result<LanePermit, GrammarError> {
        let queued = self.0.queue.try_acquire().map_err(|_| GrammarError::Busy)?;
        let turn = timeout(QUEUE_TIMEOUT, self.0.quick.clone().acquire_owned()).await;
        drop(queued);
        let Ok(Ok(permit)) = turn else { return Err(GrammarError::Busy) };
        let mut pending = self.pending();
        // One clone is here, and one is in the map entry.
        if Arc::strong_count(waiters) <= 2 {
            pending.remove(&key);
            return Err(GrammarError::Busy);
        }
        Ok(LanePermit { permit, is_slow: false })
    }

    /// Tries a grammar, compiles it, and caches the result.
    async fn attempt(&self, job: CompileJob, lane_permit: LanePermit) -> CompileOutcome {
        let compiler = self.clone();
        let model = move || compiler.model(job.vocab_size).map(drop);
        tokio::task::spawn_blocking(model).await.unwrap_or_else(|_| Err(compile_failed()))?;
        let lane_permit = self.try_out(&job, lane_permit).await?;
        let (key, (done, result)) = (job.key, oneshot::channel());
        let compiler = self.clone();
        let work = move || {
            if lane_permit.is_slow {
                // Lowering the priority is optional, so an error is ignored.
                let _ = rustix::process::setpriority_process(None, 5);
            }
            let outcome = compiler.compile_now(&job.grammar, job.vocab_size).map(Arc::new);
            match &outcome {
                Ok(compiled) => {
                    metrics::compiled();
                    compiler.cache().keep(key, compiled);
                }
                Err(error) => compiler.cache().refuse(key, error, false),
            }
            // The work itself returns the permit. It stays taken if the client disconnects.
            drop(lane_permit.permit);
            let _ = done.send(outcome);
        };
        let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK_BYTES);
        thread.spawn(work).map_err(|_| GrammarError::Busy)?;
        match timeout(COMPILE_TIMEOUT, result).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(compile_failed()),
            Err(_) => {
                let reason = format!("it takes longer than {} s to compile", COMPILE_TIMEOUT.as_secs());
                let error = GrammarError::TooComplex(reason);
                self.cache().refuse(key, &error, true);
                Err(error)
            }
        }
    }

    /// Tries a grammar in a worker, if there are workers. Returns the permit of the lane in which
    /// the grammar ended.
    ///
    /// # Errors
    /// The reason why the grammar is refused.
    async fn try_out(
        &self,
        job: &CompileJob,
        mut lane_permit: LanePermit,
    ) -> Result<LanePermit, GrammarError> {
        let Some(workers) = &self.0.workers else { return Ok(lane_permit) };
        let vocabulary = &self.model(job.vocab_size)?.vocabulary;
        let trial = workers.worker(vocabulary).await?.run(vocabulary, &job.bytes);
        tokio::pin!(trial);
        let result = match timeout(QUICK_LANE_TIME, &mut trial).await {
            Ok(result) => result,
            Err(_) => {
                let permit = self.0.slow.clone().try_acquire_owned().map_err(|_| GrammarError::Busy)?;
                lane_permit = LanePermit { permit, is_slow: true };
                trial.await
            }
        };
        match result {
            Ok(()) => Ok(lane_permit),
            Err(TrialError { error, may_succeed_later }) => {
                if error != GrammarError::Busy {
                    self.cache().refuse(job.key, &error, may_succeed_later);
                }
                Err(error)
            }
        }
    }

    /// Compiles a grammar on the current thread, which needs a stack of [`STACK_BYTES`] bytes.
    pub(super) fn compile_now(
        &self,
        grammar: &Grammar,
        vocab_size: u32,
    ) -> Result<CompiledGrammar, GrammarError> {
        self.model(vocab_size)?.factory.compile(grammar, vocab_size)
    }

    /// Returns the model's data. The first call creates it on the current thread, which takes some
    /// time.
    fn model(&self, vocab_size: u32) -> Result<&ModelContext, GrammarError> {
        let make = || {
            let CompilerState { tokenizer, eos, .. } = &*self.0;
            let vocabulary = Vocabulary::new(tokenizer, eos, tokenizer.size().min(vocab_size))?;
            let factory = GrammarFactory::new(&vocabulary)?;
            let bytes = if self.0.workers.is_some() { vocabulary.to_bytes() } else { Vec::new() };
            Ok(ModelContext { factory, vocabulary: bytes })
        };
        self.0.model.get_or_init(make).as_ref().map_err(Clone::clone)
    }

    fn cache(&self) -> MutexGuard<'_, GrammarCache> {
        self.0.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pending(&self) -> MutexGuard<'_, HashMap<GrammarKey, PendingCompilation>> {
        self.0.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of free permits of the quick and the slow lane.
    #[cfg(test)]
    pub(super) fn free_permits(&self) -> (usize, usize) {
        (self.0.quick.available_permits(), self.0.slow.available_permits())
    }
}

/// Returns a grammar in whose schemas all references are plain paths.
fn with_plain_references(grammar: Grammar) -> Grammar {
    use super::schema::with_plain_references as plain;
    match grammar {
        Grammar::Json(schema) => Grammar::Json(plain(schema)),
        Grammar::Calls { rules, schemas, answer } => {
            let schemas = schemas.into_iter().map(|(name, schema)| (name, plain(schema))).collect();
            Grammar::Calls { rules, schemas, answer: answer.map(plain) }
        }
        Grammar::AfterReasoning { rules, answer } => {
            Grammar::AfterReasoning { rules, answer: Box::new(with_plain_references(*answer)) }
        }
        other @ (Grammar::Regex(_) | Grammar::Lark(_)) => other,
    }
}

/// The result of a look-up in the cache.
enum Lookup {
    /// The grammar was compiled or refused before.
    Known(CompileOutcome),
    /// The grammar is new.
    New(CompileJob),
}

fn compile_failed() -> GrammarError {
    GrammarError::Invalid("it could not be compiled".into())
}
