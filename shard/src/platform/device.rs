//! The interface of a kind of device.

use millrace_backend::Backend;
use millrace_model::DecoderSpec;
use millrace_model::memory_plan::PoolBound;
use millrace_numbers::DType;

use crate::Error;
use crate::collective::HostCollective;
use crate::decoder::Collective;
use crate::options::{RankPlacement, ShardOptions};

/// A device that is ready to load a model.
pub struct OpenDevice<B> {
    /// The backend that computes on the device.
    pub backend: B,
    /// Free memory of the device in bytes, if known.
    pub free: Option<usize>,
}

/// A kind of device: how to open it, and how its ranks exchange activations.
pub trait Platform {
    /// The backend that computes on the device.
    type Backend: Backend;

    /// The share of the free memory that a KV pool without a given size may fill up to.
    const MEMORY_FRACTION: f64 = 0.8;

    /// Whether the device has memory of its own, so that the host can compute layers that do not
    /// fit it.
    const HAS_OWN_MEMORY: bool = false;

    /// A further bound on such a KV pool, for a device that shares its memory with other programs.
    const POOL_BOUND: Option<PoolBound> = None;

    /// Returns a part of the model that the device has no kernels for, if there is one.
    fn missing(_model: &DecoderSpec) -> Option<&'static str> {
        None
    }

    /// Opens this rank's device for a model whose weights have the element type `dtype`.
    ///
    /// # Errors
    /// If there is no such device, or it cannot be used.
    fn open(&self, dtype: DType) -> Result<OpenDevice<Self::Backend>, Error>;

    /// Returns the free memory of the device in bytes, if known. Before anything is allocated, this
    /// is the amount that [`open`](Self::open) returned.
    fn free(
        &self,
        backend: &Self::Backend,
        placement: &RankPlacement,
        options: &ShardOptions,
    ) -> Option<usize>;

    /// Connects this rank's device with those of the other ranks. `host` connects the memories of
    /// their hosts.
    ///
    /// # Errors
    /// If the devices cannot be connected.
    fn connect(
        &self,
        backend: &Self::Backend,
        host: Box<dyn HostCollective>,
    ) -> Result<Box<dyn Collective<Self::Backend>>, Error>;
}
