//! The collectives of a group of devices: over each other's memory, by NCCL, or by the faster of
//! the two for a message's size.

use millrace_backend::Result;

use super::nccl::{Aborter, Communicator};
use super::peers::PeerCollectives;
use crate::ops::allreduce::{AllGatherColumns, AllReduceNorm};
use crate::ops::columns::{RankColumns, place_columns};
use crate::ops::norm::{self, NormRows};
use crate::{Device, Elem, View};

/// Calls of one measurement, and warm-up calls before it.
const MEASURED_CALLS: usize = 20;
const WARM_UP_CALLS: usize = 2;

/// The collectives between the devices of a group, on one rank.
#[derive(Debug)]
pub struct DeviceCollectives {
    device: Device,
    world_size: usize,
    transports: Transports,
}

#[derive(Debug)]
enum Transports {
    Nccl(Communicator),
    Peers(PeerCollectives),
    /// Peer memory for messages of up to this many bytes, NCCL for longer ones.
    Both(PeerCollectives, Communicator, usize),
}

impl DeviceCollectives {
    /// Collectives that always use NCCL.
    pub fn over_nccl(device: &Device, nccl: Communicator) -> DeviceCollectives {
        DeviceCollectives {
            device: device.clone(),
            world_size: nccl.world_size(),
            transports: Transports::Nccl(nccl),
        }
    }

    /// Collectives that always use the other devices' memory.
    pub fn over_peers(device: &Device, peers: PeerCollectives) -> DeviceCollectives {
        DeviceCollectives {
            device: device.clone(),
            world_size: peers.world_size(),
            transports: Transports::Peers(peers),
        }
    }

    /// Collectives that use the other devices' memory for messages of up to `limit` bytes, and NCCL
    /// for longer ones. All ranks must pass the same limit.
    pub fn over_both(
        device: &Device,
        peers: PeerCollectives,
        nccl: Communicator,
        limit: usize,
    ) -> DeviceCollectives {
        DeviceCollectives {
            device: device.clone(),
            world_size: nccl.world_size(),
            transports: Transports::Both(peers, nccl, limit),
        }
    }

    /// The number of ranks in the group.
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// Replaces `x` by its sum over all ranks.
    ///
    /// # Errors
    /// [`millrace_backend::Error::Device`] if the group was aborted or a rank did not take part in
    /// time, or the device's error.
    pub fn all_reduce(&self, x: View<'_>) -> Result<()> {
        match self.transport_for(x.bytes()) {
            Transport::Peers(peers) => peers.all_reduce(x),
            Transport::Nccl(nccl) => nccl.all_reduce(x),
        }
    }

    /// Computes `residual += sum of x over the ranks; out = rms_norm(residual) * weight`, in one
    /// kernel if there is one for the message's size.
    ///
    /// # Errors
    /// As for [`DeviceCollectives::all_reduce`].
    pub fn all_reduce_norm(&self, n: &AllReduceNorm<'_>) -> Result<()> {
        let bytes = n.rows * n.cols * n.x.elem().size();
        match self.transport_for(bytes) {
            Transport::Peers(peers) if peers.fuses(bytes) => peers.all_reduce_norm(n),
            _ => {
                let &AllReduceNorm { rows, cols, eps, x, residual, weight, out } = n;
                self.all_reduce(x.slice(0..rows * cols))?;
                let rows = NormRows { rows, cols, eps, x, residual: Some(residual), out };
                norm::norm(&self.device, norm::NormKind::Rms { weight }, &rows)
            }
        }
    }

    /// Concatenates all ranks' columns. `gathered` is f32 scratch memory with space for the parts
    /// of all ranks.
    ///
    /// # Errors
    /// As for [`DeviceCollectives::all_reduce`].
    pub fn all_gather(&self, g: &AllGatherColumns<'_>, gathered: View<'_>) -> Result<()> {
        let &AllGatherColumns { rows, part_cols, whole_cols, part, whole } = g;
        let len = rows * part_cols;
        match self.transport_for(len * Elem::F32.size()) {
            Transport::Peers(peers) => peers.all_gather(g),
            Transport::Nccl(nccl) => {
                let parts = gathered.slice(0..self.world_size * len);
                nccl.all_gather(part.slice(0..len), parts)?;
                place_columns(&self.device, &RankColumns { rows, part_cols, whole_cols, parts, whole })
            }
        }
    }

    /// Replaces `words`, of 32 bits each, by those of rank 0.
    ///
    /// # Errors
    /// As for [`DeviceCollectives::all_reduce`].
    pub fn broadcast(&self, words: View<'_>) -> Result<()> {
        match self.transport_for(words.bytes()) {
            Transport::Nccl(nccl) => nccl.broadcast(words),
            Transport::Peers(peers) => peers.broadcast(words),
        }
    }

    /// Checks that all ranks have taken part so far, as far as the host knows without waiting for
    /// the device.
    ///
    /// # Errors
    /// [`millrace_backend::Error::Device`] that says what went wrong.
    pub fn check(&self) -> Result<()> {
        let (peers, nccl) = match &self.transports {
            Transports::Nccl(nccl) => (None, Some(nccl)),
            Transports::Peers(peers) => (Some(peers), None),
            Transports::Both(peers, nccl, _) => (Some(peers), Some(nccl)),
        };
        peers.map_or(Ok(()), PeerCollectives::check)?;
        nccl.map_or(Ok(()), Communicator::check)
    }

    /// A handle that aborts NCCL's calls from another thread. Calls over peer memory end by their
    /// own timeout.
    pub fn aborter(&self) -> Option<Aborter> {
        match &self.transports {
            Transports::Peers(_) => None,
            Transports::Nccl(nccl) | Transports::Both(_, nccl, _) => Some(nccl.aborter()),
        }
    }

    fn transport_for(&self, bytes: usize) -> Transport<'_> {
        match &self.transports {
            Transports::Nccl(nccl) => Transport::Nccl(nccl),
            Transports::Peers(peers) => Transport::Peers(peers),
            Transports::Both(peers, _, limit) if bytes <= *limit => Transport::Peers(peers),
            Transports::Both(_, nccl, _) => Transport::Nccl(nccl),
        }
    }
}

/// The transport of one message.
enum Transport<'a> {
    Nccl(&'a Communicator),
    Peers(&'a PeerCollectives),
}

/// Measures the seconds that an all-reduce of `x` takes on this rank, over peer memory and by NCCL.
/// All ranks must measure together.
///
/// # Errors
/// The error of either all-reduce.
pub fn measure_all_reduce(
    device: &Device,
    peers: &PeerCollectives,
    nccl: &Communicator,
    x: View<'_>,
) -> Result<(f64, f64)> {
    let time = |call: &dyn Fn() -> Result<()>| {
        (0..WARM_UP_CALLS).try_for_each(|_| call())?;
        device
            .time(|| (0..MEASURED_CALLS).try_for_each(|_| call()))
            .map(|seconds| seconds / MEASURED_CALLS as f64)
    };
    Ok((time(&|| peers.all_reduce(x))?, time(&|| nccl.all_reduce(x))?))
}
