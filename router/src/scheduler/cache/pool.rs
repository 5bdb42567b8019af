//! The blocks of the shards' KV pool that nobody holds.

/// A block of the shards' KV pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::scheduler) struct BlockId(pub(in crate::scheduler) u32);

/// The free blocks.
#[derive(Debug)]
pub(super) struct BlockPool {
    free: Vec<BlockId>,
}

impl BlockPool {
    pub(super) fn new(num_blocks: usize) -> Self {
        // Reversed, so that the pool is handed out from its beginning.
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
}
