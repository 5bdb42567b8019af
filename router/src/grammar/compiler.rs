//! Compiles the grammars of clients for one model: few at a time, within bounds, and each only once.
//!
//! ```text
//! bounds ─► cache ─► join others who wait for the same ─► queue ─► quick lane ─► router's own parser
//!                                                                     └─► slow lane ─┘
//! ```
//!
//! A grammar first has a place in the quick lane. One that does not fit there within [`QUICK`] has to find a free
//! place in the slow lane, or is refused for now: so grammars that take seconds never hold up the others.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

use super::cache::{Cache, Key, Keys, Outcome};
use super::parser::{Factory, STACK};
use super::vocabulary::Vocabulary;
use super::worker::{Pool, WorkerCommand, job_bytes};
use super::{Compiled, Grammar, GrammarError, bounds, meter};
use crate::text::Tokenizer;

/// Grammars that are checked against the bounds at the same time.
const CHECKS: usize = 4;
/// Places in the quick lane.
const QUICK_PLACES: usize = 2;
/// Places in the slow lane.
const SLOW_PLACES: usize = 1;
/// How long a grammar may stay in the quick lane.
const QUICK: Duration = Duration::from_millis(500);
/// Grammars that may wait for a place.
const MOST_WAITING: usize = 64;
/// How long a grammar waits for a place.
const TURN: Duration = Duration::from_secs(10);
/// How long a client waits for the router's own parser. With workers the router compiles only what has fitted
/// there, and comes to an end far earlier.
const TIME: Duration = Duration::from_secs(5);

/// Compiles grammars for one model. Clones are the same compiler.
#[derive(Clone)]
pub struct Compiler(Arc<Inner>);

struct Inner {
    tokenizer: Tokenizer,
    eos: Arc<[u32]>,
    /// Made with the first grammar, when the size of the model's vocabulary is known.
    model: OnceLock<Result<Model, GrammarError>>,
    keys: Keys,
    cache: Mutex<Cache>,
    running: Mutex<HashMap<Key, Running>>,
    checks: Arc<Semaphore>,
    queue: Semaphore,
    quick: Arc<Semaphore>,
    slow: Arc<Semaphore>,
    /// Where grammars are tried; without it they are compiled in this process alone.
    workers: Option<Pool>,
}

/// What the router and its workers compile for.
struct Model {
    factory: Factory,
    /// The vocabulary as workers take it.
    vocabulary: Vec<u8>,
}

/// A grammar that has passed the bounds.
struct Job {
    key: Key,
    grammar: Grammar,
    vocab_size: u32,
    /// The grammar as workers take it.
    bytes: Vec<u8>,
}

/// A grammar that somebody waits for.
#[derive(Clone)]
struct Running {
    outcome: Shared<BoxFuture<'static, Outcome>>,
    /// Everybody who waits holds a copy.
    interest: Arc<()>,
}

/// A place in one of the lanes.
struct Place {
    permit: OwnedSemaphorePermit,
    is_slow: bool,
}

impl fmt::Debug for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiler").finish_non_exhaustive()
    }
}

impl Compiler {
    /// A compiler for a model whose texts end with one of `eos`. All work is done in this process, so only the
    /// limits of llguidance bound its time and memory.
    pub fn new(tokenizer: Tokenizer, eos: Arc<[u32]>) -> Self {
        Self::with_workers(tokenizer, eos, None)
    }

    /// As [`new`](Self::new); grammars are tried in processes that `command` starts, if it is given.
    pub fn with_workers(tokenizer: Tokenizer, eos: Arc<[u32]>, command: Option<WorkerCommand>) -> Self {
        meter::describe();
        Compiler(Arc::new(Inner {
            tokenizer,
            eos,
            model: OnceLock::new(),
            keys: Keys::default(),
            cache: Mutex::default(),
            running: Mutex::default(),
            checks: Arc::new(Semaphore::new(CHECKS)),
            queue: Semaphore::new(MOST_WAITING),
            quick: Arc::new(Semaphore::new(QUICK_PLACES)),
            slow: Arc::new(Semaphore::new(SLOW_PLACES)),
            workers: command.map(Pool::new),
        }))
    }

    /// Compiles a grammar for a model with this many tokens, away from the async threads.
    ///
    /// # Errors
    /// [`GrammarError`] says what is wrong with it.
    pub async fn compile(&self, grammar: &Grammar, vocab_size: u32) -> Result<Arc<Compiled>, GrammarError> {
        let outcome = match self.look_up(grammar, vocab_size).await {
            Ok(Looked::Known(outcome)) => outcome,
            Ok(Looked::New(job)) => self.join(job).await,
            Err(error) => Err(error),
        };
        outcome.inspect_err(meter::refused)
    }

    /// Finds the grammar in the cache, or checks it against the bounds. Only its size is looked at on this thread.
    async fn look_up(&self, grammar: &Grammar, vocab_size: u32) -> Result<Looked, GrammarError> {
        bounds::size_within(grammar)?;
        let permit = self.0.checks.clone().acquire_owned().await.map_err(|_| GrammarError::Busy)?;
        let (compiler, grammar) = (self.clone(), grammar.clone());
        let check = move || {
            // Held by the work itself: a client that leaves does not free a place that is in use.
            let _permit = permit;
            let bytes = job_bytes(&grammar, vocab_size);
            let key = compiler.0.keys.of(&bytes);
            if let Some(known) = compiler.cache().get(key) {
                return Ok(Looked::Known(known));
            }
            bounds::check(&grammar)?;
            Ok(Looked::New(Job { key, grammar, vocab_size, bytes }))
        };
        tokio::task::spawn_blocking(check).await.unwrap_or_else(|_| Err(not_understood()))
    }

    /// Waits for the outcome of a grammar together with all others who want the same.
    async fn join(&self, job: Job) -> Outcome {
        let Running { outcome, interest } = {
            let mut running = self.running();
            let key = job.key;
            // It goes on when its client has left, and ends within the limits.
            let start = || {
                let interest = Arc::new(());
                let task = tokio::spawn(self.clone().work(job, interest.clone()));
                let outcome = async move { task.await.unwrap_or_else(|_| Err(not_understood())) };
                Running { outcome: outcome.boxed().shared(), interest }
            };
            running.entry(key).or_insert_with(start).clone()
        };
        let outcome = outcome.await;
        drop(interest);
        outcome
    }

    async fn work(self, job: Job, interest: Arc<()>) -> Outcome {
        let key = job.key;
        let outcome = match self.place(key, &interest).await {
            Ok(place) => self.attempt(job, place).await,
            Err(error) => Err(error),
        };
        let mut running = self.running();
        // Somebody may have begun anew after the grammar was given up.
        if running.get(&key).is_some_and(|running| Arc::ptr_eq(&running.interest, &interest)) {
            running.remove(&key);
        }
        outcome
    }

    /// A place in the quick lane.
    ///
    /// # Errors
    /// [`GrammarError::Busy`] if none was free in time, or nobody waits for the grammar any more.
    async fn place(&self, key: Key, interest: &Arc<()>) -> Result<Place, GrammarError> {
        let queued = self.0.queue.try_acquire().map_err(|_| GrammarError::Busy)?;
        let turn = timeout(TURN, self.0.quick.clone().acquire_owned()).await;
        drop(queued);
        let Ok(Ok(permit)) = turn else { return Err(GrammarError::Busy) };
        let mut running = self.running();
        // One copy is here, and one is with the entry itself.
        if Arc::strong_count(interest) <= 2 {
            running.remove(&key);
            return Err(GrammarError::Busy);
        }
        Ok(Place { permit, is_slow: false })
    }

    /// Tries a grammar, compiles it and remembers what came of it.
    async fn attempt(&self, job: Job, place: Place) -> Outcome {
        let compiler = self.clone();
        let model = move || compiler.model(job.vocab_size).map(drop);
        tokio::task::spawn_blocking(model).await.unwrap_or_else(|_| Err(not_understood()))?;
        let place = self.try_out(&job, place).await?;
        let (key, (done, result)) = (job.key, oneshot::channel());
        let compiler = self.clone();
        let work = move || {
            if place.is_slow {
                // Other threads go first; without that it is only less polite.
                let _ = rustix::process::setpriority_process(None, 5);
            }
            let outcome = compiler.compile_now(&job.grammar, job.vocab_size).map(Arc::new);
            match &outcome {
                Ok(compiled) => {
                    meter::compiled();
                    compiler.cache().keep(key, compiled);
                }
                Err(error) => compiler.cache().refuse(key, error, false),
            }
            // Given back by the work itself, not when its client has left.
            drop(place.permit);
            let _ = done.send(outcome);
        };
        let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK);
        thread.spawn(work).map_err(|_| GrammarError::Busy)?;
        match timeout(TIME, result).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(not_understood()),
            Err(_) => {
                let why = format!("it takes longer than {} s to compile", TIME.as_secs());
                let error = GrammarError::TooComplex(why);
                self.cache().refuse(key, &error, true);
                Err(error)
            }
        }
    }

    /// Tries a grammar in a worker, if there are any. Returns the place in whose lane it has ended up.
    ///
    /// # Errors
    /// Why the grammar is refused.
    async fn try_out(&self, job: &Job, mut place: Place) -> Result<Place, GrammarError> {
        let Some(workers) = &self.0.workers else { return Ok(place) };
        let vocabulary = &self.model(job.vocab_size)?.vocabulary;
        let trial = workers.worker(vocabulary).await?.run(&job.bytes);
        tokio::pin!(trial);
        let result = match timeout(QUICK, &mut trial).await {
            Ok(result) => result,
            Err(_) => {
                let permit = self.0.slow.clone().try_acquire_owned().map_err(|_| GrammarError::Busy)?;
                place = Place { permit, is_slow: true };
                trial.await
            }
        };
        match result {
            Ok(()) => Ok(place),
            Err((error, unlucky)) => {
                self.cache().refuse(job.key, &error, unlucky);
                Err(error)
            }
        }
    }

    /// Compiles a grammar on this thread, which needs a deep stack.
    pub(super) fn compile_now(&self, grammar: &Grammar, vocab_size: u32) -> Result<Compiled, GrammarError> {
        self.model(vocab_size)?.factory.compile(grammar, vocab_size)
    }

    /// The model; made on this thread if this is the first grammar, which takes some time.
    fn model(&self, vocab_size: u32) -> Result<&Model, GrammarError> {
        let make = || {
            let Inner { tokenizer, eos, .. } = &*self.0;
            let vocabulary = Vocabulary::new(tokenizer, eos, tokenizer.size().min(vocab_size))?;
            let factory = Factory::new(&vocabulary)?;
            let bytes = if self.0.workers.is_some() { vocabulary.to_bytes() } else { Vec::new() };
            Ok(Model { factory, vocabulary: bytes })
        };
        self.0.model.get_or_init(make).as_ref().map_err(Clone::clone)
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.0.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn running(&self) -> MutexGuard<'_, HashMap<Key, Running>> {
        self.0.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Places that are free in the quick and in the slow lane.
    #[cfg(test)]
    pub(super) fn free_places(&self) -> (usize, usize) {
        (self.0.quick.available_permits(), self.0.slow.available_permits())
    }
}

/// What is known of a grammar before any work.
enum Looked {
    /// It was tried before.
    Known(Outcome),
    /// It was not.
    New(Job),
}

fn not_understood() -> GrammarError {
    GrammarError::Invalid("it could not be compiled".into())
}
