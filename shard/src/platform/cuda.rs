//! NVIDIA GPUs, and the simulated GPU that stands in for them in tests.

use std::sync::Arc;

use millrace_cuda::nccl::Nccl;
use millrace_cuda::{Cuda, Device, Gpu};
use millrace_model::DecoderSpec;
use millrace_numbers::DType;

use crate::Error;
use crate::collective::HostCollective;
use crate::decoder::Collective;
use crate::options::{RankPlacement, ShardOptions};
use crate::platform::device::{OpenDevice, Platform};
use crate::platform::gpu_collectives::GpuCollectives;
use crate::platform::gpu_ranks::{self, GpuLinkOptions};

/// A kind of GPU behind the CUDA backend.
pub(crate) struct GpuPlatform {
    /// Opens the GPU of this number.
    open: fn(usize) -> millrace_backend::Result<Device>,
    /// The number of this rank's GPU among those of its host.
    ordinal: usize,
    /// The number of ranks that share this GPU.
    sharers: usize,
    /// Whether a row's results are the same however many rows a step has.
    batch_invariant: bool,
    link: GpuLinkOptions,
}

/// NVIDIA GPUs, in the order in which `CUDA_VISIBLE_DEVICES` shows them.
pub(crate) fn gpus(placement: &RankPlacement, options: &ShardOptions) -> GpuPlatform {
    let open = |ordinal| Ok(Device::new(Arc::new(Gpu::new(ordinal)?)));
    GpuPlatform::new(placement, options, open, Nccl::open)
}

/// Simulated GPUs, one for each rank.
#[cfg(feature = "cpu-sim")]
pub(crate) fn simulated(placement: &RankPlacement, options: &ShardOptions) -> GpuPlatform {
    use millrace_cuda::Simulated;
    let nccl = || match std::env::var_os("MILLRACE_NCCL_LIBRARY") {
        Some(_) => Nccl::open(),
        None => Nccl::open_file(Simulated::nccl_library()),
    };
    let open = |_| Ok(Device::new(Arc::new(Simulated::new()?)));
    GpuPlatform::new(placement, options, open, nccl)
}

impl GpuPlatform {
    fn new(
        placement: &RankPlacement,
        options: &ShardOptions,
        open: fn(usize) -> millrace_backend::Result<Device>,
        nccl: fn() -> millrace_backend::Result<Nccl>,
    ) -> Self {
        let host_ranks = options.host_ranks.max(1);
        let sharers = options.ranks_per_gpu.max(1);
        GpuPlatform {
            open,
            ordinal: options.place_on_host(placement.rank) / sharers,
            sharers,
            batch_invariant: options.batch_invariant,
            link: GpuLinkOptions {
                nccl,
                deadline: options.collective_timeout,
                all_reduce: options.all_reduce,
                is_one_host: host_ranks == placement.world_size,
            },
        }
    }
}

impl Platform for GpuPlatform {
    type Backend = Cuda;

    /// The libraries and the driver allocate memory for themselves too.
    const MEMORY_FRACTION: f64 = 0.9;

    const HAS_OWN_MEMORY: bool = true;

    fn missing(model: &DecoderSpec) -> Option<&'static str> {
        model.cpu_only_part()
    }

    fn open(&self, dtype: DType) -> Result<OpenDevice<Cuda>, Error> {
        let device = (self.open)(self.ordinal)?;
        let free = device.memory_bytes().map(|(free, _)| free / self.sharers);
        Ok(OpenDevice { backend: Cuda::new(device, dtype).batch_invariant(self.batch_invariant), free })
    }

    fn free(&self, backend: &Cuda, _: &RankPlacement, _: &ShardOptions) -> Option<usize> {
        backend.device().memory_bytes().map(|(free, _)| free / self.sharers)
    }

    /// The ranks exchange over host memory how their GPUs can be reached.
    fn connect(
        &self,
        backend: &Cuda,
        mut host: Box<dyn HostCollective>,
    ) -> Result<Box<dyn Collective<Cuda>>, Error> {
        let (ranks, method) = gpu_ranks::connect(&self.link, backend.device(), backend.elem(), &mut *host)?;
        Ok(Box::new(GpuCollectives::new(ranks, host, method)))
    }
}
