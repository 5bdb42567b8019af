//! The engine as the rest of the router sees it: submit token ids, receive token ids.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::admission::{Bounds, Occupancy, Permit};
use super::constraint::Constraint;
use crate::scheduler::Limits;

pub use crate::scheduler::{Finish, Mask, Pooling, Priority, Request};

/// A generated token.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Its log-probability.
    pub logprob: f32,
    /// The most likely tokens at its place, as many as the request asked for.
    pub top: Vec<(u32, f32)>,
}

/// What the model makes of a token of the prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptToken {
    /// Its log-probability.
    pub logprob: f32,
    /// Its place among all tokens by probability, from 1.
    pub rank: u32,
    /// The most likely tokens at its place, as many as the request asked for.
    pub top: Vec<(u32, f32)>,
}

/// What happens to a generation.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// It left the queue.
    Started(Started),
    /// The next tokens of the prompt, from the second one on, if the request asked for them; without new tokens it may be the
    /// end.
    Prompt(Vec<PromptToken>, Option<Finish>),
    /// A token; with the last one, why it is the last.
    Token(Token, Option<Finish>),
    /// The prompt's vector, `[hidden]`, if the request asked for it; it is the end.
    Vector(Vec<f32>),
    /// It will not be answered (any further).
    Failed(Failure),
}

/// How a generation began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Started {
    /// Time in the queue.
    pub queued: Duration,
    /// Tokens of the prompt whose keys and values were still there from another sequence.
    pub cached_tokens: usize,
}

/// Why a generation broke off. The texts are fit for a client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// It never began; another server, or this one later, may take it.
    #[error("{0}")]
    NotStarted(String),
    /// The engine failed while it ran, or ended before it did.
    #[error("{0}")]
    Broken(String),
    /// What it may generate cannot be worked out (any further).
    #[error("{0}")]
    Constraint(String),
}

/// Why a request was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// As many requests as allowed are waiting or running.
    #[error("Model is overloaded")]
    Overloaded {
        /// When there will be room, as far as can be told.
        retry_after: Duration,
    },
    /// The prompt and the tokens asked for can never fit.
    #[error("{0}")]
    TooLarge(String),
    /// The engine is loading, draining or has failed.
    #[error("{0}")]
    Unavailable(String),
}

/// What the engine is doing.
#[derive(Debug, Clone, PartialEq)]
pub enum State {
    /// Shards are starting; the text names the phase, the numbers are bytes.
    Loading {
        /// What is being done.
        phase: String,
        /// Bytes read so far.
        done: u64,
        /// Bytes to read.
        total: u64,
    },
    /// Requests are served.
    Ready(Arc<millrace_proto::Ready>),
    /// The shards were lost and are started again. Requests are taken and wait; the model is the same.
    Recovering(Arc<millrace_proto::Ready>),
    /// Running requests are ended; no new ones are taken.
    Draining,
    /// The engine is gone; the text says why.
    Failed(String),
}

/// A request on its way to the engine.
#[expect(clippy::large_enum_variant, reason = "nearly all of them are requests")]
pub enum Command {
    /// Generate.
    Submit {
        /// What to generate.
        request: Request,
        /// What may be generated, if the request has a mask.
        constraint: Option<Box<dyn Constraint>>,
        /// Where its events go.
        events: mpsc::UnboundedSender<Event>,
        /// Held until the request has ended, so that it counts as in flight.
        permit: Permit,
    },
    /// Take no more work, end what runs, then stop the shards.
    Drain,
}

/// Speaks to the engine. Clones speak to the same one.
#[derive(Debug, Clone)]
pub struct Engine {
    commands: mpsc::UnboundedSender<Command>,
    state: watch::Receiver<State>,
    occupancy: Arc<Occupancy>,
}

impl Engine {
    /// A handle to whoever receives `commands`; the bounds are kept here.
    pub fn new(
        commands: mpsc::UnboundedSender<Command>,
        state: watch::Receiver<State>,
        bounds: Bounds,
    ) -> Self {
        Engine { commands, state, occupancy: Occupancy::new(bounds) }
    }

    /// What the loop shares with the handles.
    pub(super) fn occupancy(&self) -> Arc<Occupancy> {
        self.occupancy.clone()
    }

    /// What the engine is doing now, and a way to wait for changes.
    pub fn state(&self) -> watch::Receiver<State> {
        self.state.clone()
    }

    /// Hands a request to the engine.
    ///
    /// # Errors
    /// [`Refused`] says why it was not taken; nothing has been queued then.
    pub fn submit(&self, request: Request) -> Result<Generation, Refused> {
        self.submit_under(request, None)
    }

    /// Hands a request to the engine that may generate only what `constraint` allows; its mask says what may come first.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn submit_constrained(
        &self,
        request: Request,
        constraint: Box<dyn Constraint>,
    ) -> Result<Generation, Refused> {
        debug_assert!(request.mask.is_some(), "a constraint begins with a mask");
        self.submit_under(request, Some(constraint))
    }

    fn submit_under(
        &self,
        request: Request,
        constraint: Option<Box<dyn Constraint>>,
    ) -> Result<Generation, Refused> {
        match &*self.state.borrow() {
            State::Ready(model) | State::Recovering(model) => {
                let limits = Limits::new(model).map_err(|error| Refused::Unavailable(error.to_string()))?;
                limits
                    .check(request.prompt.len(), request.max_new_tokens as usize)
                    .map_err(|error| Refused::TooLarge(error.to_string()))?;
            }
            State::Loading { .. } => return Err(Refused::Unavailable("Model is loading".into())),
            State::Draining => return Err(Refused::Unavailable("Server is shutting down".into())),
            State::Failed(why) => return Err(Refused::Unavailable(format!("Engine failed: {why}"))),
        }
        let permit = self.occupancy.enter(request.prompt.len()).ok_or_else(|| self.overloaded())?;
        let (events, receiver) = mpsc::unbounded_channel();
        self.commands
            .send(Command::Submit { request, constraint, events, permit })
            .map_err(|_| Refused::Unavailable("Engine has stopped".into()))?;
        Ok(Generation { events: receiver })
    }

    /// Asks the engine to end running requests and stop; [`State::Draining`] follows.
    pub fn drain(&self) {
        // A closed channel means that the engine has stopped already.
        let _ = self.commands.send(Command::Drain);
    }

    /// Waits until the engine has stopped: all its requests have ended, and no shard process is left.
    pub async fn ended(&self) {
        self.commands.closed().await;
    }

    /// Requests queued or running.
    pub fn in_flight(&self) -> usize {
        self.occupancy.in_flight()
    }

    /// Whether as many requests are in flight as may be.
    ///
    /// # Errors
    /// [`Refused::Overloaded`] if so.
    pub fn has_room(&self) -> Result<(), Refused> {
        if self.occupancy.is_full() { Err(self.overloaded()) } else { Ok(()) }
    }

    /// Whether so many requests could be submitted now, whatever the lengths of their prompts. Nothing is reserved.
    ///
    /// # Errors
    /// [`Refused::Overloaded`] if not.
    pub fn has_room_for(&self, requests: usize) -> Result<(), Refused> {
        if self.occupancy.has_room_for(requests) { Ok(()) } else { Err(self.overloaded()) }
    }

    /// The refusal of a request that is too much.
    pub fn overloaded(&self) -> Refused {
        Refused::Overloaded { retry_after: self.occupancy.retry_after() }
    }
}

/// The events of one request. Dropping it cancels the request within a step.
///
/// The channel holds at most `max_new_tokens + 2` events, and one for each step that scores the prompt, so a slow reader
/// costs bounded memory.
#[derive(Debug)]
pub struct Generation {
    events: mpsc::UnboundedReceiver<Event>,
}

impl Generation {
    /// The next event; `None` after the last token, after a failure, or if the engine stopped.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// As [`next`](Self::next).
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.events.poll_recv(context)
    }
}
