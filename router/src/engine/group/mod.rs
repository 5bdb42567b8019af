//! A group of shards: all ranks of one model, with their processes and connections.
//!
//! - No shard of this machine outlives the router: each holds the reading end of a pipe as its
//!   standard input and exits when the pipe closes, however the router ended.
//! - No zombie process is left: a task waits for each child process.
//! - No file is left: the socket of a rank is removed when the rank has connected.
//!
//! | module | purpose |
//! |---|---|
//! | `shard_group` | the group: messages to all ranks, and their events |
//! | `startup` | starts the processes and accepts the connections of all ranks |
//! | `agreement` | compares the settings that the ranks announce |
//! | `ready` | waits until all ranks have loaded the model |
//! | `adapters` | loads adapters on all ranks |
//! | `children` | the shard processes of this machine |
//! | `sockets` | the private folder of their sockets, and folders that dead servers left |
//! | `listener` | accepts the ranks of other machines |
//! | `connection` | one connection: a task that reads and a task that writes |
//! | `event` | events of the group |
//! | `explain` | explains a loss to the operator |
//! | `error` | errors of starting and ending shards |

mod adapters;
mod agreement;
mod children;
mod connection;
mod error;
mod event;
mod explain;
mod listener;
mod ready;
mod shard_group;
mod sockets;
mod startup;

pub use self::children::ShardCommand;
pub(super) use self::children::{Children, RankArguments, spawn};
pub(super) use self::error::StartError;
pub use self::error::Unreaped;
pub(super) use self::event::GroupEvent;
#[cfg(test)]
pub(super) use self::listener::NodeListener;
pub use self::listener::OtherNodes;
pub(super) use self::shard_group::ShardGroup;
pub(super) use self::sockets::remove_leftovers;
pub(super) use self::startup::GroupOptions;
