//! Collectives over host memory among the ranks of one group, each a process of its own.
//!
//! Rank 0 calls [`lead`] and passes [`GroupLeader::address`] to the others, which [`join`] the
//! group. From then on every rank calls the same operations in the same order with the same sizes.
//! A rank that does not is detected before anything is computed ([`CollectiveError::Mismatch`]).
//! After an error the group must be formed again.

mod abort;
mod address;
mod error;
mod host;
mod limits;
#[cfg(target_os = "linux")]
mod shm;
#[cfg(target_os = "linux")]
mod sum;
mod tcp;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

pub use abort::Aborter;
use address::{GroupAddress, GroupToken, LeaderLocation};
pub use error::{Call, CollectiveError, Operation};
pub use host::HostCollective;
pub use limits::{Deadlines, MAX_WORLD_SIZE};

/// The transport that carries values from rank to rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// Shared memory between processes of one machine (Linux only). The processes must run as the
    /// same user and see one another's process ids.
    Shm,
    /// TCP through rank 0, at this address of its host, which the other ranks can reach. The values
    /// are not encrypted, so the network between the ranks must be trusted.
    Tcp(IpAddr),
}

/// Rank 0 of a group that is being formed. Dropping it ends the joins of the other ranks with an
/// error.
pub struct GroupLeader {
    address: Vec<u8>,
    kind: LeaderKind,
}

enum LeaderKind {
    #[cfg(target_os = "linux")]
    Shm(shm::ShmLeader),
    Tcp(tcp::TcpLeader),
}

/// Begins a group of `world_size` ranks as its rank 0.
///
/// `deadlines` limit [`GroupLeader::wait`], and later each wait in a call.
///
/// # Errors
/// If the world size is not within 1 to [`MAX_WORLD_SIZE`], this system lacks the
/// transport, or a system call fails.
pub fn lead(
    transport: Transport,
    world_size: usize,
    deadlines: impl Into<Deadlines>,
) -> Result<GroupLeader, CollectiveError> {
    let deadlines = deadlines.into();
    check_world(world_size)?;
    let token = GroupToken::random()?;
    let (location, kind) = match transport {
        #[cfg(target_os = "linux")]
        Transport::Shm => {
            let (leader, location) = shm::ShmLeader::new(token, world_size, deadlines)?;
            (location, LeaderKind::Shm(leader))
        }
        #[cfg(not(target_os = "linux"))]
        Transport::Shm => return Err(CollectiveError::NoSharedMemory),
        Transport::Tcp(ip) => {
            let (leader, location) = tcp::TcpLeader::new(ip, token, world_size, deadlines)?;
            (location, LeaderKind::Tcp(leader))
        }
    };
    Ok(GroupLeader { address: GroupAddress { token, location }.encode(), kind })
}

impl GroupLeader {
    /// Returns the address by which the other ranks join. It is a secret of the group: whoever has
    /// it can join.
    pub fn address(&self) -> Vec<u8> {
        self.address.clone()
    }

    /// Waits until all ranks have joined, at most [`Deadlines::forming`].
    ///
    /// # Errors
    /// [`CollectiveError::TimedOut`] names a rank that has not come.
    pub fn wait(self) -> Result<Box<dyn HostCollective>, CollectiveError> {
        match self.kind {
            #[cfg(target_os = "linux")]
            LeaderKind::Shm(leader) => Ok(Box::new(leader.wait()?)),
            LeaderKind::Tcp(leader) => Ok(Box::new(leader.wait()?)),
        }
    }
}

/// Joins the group at `address`, as `rank` (from 1) of `world_size`, and waits until all ranks have
/// joined.
///
/// `deadlines` limit that wait, and later each wait in a call.
///
/// # Errors
/// If the group has another world size, the rank is taken, rank 0 cannot be reached, or
/// the deadline passes.
pub fn join(
    address: &[u8],
    rank: usize,
    world_size: usize,
    deadlines: impl Into<Deadlines>,
) -> Result<Box<dyn HostCollective>, CollectiveError> {
    let deadlines = deadlines.into();
    check_world(world_size)?;
    if rank == 0 || rank >= world_size {
        return Err(CollectiveError::Rank { rank, world_size });
    }
    let GroupAddress { token, location } = GroupAddress::decode(address)?;
    match location {
        #[cfg(target_os = "linux")]
        LeaderLocation::Shm { process, descriptor } => {
            Ok(Box::new(shm::join(process, descriptor, token, rank, world_size, deadlines)?))
        }
        #[cfg(not(target_os = "linux"))]
        LeaderLocation::Shm { .. } => Err(CollectiveError::NoSharedMemory),
        LeaderLocation::Tcp(socket) => Ok(Box::new(tcp::join(socket, token, rank, world_size, deadlines)?)),
    }
}

fn check_world(world_size: usize) -> Result<(), CollectiveError> {
    match world_size {
        1..=MAX_WORLD_SIZE => Ok(()),
        _ => Err(CollectiveError::WorldSize { world_size }),
    }
}
