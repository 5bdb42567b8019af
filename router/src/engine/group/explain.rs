//! Explains the loss of a shard to the operator.
//!
//! A shard that dies causes several events in any order: the fault that it reports, the end of its
//! process, and the end of its connection. The most specific one explains the loss.

use millrace_proto::{Fault, FrameError};

use super::event::GroupEvent;
use crate::engine::loss::GroupLoss;

/// Whether no better explanation than those in `events` will come. `exit_is_reported` says whether
/// the end of the rank's process will be an event; the end of a process on another machine is not.
pub(super) fn is_complete(events: &[GroupEvent], exit_is_reported: bool) -> bool {
    let mut exited = !exit_is_reported;
    let mut closed = false;
    for event in events {
        match event {
            GroupEvent::Fault(_) | GroupEvent::Closed(FrameError::Malformed(_) | FrameError::TooLarge(_)) => {
                return true;
            }
            GroupEvent::Exited(_) => exited = true,
            GroupEvent::Closed(_) => closed = true,
            _ => {}
        }
    }
    exited && closed
}

/// The loss of the shard with this `rank`, explained by the most specific of its `events`.
pub(super) fn explain(rank: usize, mut events: Vec<GroupEvent>) -> GroupLoss {
    events.sort_by_key(|event| match event {
        GroupEvent::Fault(_) => 0,
        GroupEvent::Closed(FrameError::Malformed(_) | FrameError::TooLarge(_)) => 1,
        GroupEvent::Exited(_) => 2,
        GroupEvent::Closed(_) => 3,
        _ => 4,
    });
    let reason = match events.first() {
        Some(GroupEvent::Fault(Fault { message, lasting: true })) => {
            return GroupLoss::lasting(format!("shard {rank}: {message}"));
        }
        Some(GroupEvent::Fault(Fault { message, .. })) => format!("shard {rank}: {message}"),
        Some(GroupEvent::Exited(Ok(status))) => {
            format!("shard {rank} ended ({status}); its own messages are in the log")
        }
        Some(GroupEvent::Exited(Err(error))) => format!("cannot wait for shard {rank}: {error}"),
        Some(GroupEvent::Closed(FrameError::Closed)) => format!("shard {rank} closed its connection"),
        Some(GroupEvent::Closed(error)) => format!("the connection to shard {rank} broke: {error}"),
        _ => format!("shard {rank} sent a message at the wrong time"),
    };
    GroupLoss::of_shards(reason)
}
