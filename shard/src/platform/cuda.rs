//! Cards, and the simulated device that stands in for them in tests.

use std::sync::Arc;
use std::time::Duration;

use millrace_kernels::cuda::nccl::{Communicator, Nccl};
use millrace_kernels::cuda::{Card, Cuda, Device};
use millrace_kernels::{Backend, DType};

use super::{Opened, Platform};
use crate::Error;
use crate::collective::HostCollective;
use crate::decoder::{Collective, OverCards};
use crate::options::ShardOptions;

/// Bytes of the name of an NCCL group.
const GROUP_NAME: usize = 128;

/// One kind of device behind the CUDA backend.
pub(crate) struct OnCards {
    /// Opens this rank's device.
    pub(crate) open: fn(usize) -> millrace_kernels::Result<Device>,
    /// Opens the library that carries values between devices.
    pub(crate) nccl: fn() -> millrace_kernels::Result<Nccl>,
    /// The device's number among those of this host.
    pub(crate) ordinal: usize,
    /// How long a rank waits for another.
    pub(crate) deadline: Duration,
    /// Whether a row's results are the same however many rows there are.
    pub(crate) batch_invariant: bool,
}

/// NVIDIA's cards, in the order in which `CUDA_VISIBLE_DEVICES` shows them.
pub(crate) fn cards(ordinal: usize, options: &ShardOptions) -> OnCards {
    OnCards {
        open: |ordinal| Ok(Device::new(Arc::new(Card::new(card_of(ordinal)?)?))),
        nccl: Nccl::open,
        ordinal,
        deadline: options.collective_timeout,
        batch_invariant: options.batch_invariant,
    }
}

/// The card of this rank among those of its host: its own number, or what `MILLRACE_CARDS` lists, such as `0,0` for two ranks on one card.
fn card_of(rank: usize) -> millrace_kernels::Result<usize> {
    match std::env::var("MILLRACE_CARDS") {
        Ok(list) => listed(&list, rank).ok_or_else(|| {
            millrace_kernels::Error::Device(format!(
                "MILLRACE_CARDS={list} names no card for rank {rank} of this host"
            ))
        }),
        Err(_) => Ok(rank),
    }
}

fn listed(list: &str, rank: usize) -> Option<usize> {
    list.split(',').nth(rank)?.trim().parse().ok()
}

/// The simulated device; every rank has one.
#[cfg(feature = "cpu-sim")]
pub(crate) fn simulated(ordinal: usize, options: &ShardOptions) -> OnCards {
    use millrace_kernels::cuda::Simulated;
    OnCards {
        open: |_| Ok(Device::new(Arc::new(Simulated::new()?))),
        nccl: || Nccl::open_file(Simulated::nccl_library()),
        ordinal,
        deadline: options.collective_timeout,
        batch_invariant: options.batch_invariant,
    }
}

impl Platform for OnCards {
    type Backend = Cuda;

    /// The libraries and the driver allocate for themselves too.
    const MEMORY_FRACTION: f64 = 0.9;

    fn open(&self, dtype: DType) -> Result<Opened<Cuda>, Error> {
        let device = (self.open)(self.ordinal)?;
        let free = device.memory_bytes().map(|(free, _)| free);
        Ok(Opened { backend: Cuda::new(device, dtype).batch_invariant(self.batch_invariant), free })
    }

    /// The ranks tell each other the name of their NCCL group over the host's wire, which stays for what the hosts exchange.
    fn connect(
        &self,
        backend: &Cuda,
        mut host: Box<dyn HostCollective>,
    ) -> Result<Box<dyn Collective<Cuda>>, Error> {
        let nccl = Arc::new((self.nccl)()?);
        let mut name = if host.rank() == 0 { nccl.unique_id()? } else { vec![0; GROUP_NAME] };
        host.broadcast(&mut name)?;
        let (rank, world) = (host.rank(), host.world_size());
        let cards = Communicator::form(nccl, backend.device(), &name, rank, world, self.deadline)?;
        tracing::debug!("{} takes part as rank {rank} of {world}", backend.name());
        Ok(Box::new(OverCards::new(cards, host)))
    }
}

#[cfg(test)]
mod tests {
    use super::listed;

    #[test]
    fn ranks_find_their_cards_in_a_list() {
        assert_eq!([0, 1, 2].map(|rank| listed("3, 0", rank)), [Some(3), Some(0), None]);
        assert_eq!(listed("", 0), None);
        assert_eq!(listed("0,-1", 1), None);
    }
}
