//! What can go wrong between the ranks, in words for the operator.

use std::fmt;
use std::io;
use std::time::Duration;

use super::MAX_WORLD_SIZE;

/// What the ranks do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Operation {
    /// Forming the group.
    Rendezvous = 1,
    /// [`all_reduce`](super::HostCollective::all_reduce)
    AllReduce,
    /// [`all_gather`](super::HostCollective::all_gather)
    AllGather,
    /// [`broadcast`](super::HostCollective::broadcast)
    Broadcast,
    /// [`barrier`](super::HostCollective::barrier)
    Barrier,
}

impl Operation {
    pub(super) fn from_code(code: u32) -> Option<Operation> {
        use Operation::{AllGather, AllReduce, Barrier, Broadcast, Rendezvous};
        [Rendezvous, AllReduce, AllGather, Broadcast, Barrier].into_iter().find(|known| *known as u32 == code)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Rendezvous => "forming the group",
            Operation::AllReduce => "all-reduce",
            Operation::AllGather => "all-gather",
            Operation::Broadcast => "broadcast",
            Operation::Barrier => "barrier",
        })
    }
}

/// One call of an operation, as every rank must make it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// How many calls went before it on this rank.
    pub sequence: u64,
    /// What was called.
    pub operation: Operation,
    /// Values, or bytes of a broadcast.
    pub length: u64,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call {} is {} of {}", self.sequence, self.operation, self.length)
    }
}

/// Why the ranks could not do something together. The group is of no further use then.
#[derive(Debug, thiserror::Error)]
pub enum CollectiveError {
    /// An [`Aborter`](super::Aborter) of the group was used.
    #[error("the group of ranks was aborted")]
    Aborted,
    /// A rank did not take part in time.
    #[error("{operation}: waited {after:?} for rank {rank}")]
    TimedOut {
        /// What was waited for.
        operation: Operation,
        /// The rank that did not come.
        rank: usize,
        /// The deadline.
        after: Duration,
    },
    /// A rank takes no further part: it has ended, or an operation has failed there.
    #[error("rank {rank} has left the group")]
    Closed {
        /// The rank that has left; this one, if an operation has failed here before.
        rank: usize,
    },
    /// The ranks do not do the same.
    #[error("the ranks disagree: here {ours}, on rank {rank} {theirs}")]
    Mismatch {
        /// The other rank.
        rank: usize,
        /// The call of this rank.
        ours: Call,
        /// The call of the other.
        theirs: Call,
    },
    /// A size that no group can have.
    #[error("a group has 1 to {MAX_WORLD_SIZE} ranks, not {world_size}")]
    WorldSize {
        /// What was asked for.
        world_size: usize,
    },
    /// A joiner that expects a group of another size.
    #[error("the group has {theirs} ranks, and this rank was told {ours}")]
    OtherWorldSize {
        /// What the joiner was told.
        ours: usize,
        /// The group's.
        theirs: usize,
    },
    /// A rank that cannot join.
    #[error("rank {rank} cannot join a group of {world_size}: the ranks that join are 1 to world size - 1")]
    Rank {
        /// The rank.
        rank: usize,
        /// The group's size.
        world_size: usize,
    },
    /// Another process has joined as this rank.
    #[error("rank {rank} has joined already")]
    Taken {
        /// The rank.
        rank: usize,
    },
    /// Bytes that are no address of a group.
    #[error("this is no address of a group of ranks; all ranks must be of the same version")]
    Address,
    /// An address that leads to nothing, or to something else.
    #[error("the group at this address is gone; its rank 0 has ended or given up")]
    Gone,
    /// Shared memory on a system other than Linux.
    #[error("ranks share memory on Linux only; use TCP between ranks on this system")]
    NoSharedMemory,
    /// An address of rank 0's host that stands for all of its addresses.
    #[error("other ranks cannot reach rank 0 at {0}; name one address of its host")]
    Unspecified(std::net::IpAddr),
    /// The system has no random numbers to give.
    #[error("random numbers of the system: {0}")]
    Random(getrandom::Error),
    /// The system refused something.
    #[error("{doing}: {source}")]
    Io {
        /// What was attempted.
        doing: &'static str,
        /// Why not.
        source: io::Error,
    },
}

impl CollectiveError {
    /// For `map_err`.
    pub(super) fn io(doing: &'static str) -> impl FnOnce(io::Error) -> CollectiveError {
        move |source| CollectiveError::Io { doing, source }
    }
}
