//! How the devices of a group exchange activations: over each other's memory, by NCCL, or by whichever is faster for a message's size.

use super::nccl::{Aborter, Communicator};
use super::ops::allreduce::{AddNorm, GatherColumns};
use super::ops::columns::{Columns, place_columns};
use super::ops::norm::{self, Rows};
use super::peers::Peers;
use super::{Device, Elem, View};
use crate::Result;

/// Calls of one measurement, and those before it that are not measured.
const MEASURED: usize = 20;
const WARM: usize = 2;

/// What carries activations between the devices of a group.
#[derive(Debug)]
pub struct Ranks {
    device: Device,
    world_size: usize,
    wires: Wires,
}

#[derive(Debug)]
enum Wires {
    Nccl(Communicator),
    Peers(Peers),
    /// The first for messages of up to so many bytes.
    Both(Peers, Communicator, usize),
}

impl Ranks {
    /// NCCL for everything.
    pub fn over_nccl(device: &Device, nccl: Communicator) -> Ranks {
        Ranks { device: device.clone(), world_size: nccl.world_size(), wires: Wires::Nccl(nccl) }
    }

    /// The other devices' memory for everything.
    pub fn over_peers(device: &Device, peers: Peers) -> Ranks {
        Ranks { device: device.clone(), world_size: peers.world_size(), wires: Wires::Peers(peers) }
    }

    /// The other devices' memory for messages of up to `most` bytes, and NCCL for longer ones. All ranks say the same.
    pub fn over_both(device: &Device, peers: Peers, nccl: Communicator, most: usize) -> Ranks {
        Ranks { device: device.clone(), world_size: nccl.world_size(), wires: Wires::Both(peers, nccl, most) }
    }

    /// How many there are.
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// Replaces `x` by its sum over all ranks.
    ///
    /// # Errors
    /// [`crate::Error::Device`] if the group was aborted or a rank was missed, or what the device fails with.
    pub fn all_reduce(&self, x: View<'_>) -> Result<()> {
        match self.wires_for(x.bytes()) {
            Wire::Peers(peers) => peers.all_reduce(x),
            Wire::Nccl(nccl) => nccl.all_reduce(x),
        }
    }

    /// `residual += sum of x over the ranks; out = rms_norm(residual) * weight`, in one kernel where there is one for the message.
    ///
    /// # Errors
    /// As for [`Ranks::all_reduce`].
    pub fn all_reduce_norm(&self, n: &AddNorm<'_>) -> Result<()> {
        let bytes = n.rows * n.cols * n.x.elem().size();
        match self.wires_for(bytes) {
            Wire::Peers(peers) if peers.fuses(bytes) => peers.all_reduce_norm(n),
            _ => {
                let &AddNorm { rows, cols, eps, x, residual, weight, out } = n;
                self.all_reduce(x.slice(0..rows * cols))?;
                let rows = Rows { rows, cols, eps, x, residual: Some(residual), out };
                norm::norm(&self.device, norm::Norm::Rms { weight }, &rows)
            }
        }
    }

    /// Puts all ranks' columns side by side. `gathered` is f32 with room for the parts of all ranks.
    ///
    /// # Errors
    /// As for [`Ranks::all_reduce`].
    pub fn all_gather(&self, g: &GatherColumns<'_>, gathered: View<'_>) -> Result<()> {
        let &GatherColumns { rows, part_cols, whole_cols, part, whole } = g;
        let len = rows * part_cols;
        match self.wires_for(len * Elem::F32.size()) {
            Wire::Peers(peers) => peers.all_gather(g),
            Wire::Nccl(nccl) => {
                let parts = gathered.slice(0..self.world_size * len);
                nccl.all_gather(part.slice(0..len), parts)?;
                place_columns(&self.device, &Columns { rows, part_cols, whole_cols, parts, whole })
            }
        }
    }

    /// Whether all ranks have taken part so far, as far as is known without waiting for the device.
    ///
    /// # Errors
    /// [`crate::Error::Device`] with what went wrong.
    pub fn check(&self) -> Result<()> {
        let (peers, nccl) = match &self.wires {
            Wires::Nccl(nccl) => (None, Some(nccl)),
            Wires::Peers(peers) => (Some(peers), None),
            Wires::Both(peers, nccl, _) => (Some(peers), Some(nccl)),
        };
        peers.map_or(Ok(()), Peers::check)?;
        nccl.map_or(Ok(()), Communicator::check)
    }

    /// What ends the calls of NCCL from another thread; those over the devices' memory end by themselves.
    pub fn aborter(&self) -> Option<Aborter> {
        match &self.wires {
            Wires::Peers(_) => None,
            Wires::Nccl(nccl) | Wires::Both(_, nccl, _) => Some(nccl.aborter()),
        }
    }

    fn wires_for(&self, bytes: usize) -> Wire<'_> {
        match &self.wires {
            Wires::Nccl(nccl) => Wire::Nccl(nccl),
            Wires::Peers(peers) => Wire::Peers(peers),
            Wires::Both(peers, _, most) if bytes <= *most => Wire::Peers(peers),
            Wires::Both(_, nccl, _) => Wire::Nccl(nccl),
        }
    }
}

/// What carries one message.
enum Wire<'a> {
    Nccl(&'a Communicator),
    Peers(&'a Peers),
}

/// Seconds of an all-reduce of `x` by either way, on this rank. All ranks measure together.
///
/// # Errors
/// What either fails with.
pub fn measure(device: &Device, peers: &Peers, nccl: &Communicator, x: View<'_>) -> Result<(f64, f64)> {
    let time = |call: &dyn Fn() -> Result<()>| {
        (0..WARM).try_for_each(|_| call())?;
        device.time(|| (0..MEASURED).try_for_each(|_| call())).map(|seconds| seconds / MEASURED as f64)
    };
    Ok((time(&|| peers.all_reduce(x))?, time(&|| nccl.all_reduce(x))?))
}
