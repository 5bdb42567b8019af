//! Copies of blocks of KV caches in pinned host memory.
//!
//! All copies are on the stream of the steps. So a block is saved after the steps that have
//! computed it and before those that overwrite it, and is back before the steps that read it,
//! although the host waits for nothing.

use std::sync::{Mutex, PoisonError};

use millrace_backend::{Error, Result};

use super::buffers::Kv;
use crate::{Device, Pinned, View};

/// The reserved memory, if there is any.
#[derive(Debug, Default)]
pub(super) struct SavedBlocks(Mutex<Option<Pinned>>);

impl SavedBlocks {
    /// Reserves `bytes` bytes.
    pub(super) fn reserve(&self, device: &Device, bytes: usize) -> Result<()> {
        let mut memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The old memory is free before the new one is taken.
        *memory = None;
        *memory = Some(device.pinned(bytes)?);
        Ok(())
    }

    /// Starts the copy of a block to the memory from byte `at` on.
    pub(super) fn save(&self, device: &Device, kv: &Kv, block: usize, at: usize) -> Result<()> {
        self.each_piece(kv, block, at, |memory, piece, range| device.read_into(piece, memory, range))
    }

    /// Starts the copy of the memory from byte `at` on to a block.
    pub(super) fn restore(&self, device: &Device, kv: &Kv, block: usize, at: usize) -> Result<()> {
        self.each_piece(kv, block, at, |memory, piece, range| device.write_from(piece, memory, range))
    }

    /// Calls `copy` for the keys and the values of a block, with the bytes that they take.
    fn each_piece(
        &self,
        kv: &Kv,
        block: usize,
        mut at: usize,
        copy: impl Fn(&mut Pinned, View<'_>, std::ops::Range<usize>) -> Result<()>,
    ) -> Result<()> {
        let mut memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let none = || Error::Unsupported("copies of blocks without reserved memory".to_owned());
        let memory = memory.as_mut().ok_or_else(none)?;
        for piece in kv.block(block)? {
            let range = at..at + piece.bytes();
            at = range.end;
            copy(memory, piece, range)?;
        }
        Ok(())
    }
}
