//! The CPU of this host, opened for one rank: alone, or for the layers that do not fit the GPU.

use millrace_backend::Sizing;
use millrace_cpu::{Activations, CacheMode, CacheOptions, Cpu, CpuOptions};
use millrace_model::memory_plan::{HostPlan, HostRequest, MemoryPlan, PlanError, PlanRequest, plan_split};
use millrace_model::{DecoderSpec, Model, WeightSource, WeightStorage};

use crate::Error;
use crate::decoder::{HostLayers, ModelPart};
use crate::options::{GpuMemory, RankPlacement, ShardOptions};
use crate::platform::{HostPlatform, OpenDevice, Platform, free_host_share};
use crate::process::affinity;

/// Opens the CPU: cores of its own for each rank of this host, and a share of the memory.
pub(crate) fn open_cpu(placement: &RankPlacement, options: &ShardOptions) -> Result<OpenDevice<Cpu>, Error> {
    let (place, places) = (options.place_on_host(placement.rank), options.places_on_host());
    let threads = affinity::bind_rank(place, places, options.threads);
    let activations = if options.exact_activations { Activations::Exact } else { Activations::Rounded };
    let cache = options.weight_cache.as_ref().map(|cache| CacheOptions {
        folder: cache.folder.clone(),
        mode: if cache.map { CacheMode::Map } else { CacheMode::Copy },
    });
    let backend =
        Cpu::new(CpuOptions { threads: threads.count, isa: None, activations, cache, cores: threads.cores })?;
    Ok(OpenDevice { backend, free: free_host_share(placement, options) })
}

/// The CPU as a device of its own, for its bounds on memory.
type CpuPlatform = HostPlatform<fn() -> Result<OpenDevice<Cpu>, Error>>;

/// The CPU, opened beside a GPU whose memory the operator bounds.
pub(super) struct HostShare {
    backend: Cpu,
    /// The formats of the weights on the CPU.
    storage: WeightStorage,
    /// Free memory of the host in bytes, if known.
    free: Option<usize>,
    gpu_memory: GpuMemory,
}

impl HostShare {
    /// Opens the CPU if the operator bounds the memory that may be taken of the device, which has
    /// `device_free` bytes of free memory. `storage` has the formats of the weights there.
    ///
    /// # Errors
    /// If the device has no memory of its own, or does not say how much of it is free; if there are
    /// several ranks; or if the CPU cannot be used.
    pub(super) fn open<P: Platform>(
        placement: &RankPlacement,
        options: &ShardOptions,
        model: &Model,
        storage: &WeightStorage,
        device_free: Option<usize>,
    ) -> Result<Option<Self>, Error> {
        let Some(gpu_memory) = options.gpu_memory else { return Ok(None) };
        let refused = |why: &str| Err(Error::Unsupported(format!("--gpu-memory {why}")));
        if !P::HAS_OWN_MEMORY {
            return refused("needs a GPU; omit it, or give --device cuda");
        }
        if placement.world_size > 1 {
            return refused("and --num-shard above 1 cannot be combined; omit one of them");
        }
        if gpu_memory.bytes(device_free).is_none() {
            return refused("as a share needs a device that tells its free memory; give a number of bytes");
        }
        // Packed weights are not kept, because the cache has a place for whole models only.
        let options = ShardOptions { weight_cache: None, ..options.clone() };
        let OpenDevice { backend, free } = open_cpu(placement, &options)?;
        let storage = WeightStorage::choose(storage.dtype, options.quantize_request(), model, &backend)?;
        Ok(Some(HostShare { backend, storage, free, gpu_memory }))
    }

    /// Splits the layers of `spec`, see [`plan_split`].
    ///
    /// # Errors
    /// The same as [`plan_split`].
    pub(super) fn plan(
        &self,
        spec: &DecoderSpec,
        request: &PlanRequest,
        device: &impl Sizing,
    ) -> Result<MemoryPlan, PlanError> {
        let on_host = HostRequest {
            device_bytes: self.gpu_memory.bytes(request.free).unwrap_or(usize::MAX),
            weights: self.storage.clone(),
            free: self.free,
            fraction: CpuPlatform::MEMORY_FRACTION,
            pool_bound: CpuPlatform::POOL_BOUND,
            host: &self.backend,
        };
        plan_split(spec, request, device, &on_host)
    }

    /// Tells whether a GPU with this much free memory has less than the operator allows to take.
    pub(super) fn lacks_memory(&self, device_free: Option<usize>) -> bool {
        device_free.zip(self.gpu_memory.bytes(device_free)).is_some_and(|(free, bound)| free < bound)
    }

    /// Loads the layers of `host` from `source`, and allocates what they need. Calls `progress`
    /// after each weight with the bytes on the host so far.
    ///
    /// # Errors
    /// The same as [`HostLayers::load`].
    pub(super) fn load(
        self,
        spec: &DecoderSpec,
        (plan, host): (&MemoryPlan, &HostPlan),
        source: &dyn WeightSource,
        progress: &mut dyn FnMut(usize) -> Result<(), Error>,
    ) -> Result<HostLayers<Cpu>, Error> {
        let part = ModelPart { spec, layers: 0..host.layers };
        HostLayers::load(self.backend, &part, source, self.storage, &plan.limits, progress)
    }
}
