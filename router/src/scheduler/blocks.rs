//! The pool of KV cache blocks. Every block has one owner, or is free.
//!
//! A block may be handed on while a step that uses it is still in flight: shards run steps strictly in the order in
//! which they were planned, so the former owner's last step has ended before the new owner's first one writes.

/// A block of the shards' KV pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct BlockId(pub(super) u32);

/// The free blocks.
#[derive(Debug)]
pub(super) struct BlockPool {
    free: Vec<BlockId>,
    block_size: usize,
}

impl BlockPool {
    pub(super) fn new(num_blocks: usize, block_size: usize) -> Self {
        // Reversed, so that the pool is handed out from its beginning.
        BlockPool { free: (0..num_blocks as u32).rev().map(BlockId).collect(), block_size }
    }

    /// Lengthens `table` until it covers `positions`. On shortage nothing is taken and the answer is false.
    #[must_use]
    pub(super) fn cover(&mut self, table: &mut Vec<BlockId>, positions: usize) -> bool {
        let missing = positions.div_ceil(self.block_size).saturating_sub(table.len());
        let Some(rest) = self.free.len().checked_sub(missing) else { return false };
        table.extend(self.free.drain(rest..).rev());
        true
    }

    /// Takes the blocks of a table back.
    pub(super) fn release(&mut self, table: Vec<BlockId>) {
        self.free.extend(table.into_iter().rev());
    }

    pub(super) fn free(&self) -> &[BlockId] {
        &self.free
    }
}
