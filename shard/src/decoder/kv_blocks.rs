//! Copies of blocks of the KV cache, of all layers together, for the disk cache.

use millrace_backend::Backend;

use super::Decoder;
use super::layer_stack::LayerStack;
use crate::Error;
use crate::options::RankPlacement;

impl<B: Backend> LayerStack<B> {
    /// Returns the bytes of a block in the caches of all layers. Returns `None` if the device
    /// cannot copy blocks.
    fn block_bytes(&self, backend: &B) -> Option<usize> {
        self.caches().map(|kv| backend.block_bytes(kv)).sum()
    }

    /// Copies a block of all layers to `bytes`, layer by layer.
    fn read_block(&self, backend: &B, block: usize, mut bytes: &mut [u8]) -> Result<(), Error> {
        for kv in self.caches() {
            let (part, rest) = bytes.split_at_mut(backend.block_bytes(kv).unwrap_or(0));
            backend.read_block(kv, block, part)?;
            bytes = rest;
        }
        Ok(())
    }

    /// Saves a block of all layers in host memory from byte `at` on, layer by layer.
    fn save_block(&self, backend: &B, block: usize, mut at: usize) -> Result<(), Error> {
        for kv in self.caches() {
            backend.save_block(kv, block, at)?;
            at += backend.block_bytes(kv).unwrap_or(0);
        }
        Ok(())
    }

    /// Restores what `save_block` has saved.
    fn restore_block(&mut self, backend: &B, block: usize, mut at: usize) -> Result<(), Error> {
        for kv in self.caches_mut() {
            backend.restore_block(kv, block, at)?;
            at += backend.block_bytes(kv).unwrap_or(0);
        }
        Ok(())
    }

    /// Replaces a block of all layers by `bytes`.
    fn write_block(&mut self, backend: &B, block: usize, mut bytes: &[u8]) -> Result<(), Error> {
        for kv in self.caches_mut() {
            let (part, rest) = bytes.split_at(backend.block_bytes(kv).unwrap_or(0));
            backend.write_block(kv, block, part)?;
            bytes = rest;
        }
        Ok(())
    }
}

impl<B: Backend> Decoder<B> {
    /// Returns the bytes of a block of the KV cache on this rank. Returns `None` if the device
    /// cannot copy blocks.
    pub fn block_bytes(&self, backend: &B) -> Option<usize> {
        self.forward.layers.block_bytes(backend)
    }

    /// Copies a block of the KV cache to `bytes`, of which there are [`Decoder::block_bytes`].
    ///
    /// # Errors
    /// If the device cannot copy blocks.
    pub fn read_block(&self, backend: &B, block: usize, bytes: &mut [u8]) -> Result<(), Error> {
        self.forward.layers.read_block(backend, block, bytes)
    }

    /// Replaces a block of the KV cache by `bytes`, which [`Decoder::read_block`] has copied.
    ///
    /// # Errors
    /// If the device cannot copy blocks.
    pub fn write_block(&mut self, backend: &B, block: usize, bytes: &[u8]) -> Result<(), Error> {
        self.forward.layers.write_block(backend, block, bytes)
    }

    /// Saves a block of the KV cache in the device's reserved host memory from byte `at` on.
    ///
    /// # Errors
    /// If the device cannot copy blocks there, or they are not within the reserved memory.
    pub fn save_block(&self, backend: &B, block: usize, at: usize) -> Result<(), Error> {
        self.forward.layers.save_block(backend, block, at)
    }

    /// Restores a block of the KV cache that [`Decoder::save_block`] has saved.
    ///
    /// # Errors
    /// As [`Decoder::save_block`].
    pub fn restore_block(&mut self, backend: &B, block: usize, at: usize) -> Result<(), Error> {
        self.forward.layers.restore_block(backend, block, at)
    }

    /// Replaces `values`, the same number on every rank, by their sums over all ranks. All ranks
    /// call it at the same point, between two steps.
    ///
    /// # Errors
    /// If another rank is lost, or the ranks share no host memory.
    pub fn sum_over_ranks(&mut self, values: &mut [f32]) -> Result<(), Error> {
        self.forward.group.sum(values)
    }

    /// Returns the smallest `count` of all ranks, which is below 2^24. All ranks call it at the
    /// same point, between two steps.
    ///
    /// # Errors
    /// As [`Decoder::sum_over_ranks`].
    pub fn agree(&mut self, placement: &RankPlacement, count: usize) -> Result<usize, Error> {
        let mut counts = vec![0.0; placement.world_size];
        counts[placement.rank] = count as f32;
        self.sum_over_ranks(&mut counts)?;
        Ok(counts.into_iter().map(|count| count as usize).min().unwrap_or(count))
    }
}
