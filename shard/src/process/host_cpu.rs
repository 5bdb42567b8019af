//! The CPU of this host, opened for one rank.

use millrace_cpu::{Activations, CacheMode, CacheOptions, Cpu, CpuOptions};

use crate::Error;
use crate::options::{RankPlacement, ShardOptions};
use crate::platform::{OpenDevice, free_host_share};
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
