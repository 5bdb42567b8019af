//! Events of the supervisor.

use millrace_proto::{Ready, StepOutput};

use crate::engine::loss::GroupLoss;

/// An event of the supervisor.
#[derive(Debug)]
pub(in crate::engine) enum SupervisorEvent {
    /// The answer to a step.
    Answer(StepOutput),
    /// The forward pass of the step with this number is done, and its masks have not come.
    MasksDue(u64),
    /// The group has been healthy for some time without work.
    Settled,
    /// A shard is lost, and with it all steps in flight. [`SupervisorEvent::Ended`] follows.
    Lost,
    /// The group has ended, or could not be started. The next one starts after
    /// [`Supervisor::pause`](super::Supervisor::pause).
    Ended(GroupLoss),
    /// A new group is ready.
    Ready(Box<Ready>),
}
