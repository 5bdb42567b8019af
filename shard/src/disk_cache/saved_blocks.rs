//! Slots in the memory of the host, for a device that has memory of its own.
//!
//! The device copies blocks in the order of its work, so nobody waits for a copy and none can fail.
//! What a slot holds is only known here, and is gone with the process.

use std::time::Duration;

use millrace_backend::Backend;

use super::slot_header::Hash;
use crate::Error;
use crate::decoder::Decoder;

/// Bytes in a second that a copy is assumed to move. The copies are not measured, because that
/// would mean to wait for them. A PCIe link of the fourth generation moves about as many, and the
/// router bounds the copies of a step by this time.
const BYTES_PER_SECOND: f64 = 20e9;

/// The slots, and the blocks that they hold.
pub(super) struct SavedBlocks {
    held: Vec<Option<Hash>>,
    block_bytes: usize,
}

impl SavedBlocks {
    /// Reserves memory for `slots` blocks of `block_bytes` bytes.
    ///
    /// # Errors
    /// If the device cannot copy blocks to host memory, or the host has too little of it.
    pub(super) fn reserve<B: Backend>(backend: &B, slots: usize, block_bytes: usize) -> Result<Self, Error> {
        backend.reserve_saved_blocks(slots * block_bytes)?;
        Ok(SavedBlocks { held: vec![None; slots], block_bytes })
    }

    /// Saves a block in a slot.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn save<B: Backend>(
        &mut self,
        slot: usize,
        hash: Hash,
        block: usize,
        (backend, decoder): (&B, &Decoder<B>),
    ) -> Result<(), Error> {
        decoder.save_block(backend, block, slot * self.block_bytes)?;
        self.held[slot] = Some(hash);
        Ok(())
    }

    /// Restores a block from a slot. Returns whether the slot holds it.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn restore<B: Backend>(
        &self,
        slot: usize,
        hash: &Hash,
        block: usize,
        (backend, decoder): (&B, &mut Decoder<B>),
    ) -> Result<bool, Error> {
        let is_held = self.held[slot].as_ref() == Some(hash);
        if is_held {
            decoder.restore_block(backend, block, slot * self.block_bytes)?;
        }
        Ok(is_held)
    }

    /// Forgets what a slot holds.
    pub(super) fn erase(&mut self, slot: usize) {
        self.held[slot] = None;
    }

    /// Returns the bytes of all slots.
    pub(super) fn bytes(&self) -> usize {
        self.held.len() * self.block_bytes
    }

    /// Returns the time that so many copies are assumed to take.
    pub(super) fn copy_time(&self, copies: usize) -> Duration {
        Duration::from_secs_f64((copies * self.block_bytes) as f64 / BYTES_PER_SECOND)
    }
}
