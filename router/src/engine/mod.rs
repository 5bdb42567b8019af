//! The engine runs requests on the shards: it owns the scheduler, the shard processes and the loop
//! between them.
//!
//! A request takes this way:
//!
//! 1. [`Engine::submit`] checks that the engine has room, and sends the request to the event loop.
//! 2. The event loop adds it to the scheduler, plans steps and sends them to all ranks.
//! 3. Rank 0 answers each step. The event loop applies the answer to the scheduler.
//! 4. The dispatching task sends the results to each request's [`Generation`].
//!
//! | module | purpose |
//! |---|---|
//! | [`handle`] | the handle that the rest of the router holds: submit a request, receive its events |
//! | [`command`] | the commands of the handle to the event loops |
//! | `event` | the events of a request |
//! | `state` | the state of the engine, as clients see it |
//! | `config` | configuration |
//! | `start` | starts the engine's task |
//! | `places` | the shares of tenants in the places for requests |
//! | `occupancy` | the number of requests queued and running: which requests are refused, and when to try again |
//! | `event_loop` | the engine's task: plan, send, apply |
//! | [`Account`] | the limits of an API key, and what it uses |
//! | [`Adapters`] | the adapters that requests may name |
//! | `departures` | tells the event loop that readers of requests have left |
//! | `dispatch` | a task that sends the results of a step to their requests |
//! | `constraint` | computes the masks of constrained requests on a thread pool |
//! | `first_group` | starts the first group of shards |
//! | `supervisor` | watches the running group and replaces it when it is lost |
//! | `step_deadline` | how long a step may take |
//! | `loss`, `restart_policy` | why a group was lost, when the next one starts, and when the engine gives up |
//! | `kept_adapters` | the adapters that a group must have |
//! | `baseline` | what every group must have in common with the first one |
//! | `groups` | several groups of shards: which of them gets a request, and the state of all |
//! | `active_request` | a request that a group runs, and its way to another group |
//! | `group` | a group of shards: processes, connections, messages to and from all ranks |
//! | [`node`] | runs the ranks of a machine that is not the leader |
//! | `timeout` | timeouts that do not count the time in which this process is suspended |
//! | `metrics` | metrics of the event loop |

mod account;
mod active_request;
mod adapter_load;
pub(crate) mod adapters;
mod baseline;
pub mod command;
mod config;
mod constraint;
mod departures;
mod dispatch;
mod event;
mod event_loop;
mod first_group;
mod group;
mod groups;
pub mod handle;
mod kept_adapters;
mod loss;
mod metrics;
pub mod node;
mod occupancy;
mod places;
mod preparation;
mod restart_policy;
mod start;
mod step_deadline;
mod step_pace;
mod supervisor;
mod timeout;

#[cfg(test)]
mod tests;

pub use millrace_proto::handshake::{Secret, ShortSecret};
pub use millrace_proto::{MemoryItem, PromptHandling, Ready};

pub use self::account::{Account, AccountLimits, ExceededLimit};
pub use self::adapter_load::AdaptersInUse;
pub use self::adapters::{AdapterInfo, AdapterSource, Adapters, HeldAdapter, LoadError};
pub use self::config::EngineConfig;
pub use self::event::EngineState;
pub use self::event::{GeneratedToken, GenerationEvent, GenerationFailure, GenerationStart, PromptToken};
pub use self::group::{OtherNodes, ShardCommand, Unreaped};
pub use self::groups::RestartError;
pub use self::handle::{Engine, Generation, SubmitError};
pub use self::occupancy::{AdmissionBounds, Permit};
pub(crate) use self::places::{Place, Places};
pub use self::preparation::Preparation;
#[cfg(test)]
use self::start::start_prepared;
#[cfg(test)]
use self::start::start_with;
pub use self::start::{start, start_after};
pub use millrace_scheduler::{
    AdapterId, BlockHashes, Finish, Pooling, Priority, Request, Schedule, SchedulerLimits, Tenant,
};
