//! The commands to the tasks of an engine.

use millrace_answers::Constraint;
use millrace_scheduler::Request;
use tokio::sync::{mpsc, oneshot};

use super::active_request::MovedRequest;
use super::adapters::AdapterCommand;
use super::event::GenerationEvent;
use super::occupancy::Permit;

/// Receives the result of a restart: the reason, if the shards are not back.
pub type RestartReply = oneshot::Sender<Result<(), String>>;

/// A command to the task that runs a group of shards.
#[expect(clippy::large_enum_variant, reason = "nearly all commands are requests")]
pub enum EngineCommand {
    /// Run a request.
    Submit {
        /// The request.
        request: Request,
        /// Computes the masks, if the request has a mask.
        constraint: Option<Box<dyn Constraint>>,
        /// Receives the events of the request.
        events: mpsc::UnboundedSender<GenerationEvent>,
        /// Counts the request as in flight until it has ended.
        permit: Permit,
    },
    /// Continue a request of another group of shards.
    Adopt(Box<MovedRequest>),
    /// Load an adapter, or free its place.
    Adapter(AdapterCommand),
    /// Restart the shards. Their requests continue on other groups, or afterwards.
    Restart(RestartReply),
    /// Accept no more requests, run the others to their end, then stop the shards.
    Drain,
}
