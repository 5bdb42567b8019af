//! Identifiers of blocks, of checkpoints and of nodes of the prefix tree.

use std::num::NonZeroU32;

/// A block of the shards' KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BlockId(pub(crate) u32);

/// A checkpoint of recurrent states in the shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CheckpointId(pub(crate) u32);

/// An index into the arena of the prefix tree. It is stored plus one, so that an `Option` of it
/// takes four bytes as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct NodeId(NonZeroU32);

impl NodeId {
    /// The id of the node at `index`, which is below the number of blocks and so below 2^32 - 1.
    pub(super) fn new(index: usize) -> Self {
        NodeId(NonZeroU32::MIN.saturating_add(index as u32))
    }

    pub(super) fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}
