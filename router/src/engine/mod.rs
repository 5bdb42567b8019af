//! The engine: the scheduler's loop, its link to the shards, and the handle that the rest of the router holds.
//!
//! | file | its job |
//! |---|---|
//! | [`handle`] | what the rest of the router holds: submit a request, receive its events |
//! | `admission` | how full the engine is: what is refused, and when to come again |
//! | `supervisor` | the life of the shards: heartbeat, deadlines, restarts |
//! | `losses` | when a lost group is started again, and when the engine gives up |
//! | `deadline` | how long a step may take |
//! | `patience` | waits that a standstill of this process does not cut short |
//! | `kept` | what every group has in common with the first one |
//! | `group` | all ranks of a model, connected: news of each, messages to all |
//! | `children` | the shard processes of this machine |
//! | `sockets` | the private folder of their sockets, and folders that dead servers left |
//! | `gate` | where ranks of other machines come in |
//! | [`node`] | a machine that is not the leader |
//! | `link` | one connection: a task that reads, a task that writes |
//! | `loading` | from the connection until every rank is ready |
//! | `run` | the loop: plan, send, apply |
//! | `constraint` | what may be generated, worked out on threads of its own |
//! | `dispatch` | one task that passes a step's events on to their requests |
//! | `meter` | what the loop tells `/metrics` |

mod admission;
mod children;
pub(crate) mod constraint;
mod deadline;
mod dispatch;
mod gate;
mod group;
pub mod handle;
mod kept;
mod link;
mod loading;
mod losses;
mod meter;
pub mod node;
mod patience;
mod run;
mod sockets;
mod supervisor;

#[cfg(test)]
mod tests;

use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use futures::FutureExt;

use self::group::Group;
use self::kept::Kept;
use self::supervisor::Connect;

pub use millrace_proto::handshake::{Secret, ShortSecret};
pub use millrace_proto::{MemoryItem, Ready};

pub use self::admission::{Bounds, Permit};
pub use self::children::{ShardCommand, Unreaped};
pub use self::constraint::Constraint;
pub(crate) use self::constraint::thread_time;
pub use self::gate::OtherNodes;
pub use self::handle::{
    Engine, Event, Failure, Finish, Generation, Mask, Pooling, Priority, PromptToken, Refused, Request,
    Started, State, Token,
};

/// How the engine behaves, apart from what the shards announce.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Shard processes; each holds one slice of the model.
    pub world_size: usize,
    /// Those of them that other machines run; none if not given.
    pub others: Option<OtherNodes>,
    /// Requests that may be queued or running at the same time, and what of them may be queued.
    pub bounds: Bounds,
    /// Whether computed prefixes are kept and shared.
    pub prefix_cache: bool,
    /// How long a request may be queued, if there is a limit.
    pub queue_timeout: Option<Duration>,
    /// How long the shards may take for one step before they count as hung. If not given, several times what the steps
    /// before it let expect, and two minutes at least.
    pub step_timeout: Option<Duration>,
    /// How long a shard may leave pings unanswered, in about four of them.
    pub heartbeat_timeout: Duration,
    /// Losses of shards in a row, without a token in between, after which the engine gives up. With 1 the first loss ends
    /// the engine.
    pub max_failures: u32,
    /// The engine gives up only when so much time has passed since the first of these losses.
    pub failure_window: Duration,
    /// How long a starting shard may be silent. Loading may take for ever as long as it reports progress.
    pub startup_silence: Duration,
    /// How long running requests may take to end once draining has begun.
    pub drain_timeout: Duration,
    /// How long a shard may take to exit when asked to, before it is killed.
    pub shutdown_grace: Duration,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            world_size: 1,
            others: None,
            bounds: Bounds { in_flight: 128, queued: usize::MAX, queued_tokens: usize::MAX },
            prefix_cache: true,
            queue_timeout: None,
            step_timeout: None,
            heartbeat_timeout: Duration::from_secs(2),
            max_failures: 3,
            failure_window: Duration::from_secs(60),
            startup_silence: Duration::from_secs(600),
            drain_timeout: Duration::from_secs(90),
            shutdown_grace: Duration::from_secs(5),
        }
    }
}

/// Starts the shards and the engine's task, and returns at once; [`State`] tells how they fare. The task ends after a
/// drain or a failure, when no shard process is left, or none that could be ended. Must be called within a tokio runtime, and
/// after the metrics recorder is installed.
pub fn start(config: EngineConfig, command: ShardCommand) -> (Engine, JoinHandle<()>) {
    let world_size = config.world_size;
    let silence = config.startup_silence;
    let others = config.others.clone();
    // On a thread that nobody waits for, not even at the end: it is about other servers' files, and a directory on a
    // network may not answer. Without a thread they stay.
    let _ = std::thread::Builder::new().name("leftovers".into()).spawn(sockets::remove_leftovers);
    let connect = move |kept: Option<Kept>| {
        let (command, others) = (command.clone(), others.clone());
        async move { Group::start(&command, world_size, others.as_ref(), silence, kept.as_ref()).await }
            .boxed()
    };
    start_with(config, Box::new(connect))
}

/// As [`start`], with shards that come from anywhere.
fn start_with(config: EngineConfig, connect: Connect) -> (Engine, JoinHandle<()>) {
    meter::describe();
    let (commands, received) = mpsc::unbounded_channel();
    let (state, states) =
        watch::channel(State::Loading { phase: "Starting shards".into(), done: 0, total: 0 });
    let engine = Engine::new(commands, states, config.bounds);
    let occupancy = engine.occupancy();
    (engine, tokio::spawn(run::run(config, occupancy, received, state, connect)))
}
