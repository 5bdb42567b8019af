//! Collectives over host memory among the ranks of one group, each a process of its own.
//!
//! Rank 0 calls [`lead`] and hands [`Lead::address`] to the others, which [`join`] it. From then on every rank calls the
//! same operations in the same order with the same sizes; a rank that does not is found out ([`CollectiveError::Mismatch`])
//! before anything is computed. After an error a rank takes no further part: the group is to be formed anew.

mod address;
mod error;
#[cfg(target_os = "linux")]
mod shm;
#[cfg(target_os = "linux")]
mod sum;
mod tcp;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use address::{Address, Place, Token};
pub use error::{Call, CollectiveError, Operation};

/// The most ranks a group can have.
pub const MAX_WORLD_SIZE: usize = 64;

/// Collectives over host memory among the ranks of one group. Every rank calls the same operations in the same order
/// with the same sizes.
///
/// Each wait for another rank ends after the deadline that was given when the group was formed ([`Deadlines::call`]).
pub trait HostCollective: Send {
    /// This process's place in the group, from 0.
    fn rank(&self) -> usize;

    /// How many ranks the group has.
    fn world_size(&self) -> usize;

    /// Replaces `values` (the same number on every rank) by their sum over all ranks, element by element, summed in the
    /// order of the ranks: `((v0 + v1) + v2) + …`. So every rank gets the same bits, whatever the wire.
    ///
    /// # Errors
    /// See [`CollectiveError`]; `values` may then be anything.
    fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), CollectiveError>;

    /// Hands `take` every rank's `part` (the same length on every rank), own one included, as
    /// `take(rank, offset, chunk)`: `chunk` is what stands at `offset` in that rank's part. A long part comes in several
    /// chunks: the offsets ascend, and for each offset the ranks come in their order. An empty part has no chunks.
    ///
    /// # Errors
    /// See [`CollectiveError`]; some chunks may have been handed out by then.
    fn all_gather(
        &mut self,
        part: &[f32],
        take: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Result<(), CollectiveError>;

    /// Replaces `bytes` (the same number on every rank) by those of rank 0.
    ///
    /// # Errors
    /// See [`CollectiveError`]; `bytes` may then be anything, except on rank 0.
    fn broadcast(&mut self, bytes: &mut [u8]) -> Result<(), CollectiveError>;

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// See [`CollectiveError`].
    fn barrier(&mut self) -> Result<(), CollectiveError>;

    /// Ends the waits of this and of all other ranks, now and from now on.
    fn aborter(&self) -> Aborter;
}

/// Every rank's `part`, in the order of the ranks; all are equally long.
///
/// # Errors
/// See [`CollectiveError`].
pub fn gather_bytes(group: &mut dyn HostCollective, part: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
    // Each byte as a number, which no wire changes.
    let numbers: Vec<f32> = part.iter().copied().map(f32::from).collect();
    let mut all = vec![Vec::with_capacity(part.len()); group.world_size()];
    let mut take = |rank: usize, _, chunk: &[f32]| all[rank].extend(chunk.iter().map(|number| *number as u8));
    group.all_gather(&numbers, &mut take)?;
    Ok(all)
}

/// Ends a group from any thread; see [`HostCollective::aborter`].
#[derive(Clone)]
pub struct Aborter(Arc<dyn Abort>);

impl Aborter {
    /// Ends by `abort` what is no host's collective alone.
    pub(crate) fn of(abort: impl Fn() + Send + Sync + 'static) -> Aborter {
        Aborter(Arc::new(abort))
    }

    /// Ends the waits of all ranks with [`CollectiveError::Aborted`], now and from now on. A second call does nothing.
    pub fn abort(&self) {
        self.0.abort();
    }
}

/// What a wire does to be aborted.
trait Abort: Send + Sync {
    fn abort(&self);
}

impl<F: Fn() + Send + Sync> Abort for F {
    fn abort(&self) {
        self();
    }
}

/// What carries the values from rank to rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// Memory shared by processes of one machine (Linux), which run as the same user and see one another's process ids.
    Shm,
    /// TCP by way of rank 0, at this address of its host, which the other ranks can reach. The values are not
    /// encrypted: the network between the ranks must be trusted.
    Tcp(IpAddr),
}

/// The longest that ranks wait for each other. A duration stands for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// For all to join: some may still be loading.
    pub forming: Duration,
    /// In the middle of a call, for a rank that is not there yet.
    pub call: Duration,
}

impl From<Duration> for Deadlines {
    fn from(both: Duration) -> Self {
        Deadlines { forming: both, call: both }
    }
}

/// Rank 0 of a group that is being formed. Dropped, it turns away those who have joined.
pub struct Lead {
    address: Vec<u8>,
    forming: Forming,
}

enum Forming {
    #[cfg(target_os = "linux")]
    Shm(shm::Lead),
    Tcp(tcp::Lead),
}

/// Begins a group of `world_size` ranks, as its rank 0.
///
/// `deadlines` bound [`Lead::wait`], and later each wait of a call.
///
/// # Errors
/// A world size outside 1 to [`MAX_WORLD_SIZE`], a wire that this system does not have, or the system's own.
pub fn lead(wire: Wire, world_size: usize, deadlines: impl Into<Deadlines>) -> Result<Lead, CollectiveError> {
    let deadlines = deadlines.into();
    check_world(world_size)?;
    let token = Token::random()?;
    let (place, forming) = match wire {
        #[cfg(target_os = "linux")]
        Wire::Shm => {
            let (lead, place) = shm::Lead::new(token, world_size, deadlines)?;
            (place, Forming::Shm(lead))
        }
        #[cfg(not(target_os = "linux"))]
        Wire::Shm => return Err(CollectiveError::NoSharedMemory),
        Wire::Tcp(ip) => {
            let (lead, place) = tcp::Lead::new(ip, token, world_size, deadlines)?;
            (place, Forming::Tcp(lead))
        }
    };
    Ok(Lead { address: Address { token, place }.encode(), forming })
}

impl Lead {
    /// What the other ranks join by. Opaque, and a secret of the group: who has it can join.
    pub fn address(&self) -> Vec<u8> {
        self.address.clone()
    }

    /// Waits until all ranks have joined, at most [`Deadlines::forming`].
    ///
    /// # Errors
    /// [`CollectiveError::TimedOut`] names a rank that has not come.
    pub fn wait(self) -> Result<Box<dyn HostCollective>, CollectiveError> {
        match self.forming {
            #[cfg(target_os = "linux")]
            Forming::Shm(lead) => Ok(Box::new(lead.wait()?)),
            Forming::Tcp(lead) => Ok(Box::new(lead.wait()?)),
        }
    }
}

/// Joins the group at `address`, as `rank` (from 1) of `world_size`, and waits until all ranks have joined.
///
/// `deadlines` bound that, and later each wait of a call.
///
/// # Errors
/// What contradicts the group (its world size, a rank that is taken), a rank 0 that cannot be reached, or the deadline.
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
    let Address { token, place } = Address::decode(address)?;
    match place {
        #[cfg(target_os = "linux")]
        Place::Shm { process, descriptor } => {
            Ok(Box::new(shm::join(process, descriptor, token, rank, world_size, deadlines)?))
        }
        #[cfg(not(target_os = "linux"))]
        Place::Shm { .. } => Err(CollectiveError::NoSharedMemory),
        Place::Tcp(socket) => Ok(Box::new(tcp::join(socket, token, rank, world_size, deadlines)?)),
    }
}

fn check_world(world_size: usize) -> Result<(), CollectiveError> {
    match world_size {
        1..=MAX_WORLD_SIZE => Ok(()),
        _ => Err(CollectiveError::WorldSize { world_size }),
    }
}
