//! Events of a group of shards.

use std::io;
use std::process::ExitStatus;

use millrace_proto::{AdapterLoaded, Fault, FrameError, Loading, Ready, Rendezvous, StepOutput};

/// An event of one rank: a message, or the end of its connection or process.
#[derive(Debug)]
pub(in crate::engine) enum GroupEvent {
    Loading(Loading),
    Ready(Box<Ready>),
    Output(Box<StepOutput>),
    /// The number of a step that waits for its masks.
    MasksDue(u64),
    Pong,
    /// The answer to a load.
    AdapterLoaded(AdapterLoaded),
    /// The address at which the rank waits for the other ranks.
    Rendezvous(Rendezvous),
    /// The rank cannot continue, for the given reason.
    Fault(Fault),
    /// A message of a kind that this version does not know.
    Unknown,
    /// The connection has ended.
    Closed(FrameError),
    /// The process has ended.
    Exited(io::Result<ExitStatus>),
}

impl GroupEvent {
    /// Whether the rank is lost.
    pub(super) fn is_loss(&self) -> bool {
        matches!(self, GroupEvent::Fault(_) | GroupEvent::Closed(_) | GroupEvent::Exited(_))
    }
}
