//! The interface between a decoder and a device, as one trait.

use crate::queue::StepQueue;
use crate::sampling::Sampled;
use crate::{Error, ForwardOps, ModelLoading, OpenStep, Result, Sizing};

/// A device that a decoder can run on: all its traits, and a name.
pub trait Backend: Sizing + ModelLoading + ForwardOps + StepQueue {
    /// Returns a name for people, such as `cpu (avx512, 2 threads)`.
    fn name(&self) -> String;

    /// Returns the bytes of one block of a layer's KV cache, as [`Backend::read_block`] and
    /// [`Backend::save_block`] copy it. Returns `None` if the device can do neither.
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

    /// Reserves `bytes` bytes of host memory for copies of blocks, in place of what was reserved
    /// before. Only a device with memory of its own has a use for them.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device's memory is that of the host, [`Error::OutOfMemory`] if
    /// the host has less memory that the device can copy to.
    fn reserve_saved_blocks(&self, _bytes: usize) -> Result<()> {
        Err(Error::Unsupported("copies of blocks in host memory".to_owned()))
    }

    /// Copies a block of a layer's KV cache to the reserved memory from byte `at` on. Work that was
    /// submitted before comes before the copy, and later work after it; nobody waits for it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if nothing is reserved, [`Error::Shape`] if the bytes are not part of
    /// it.
    fn save_block(&self, _kv: &Self::Kv, _block: usize, _at: usize) -> Result<()> {
        Err(Error::Unsupported("copies of blocks in host memory".to_owned()))
    }

    /// Replaces a block of a layer's KV cache by what [`Backend::save_block`] has copied to byte
    /// `at`, in the same order of work.
    ///
    /// # Errors
    /// As [`Backend::save_block`].
    fn restore_block(&self, _kv: &mut Self::Kv, _block: usize, _at: usize) -> Result<()> {
        Err(Error::Unsupported("copies of blocks in host memory".to_owned()))
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
