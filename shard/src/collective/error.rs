//! The errors of collectives, in words for the operator.

use std::fmt;
use std::io;
use std::time::Duration;

use crate::collective::limits::MAX_WORLD_SIZE;

/// An operation that the ranks do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Operation {
    /// LeaderKind the group.
    Rendezvous = 1,
    /// [`all_reduce`](super::HostCollective::all_reduce)
    AllReduce,
    /// [`all_gather`](super::HostCollective::all_gather)
    AllGather,
    /// [`broadcast`](super::HostCollective::broadcast)
    Broadcast,
    /// [`barrier`](super::HostCollective::barrier)
    Barrier,
    /// [`all_gather_bytes`](super::HostCollective::all_gather_bytes)
    AllGatherBytes,
    /// [`pass_on`](super::HostCollective::pass_on)
    PassOn,
}

impl Operation {
    pub(super) fn from_code(code: u32) -> Option<Operation> {
        use Operation::{AllGather, AllGatherBytes, AllReduce, Barrier, Broadcast, PassOn, Rendezvous};
        let all = [Rendezvous, AllReduce, AllGather, Broadcast, Barrier, AllGatherBytes, PassOn];
        all.into_iter().find(|known| *known as u32 == code)
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
            Operation::AllGatherBytes => "all-gather of bytes",
            Operation::PassOn => "passing on hidden states",
        })
    }
}

/// One call of an operation. Every rank must make the same call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Number of calls before this one on the same rank.
    pub sequence: u64,
    /// The operation.
    pub operation: Operation,
    /// Number of values, or number of bytes of a broadcast.
    pub length: u64,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call {} is {} of {}", self.sequence, self.operation, self.length)
    }
}

/// The reason why a collective failed. The group cannot be used after an error.
#[derive(Debug, thiserror::Error)]
pub enum CollectiveError {
    /// An [`Aborter`](super::Aborter) of the group was used.
    #[error("the group of ranks was aborted")]
    Aborted,
    /// A rank did not take part before the deadline.
    #[error("{operation}: waited {after:?} for rank {rank}")]
    TimedOut {
        /// The operation that waited.
        operation: Operation,
        /// The rank that is missing.
        rank: usize,
        /// The deadline.
        after: Duration,
    },
    /// A rank has left the group, because its process has ended or one of its operations has
    /// failed.
    #[error("rank {rank} has left the group")]
    Closed {
        /// The rank that has left. It is this rank if one of its own operations has failed before.
        rank: usize,
    },
    /// The ranks made different calls.
    #[error("the ranks disagree: here {ours}, on rank {rank} {theirs}")]
    Mismatch {
        /// The other rank.
        rank: usize,
        /// The call of this rank.
        ours: Call,
        /// The call of the other rank.
        theirs: Call,
    },
    /// The world size is outside the limits.
    #[error("a group has 1 to {MAX_WORLD_SIZE} ranks, not {world_size}")]
    WorldSize {
        /// The world size that was asked for.
        world_size: usize,
    },
    /// The rank that joins expects a group of another size.
    #[error("the group has {theirs} ranks, and this rank was told {ours}")]
    OtherWorldSize {
        /// The size that the rank expects.
        ours: usize,
        /// The size of the group.
        theirs: usize,
    },
    /// The number of the rank is not one that can join.
    #[error("rank {rank} cannot join a group of {world_size}: the ranks that join are 1 to world size - 1")]
    Rank {
        /// The rank.
        rank: usize,
        /// The size of the group.
        world_size: usize,
    },
    /// Another process has joined as this rank.
    #[error("rank {rank} has joined already")]
    Taken {
        /// The rank.
        rank: usize,
    },
    /// The bytes are not the address of a group.
    #[error("this is not the address of a group of ranks; all ranks must run the same version")]
    Address,
    /// The address leads to nothing, or to something other than the group.
    #[error("the group at this address is gone; its rank 0 has ended or given up")]
    Gone,
    /// This system is not Linux, the only system where ranks can share memory.
    #[error("ranks share memory on Linux only; use TCP between ranks on this system")]
    NoSharedMemory,
    /// The address of rank 0's host is a wildcard.
    #[error("other ranks cannot reach rank 0 at {0}; name one address of its host")]
    Unspecified(std::net::IpAddr),
    /// The operating system could not provide random numbers.
    #[error("cannot get random numbers from the system: {0}")]
    Random(getrandom::Error),
    /// A system call failed.
    #[error("{doing}: {source}")]
    Io {
        /// The action that failed.
        doing: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

impl CollectiveError {
    /// Returns a conversion of I/O errors for `map_err`.
    pub(super) fn io(doing: &'static str) -> impl FnOnce(io::Error) -> CollectiveError {
        move |source| CollectiveError::Io { doing, source }
    }
}
