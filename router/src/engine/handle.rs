//! The handle of the engine: submit token ids, receive token ids.

use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use millrace_answers::Constraint;
use millrace_scheduler::{Request, SchedulerLimits, Tenant};
use tokio::sync::{mpsc, watch};

use super::account::{Account, ExceededLimit};
use super::adapter_load::AdaptersInUse;
use super::adapters::Adapters;
use super::command::EngineCommand;
use super::departures::Departures;
use super::event::EngineState;
use super::event::GenerationEvent;
use super::groups::{Candidate, Groups, ReadyGroups, RestartError};
use super::occupancy::{AdmissionBounds, Occupancy};

/// Why a request was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The maximum number of requests is waiting or running.
    #[error("Model is overloaded")]
    Overloaded {
        /// Estimated time until there is room for the request.
        retry_after: Duration,
    },
    /// A limit of the API key is reached.
    #[error("{limit}")]
    LimitExceeded {
        /// The limit.
        limit: ExceededLimit,
        /// Estimated time until the limit allows the request.
        retry_after: Duration,
    },
    /// The prompt and the new tokens can never fit.
    #[error("{0}")]
    TooLarge(String),
    /// The engine is loading, draining or has failed.
    #[error("{0}")]
    Unavailable(String),
}

/// A handle to the engine. Clones are handles to the same engine.
#[derive(Debug, Clone)]
pub struct Engine {
    groups: Arc<Groups>,
    state: watch::Receiver<EngineState>,
    occupancy: Arc<Occupancy>,
    departures: Departures,
    /// The account of the requests that are submitted through this handle, if they have one.
    account: Option<Arc<Account>>,
    /// The tenant of these requests.
    tenant: Tenant,
    prefix_cache: bool,
    /// The adapters that requests may name.
    adapters: Adapters,
}

impl Engine {
    /// A handle to the task that receives `commands`. The handle enforces the bounds.
    /// `prefix_cache` tells whether the engine keeps computed prefixes.
    pub fn new(
        commands: mpsc::UnboundedSender<EngineCommand>,
        state: watch::Receiver<EngineState>,
        bounds: AdmissionBounds,
        prefix_cache: bool,
    ) -> Self {
        Engine::over(vec![commands], ReadyGroups::from([true.into()]), state, bounds, prefix_cache)
    }

    /// A handle to the tasks that receive `commands`, each of which runs a group of shards.
    pub(super) fn over(
        commands: Vec<mpsc::UnboundedSender<EngineCommand>>,
        ready: ReadyGroups,
        state: watch::Receiver<EngineState>,
        bounds: AdmissionBounds,
        prefix_cache: bool,
    ) -> Self {
        let count = commands.len();
        Engine {
            groups: Arc::new(Groups::new(commands, ready)),
            state,
            occupancy: Occupancy::new(bounds, count),
            departures: Departures::new(count),
            account: None,
            tenant: Tenant::default(),
            prefix_cache,
            adapters: Adapters::default(),
        }
    }

    /// The same handle for an engine with these adapters, which from now on send their commands to
    /// it. They do not keep it running.
    #[must_use]
    pub(crate) fn with_adapters(self, adapters: Adapters) -> Self {
        let groups = Arc::downgrade(&self.groups);
        adapters.connect(move |command| {
            // If the engine has ended, its shards have ended too.
            if let Some(groups) = groups.upgrade() {
                groups.send_adapter_command(command);
            }
        });
        Engine { adapters, ..self }
    }

    /// A handle whose requests belong to a tenant, and count for an account.
    #[must_use]
    pub fn on_behalf_of(&self, tenant: Tenant, account: Option<Arc<Account>>) -> Self {
        Engine { account, tenant, ..self.clone() }
    }

    /// Whether computed prefixes are kept, so that requests should carry their block hashes. The
    /// engine would compute the hashes on its own thread, where they delay the next step.
    pub fn has_prefix_cache(&self) -> bool {
        self.prefix_cache
    }

    /// The counters that the event loop shares with the handles.
    pub(super) fn occupancy(&self) -> Arc<Occupancy> {
        self.occupancy.clone()
    }

    /// The signal with which the handles' generations wake the event loop.
    pub(super) fn departures(&self) -> Departures {
        self.departures.clone()
    }

    /// The groups of shards. Only handles keep the engine running.
    pub(super) fn groups(&self) -> Weak<Groups> {
        Arc::downgrade(&self.groups)
    }

    /// The state of the engine, and a way to wait for changes.
    pub fn state(&self) -> watch::Receiver<EngineState> {
        self.state.clone()
    }

    /// Submits a request.
    ///
    /// # Errors
    /// [`SubmitError`] if the request was not accepted; nothing has been queued then.
    pub fn submit(&self, request: Request) -> Result<Generation, SubmitError> {
        self.submit_with(request, None)
    }

    /// Submits a request that may generate only what `constraint` allows. The mask of the request
    /// is for the first token.
    ///
    /// # Errors
    /// The same as [`submit`](Self::submit).
    pub fn submit_constrained(
        &self,
        request: Request,
        constraint: Box<dyn Constraint>,
    ) -> Result<Generation, SubmitError> {
        debug_assert!(request.mask.is_some(), "a constrained request has a mask");
        self.submit_with(request, Some(constraint))
    }

    fn submit_with(
        &self,
        request: Request,
        constraint: Option<Box<dyn Constraint>>,
    ) -> Result<Generation, SubmitError> {
        match &*self.state.borrow() {
            EngineState::Ready(model) | EngineState::Recovering(model) => {
                let limits = SchedulerLimits::new(model)
                    .map_err(|error| SubmitError::Unavailable(error.to_string()))?;
                limits
                    .check(request.prompt.len(), request.max_new_tokens as usize)
                    .map_err(|error| SubmitError::TooLarge(error.to_string()))?;
            }
            EngineState::Loading { .. } => return Err(SubmitError::Unavailable("Model is loading".into())),
            EngineState::Draining => return Err(SubmitError::Unavailable("Server is shutting down".into())),
            EngineState::Failed(reason) => {
                return Err(SubmitError::Unavailable(format!("Engine failed: {reason}")));
            }
        }
        let account = match &self.account {
            Some(account) => {
                Some(account.enter(self.occupancy.free_places()).map_err(|limit| self.exceeded(limit))?)
            }
            None => None,
        };
        let permit =
            self.occupancy.enter(&request.tenant, request.prompt.len()).ok_or_else(|| self.overloaded())?;
        let held = request.adapter.and_then(|id| self.adapters.held(id));
        let mut permit = permit.on_account(account).with_adapter(request.adapter, held);
        let (events, receiver) = mpsc::unbounded_channel();
        let candidate = Candidate { tokens: request.prompt.len(), hashes: request.block_hashes.as_ref() };
        let group = self.groups.choose(&candidate);
        permit.move_to(group.place);
        group
            .commands
            .send(EngineCommand::Submit { request, constraint, events, permit })
            .map_err(|_| SubmitError::Unavailable("Engine has stopped".into()))?;
        Ok(Generation { events: receiver, departures: self.departures.clone() })
    }

    /// Asks the engine to end running requests and stop; [`EngineState::Draining`] follows.
    pub fn drain(&self) {
        for commands in self.groups.commands() {
            // If the channel is closed, the engine has stopped already.
            let _ = commands.send(EngineCommand::Drain);
        }
    }

    /// Restarts the groups of shards one after the other. The requests of each continue on the
    /// others, or afterwards if there is no other. Returns the time that each restart took.
    ///
    /// # Errors
    /// [`RestartError`]. The groups that were not restarted go on running.
    pub async fn restart_groups(&self) -> Result<Vec<Duration>, RestartError> {
        self.groups.restart().await
    }

    /// Waits until the engine has stopped: all requests have ended, and no shard process is left.
    pub async fn ended(&self) {
        for commands in self.groups.commands() {
            commands.closed().await;
        }
    }

    /// The adapters of the requests that are queued or running.
    pub fn adapters_in_use(&self) -> AdaptersInUse {
        self.occupancy.adapters.in_use()
    }

    /// Number of requests queued or running.
    pub fn in_flight(&self) -> usize {
        self.occupancy.in_flight()
    }

    /// Checks that another request may be in flight.
    ///
    /// # Errors
    /// [`SubmitError::Overloaded`] or [`SubmitError::LimitExceeded`] if not.
    pub fn has_room(&self) -> Result<(), SubmitError> {
        self.check_account(1)?;
        if self.occupancy.has_place_for(&self.tenant) { Ok(()) } else { Err(self.overloaded()) }
    }

    /// Checks that so many requests could be submitted now, whatever the lengths of their prompts.
    /// Nothing is reserved.
    ///
    /// # Errors
    /// [`SubmitError::Overloaded`] or [`SubmitError::LimitExceeded`] if not.
    pub fn has_room_for(&self, requests: usize) -> Result<(), SubmitError> {
        self.check_account(requests)?;
        if self.occupancy.has_room_for(&self.tenant, requests) { Ok(()) } else { Err(self.overloaded()) }
    }

    fn check_account(&self, requests: usize) -> Result<(), SubmitError> {
        let Some(account) = &self.account else { return Ok(()) };
        account.check(requests, self.occupancy.free_places()).map_err(|limit| self.exceeded(limit))
    }

    /// The error for a request that exceeds a limit of its account.
    fn exceeded(&self, limit: ExceededLimit) -> SubmitError {
        let retry_after = match limit {
            ExceededLimit::Tokens { wait, .. } => wait,
            ExceededLimit::Requests(_) | ExceededLimit::Queued(_) => self.occupancy.retry_after(),
        };
        SubmitError::LimitExceeded { limit, retry_after }
    }

    /// The error for a request that exceeds the bounds.
    pub fn overloaded(&self) -> SubmitError {
        SubmitError::Overloaded { retry_after: self.occupancy.retry_after() }
    }
}

/// The events of one request. Dropping it cancels the request at once: its permit is returned, and
/// the next step that is planned can use its slot and its blocks.
///
/// The channel holds at most `max_new_tokens + 2` events, and one event for each step that scores
/// the prompt, so a slow reader costs bounded memory.
#[derive(Debug)]
pub struct Generation {
    events: mpsc::UnboundedReceiver<GenerationEvent>,
    departures: Departures,
}

impl Generation {
    /// The next event; `None` after the last token, after a failure, or if the engine stopped.
    pub async fn next(&mut self) -> Option<GenerationEvent> {
        self.events.recv().await
    }

    /// Polls for the event of [`next`](Self::next).
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<GenerationEvent>> {
        self.events.poll_recv(context)
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        // The event loop recognizes a request without a reader by its closed channel.
        self.events.close();
        self.departures.signal();
    }
}
