//! The free blocks of the shards' KV cache.

use super::ids::BlockId;

/// The blocks that are neither private to a sequence nor in the prefix tree.
#[derive(Debug)]
pub(super) struct BlockPool {
    free: Vec<BlockId>,
}

impl BlockPool {
    pub(super) fn new(num_blocks: usize) -> Self {
        // Reversed, so that blocks are handed out in ascending order.
        BlockPool { free: (0..num_blocks as u32).rev().map(BlockId).collect() }
    }

    pub(super) fn take(&mut self) -> Option<BlockId> {
        self.free.pop()
    }

    pub(super) fn give_back(&mut self, block: BlockId) {
        self.free.push(block);
    }

    pub(super) fn free(&self) -> &[BlockId] {
        &self.free
    }

    /// Number of bytes that the pool has allocated.
    #[cfg(test)]
    pub(super) fn allocated(&self) -> usize {
        self.free.capacity() * size_of::<BlockId>()
    }
}
