//! The interface between a decoder and a device, as one trait.

use crate::queue::StepQueue;
use crate::sampling::Sampled;
use crate::{Error, ForwardOps, ModelLoading, OpenStep, Result, Sizing};

/// A device that a decoder can run on: all four traits, and a name.
pub trait Backend: Sizing + ModelLoading + ForwardOps + StepQueue {
    /// Returns a name for people, such as `cpu (avx512, 2 threads)`.
    fn name(&self) -> String;

    /// Returns the bytes of one block of a layer's KV cache, as [`Backend::read_block`] copies it.
    /// Returns `None` if the device cannot copy blocks.
    fn block_bytes(&self, _kv: &Self::Kv) -> Option<usize> {
        None
    }

    /// Copies a block of a layer's KV cache to `bytes`, of which there are
    /// [`Backend::block_bytes`]. Only a cache of the same specification on a device with the same
    /// name reads them in the same way.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device cannot copy blocks.
    fn read_block(&self, _kv: &Self::Kv, _block: usize, _bytes: &mut [u8]) -> Result<()> {
        Err(Error::Unsupported("copies of blocks of the KV cache".to_owned()))
    }

    /// Replaces a block of a layer's KV cache by `bytes`, which [`Backend::read_block`] has copied.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device cannot copy blocks.
    fn write_block(&self, _kv: &mut Self::Kv, _block: usize, _bytes: &[u8]) -> Result<()> {
        Err(Error::Unsupported("copies of blocks of the KV cache".to_owned()))
    }
}

/// A device whose activations lie in host memory, where the processes of a group can exchange them.
pub trait HostMemory: Backend {
    /// Returns the first `n` rows.
    fn host<'a>(&self, buf: &'a Self::Buf, n: usize) -> &'a [f32];

    /// Returns the first `n` rows for writing.
    fn host_mut<'a>(&self, buf: &'a mut Self::Buf, n: usize) -> &'a mut [f32];

    /// Returns the tokens that the step has sampled so far, one for each of its outputs. A rank
    /// that does not sample writes here the tokens that another rank has sent.
    fn sampled<'a>(&self, step: &'a mut OpenStep<'_, Self::Queue>) -> &'a mut Vec<Sampled>;
}
