//! The kinds of device that a rank can compute on.

pub(crate) mod cuda;
mod ranks;

use millrace_kernels::cpu::{Cpu, CpuOptions};
use millrace_kernels::{Backend, DType, HostMemory};

use crate::collective::HostCollective;
use crate::decoder::{Collective, OverHost};
use crate::memory::free_host_bytes;
use crate::options::ShardOptions;
use crate::{Error, affinity};

/// A device that is ready to take a model.
pub struct Opened<B> {
    /// What computes on it.
    pub backend: B,
    /// Its free memory in bytes, if known.
    pub free: Option<usize>,
}

/// A kind of device: how it is opened, and how its ranks exchange what they have computed.
pub trait Platform {
    /// What computes.
    type Backend: Backend;

    /// The share of the free memory that a KV pool without a given size may fill up to.
    const MEMORY_FRACTION: f64 = 0.8;

    /// Opens this rank's device for a model whose weights are kept as `dtype`.
    ///
    /// # Errors
    /// If there is no such device, or it cannot be used.
    fn open(&self, dtype: DType) -> Result<Opened<Self::Backend>, Error>;

    /// The free memory of the device in bytes, if known, as [`open`](Self::open) told it before anything was allocated.
    fn free(&self, backend: &Self::Backend, options: &ShardOptions) -> Option<usize>;

    /// What the decoder exchanges values by, given the ranks' way between the memories of their hosts.
    ///
    /// # Errors
    /// If the devices cannot be connected.
    fn connect(
        &self,
        backend: &Self::Backend,
        host: Box<dyn HostCollective>,
    ) -> Result<Box<dyn Collective<Self::Backend>>, Error>;
}

/// Devices whose memory is the host's; the function opens one.
pub struct OnHost<F>(pub F);

impl<B: HostMemory + 'static, F: Fn() -> Result<Opened<B>, Error>> Platform for OnHost<F> {
    type Backend = B;

    fn open(&self, _dtype: DType) -> Result<Opened<B>, Error> {
        self.0()
    }

    fn free(&self, _backend: &B, options: &ShardOptions) -> Option<usize> {
        free_host_share(options)
    }

    fn connect(&self, _backend: &B, host: Box<dyn HostCollective>) -> Result<Box<dyn Collective<B>>, Error> {
        Ok(Box::new(OverHost(host)))
    }
}

/// The processor: cores of its own for each rank of this host, and a share of the memory.
pub(crate) fn processor(options: &ShardOptions) -> Result<Opened<Cpu>, Error> {
    let host_ranks = options.host_ranks.max(1);
    let threads = affinity::settle(options.rank % host_ranks, host_ranks, options.threads);
    let backend = Cpu::new(CpuOptions { threads, ..CpuOptions::default() })?;
    Ok(Opened { backend, free: free_host_share(options) })
}

/// The share of the host's free memory that each of its ranks has.
fn free_host_share(options: &ShardOptions) -> Option<usize> {
    free_host_bytes().map(|bytes| bytes / options.host_ranks.max(1))
}
