//! Cards, and the simulated device that stands in for them in tests.

use std::sync::Arc;
use std::time::Duration;

use millrace_kernels::DType;
use millrace_kernels::cuda::nccl::Nccl;
use millrace_kernels::cuda::{Card, Cuda, Device};

use super::{Opened, Platform, ranks};
use crate::Error;
use crate::collective::HostCollective;
use crate::decoder::{Collective, OverCards};
use crate::options::{AllReduce, ShardOptions};

/// One kind of device behind the CUDA backend.
pub(crate) struct OnCards {
    /// Opens this rank's device.
    pub(crate) open: fn(usize) -> millrace_kernels::Result<Device>,
    /// Opens the library that carries values between devices.
    pub(crate) nccl: fn() -> millrace_kernels::Result<Nccl>,
    /// The device's number among those of this host.
    pub(crate) ordinal: usize,
    /// Ranks that have this device.
    pub(crate) sharers: usize,
    /// How long a rank waits for another.
    pub(crate) deadline: Duration,
    /// What carries activations.
    pub(crate) all_reduce: AllReduce,
    /// Whether all ranks are on this host.
    pub(crate) one_host: bool,
    /// Whether a row's results are the same however many rows there are.
    pub(crate) batch_invariant: bool,
}

/// NVIDIA's cards, in the order in which `CUDA_VISIBLE_DEVICES` shows them.
pub(crate) fn cards(options: &ShardOptions) -> OnCards {
    devices(options, |ordinal| Ok(Device::new(Arc::new(Card::new(ordinal)?))), Nccl::open)
}

/// The simulated device; every rank has one.
#[cfg(feature = "cpu-sim")]
pub(crate) fn simulated(options: &ShardOptions) -> OnCards {
    use millrace_kernels::cuda::Simulated;
    let nccl = || match std::env::var_os("MILLRACE_NCCL_LIBRARY") {
        Some(_) => Nccl::open(),
        None => Nccl::open_file(Simulated::nccl_library()),
    };
    devices(options, |_| Ok(Device::new(Arc::new(Simulated::new()?))), nccl)
}

fn devices(
    options: &ShardOptions,
    open: fn(usize) -> millrace_kernels::Result<Device>,
    nccl: fn() -> millrace_kernels::Result<Nccl>,
) -> OnCards {
    let host_ranks = options.host_ranks.max(1);
    let sharers = options.ranks_per_card.max(1);
    OnCards {
        open,
        nccl,
        ordinal: options.rank % host_ranks / sharers,
        sharers,
        deadline: options.collective_timeout,
        all_reduce: options.all_reduce,
        one_host: host_ranks == options.world_size,
        batch_invariant: options.batch_invariant,
    }
}

impl Platform for OnCards {
    type Backend = Cuda;

    /// The libraries and the driver allocate for themselves too.
    const MEMORY_FRACTION: f64 = 0.9;

    fn open(&self, dtype: DType) -> Result<Opened<Cuda>, Error> {
        let device = (self.open)(self.ordinal)?;
        let free = device.memory_bytes().map(|(free, _)| free / self.sharers);
        Ok(Opened { backend: Cuda::new(device, dtype).batch_invariant(self.batch_invariant), free })
    }

    fn free(&self, backend: &Cuda, _options: &ShardOptions) -> Option<usize> {
        backend.device().memory_bytes().map(|(free, _)| free / self.sharers)
    }

    /// The ranks tell each other over the host's wire how they can be reached; it stays for what the hosts exchange.
    fn connect(
        &self,
        backend: &Cuda,
        mut host: Box<dyn HostCollective>,
    ) -> Result<Box<dyn Collective<Cuda>>, Error> {
        let (ranks, said) = ranks::connect(self, backend.device(), backend.elem(), &mut *host)?;
        Ok(Box::new(OverCards::new(ranks, host, said)))
    }
}
