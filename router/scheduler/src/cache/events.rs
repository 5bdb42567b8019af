//! Changes of the prefix cache, for indexes outside of this process.
//!
//! Routers in front of several servers send a request to the server that has computed most of its
//! prompt. They learn from these events which blocks a server has.
//!
//! Blocks of requests with a cache salt are not reported. A router finds blocks by their tokens
//! and its adapter alone and would take them for blocks that every request can reuse.

use super::hash::BlockHash;
use crate::id::AdapterId;

/// The bytes of a block hash.
pub type BlockHashBytes = [u8; BlockHash::LEN];

/// A change of the set of blocks that requests can reuse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheEvent {
    /// These blocks can be reused from now on.
    Stored(StoredBlocks),
    /// The blocks with these hashes cannot be reused any more.
    Removed(Vec<BlockHashBytes>),
    /// No block can be reused any more.
    Cleared,
}

/// Blocks of one sequence that follow each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredBlocks {
    /// The hash of the block before the first one; `None` if the first one begins the sequence.
    pub parent: Option<BlockHashBytes>,
    /// The adapter that the blocks were computed with.
    pub adapter: Option<AdapterId>,
    /// The hashes of the blocks.
    pub hashes: Vec<BlockHashBytes>,
    /// The tokens of all blocks, `block_size` for each.
    pub tokens: Vec<u32>,
    /// Number of tokens in a block.
    pub block_size: usize,
}

/// The events that have not been taken yet, oldest first.
#[derive(Debug, Default)]
pub(super) struct EventLog {
    events: Vec<CacheEvent>,
}

impl EventLog {
    /// Notes that a block with these tokens can be reused. `parent` is the block before it.
    pub(super) fn stored(
        &mut self,
        parent: Option<BlockHash>,
        hash: BlockHash,
        adapter: Option<AdapterId>,
        tokens: &[u32],
    ) {
        let parent = parent.map(|parent| parent.0);
        // The hash covers the adapter, so blocks that follow each other have the same one.
        if let Some(CacheEvent::Stored(last)) = self.events.last_mut()
            && last.block_size == tokens.len()
            && last.hashes.last().copied() == parent
        {
            last.hashes.push(hash.0);
            last.tokens.extend_from_slice(tokens);
            return;
        }
        let (hashes, block_size) = (vec![hash.0], tokens.len());
        let blocks = StoredBlocks { parent, adapter, hashes, tokens: tokens.to_vec(), block_size };
        self.events.push(CacheEvent::Stored(blocks));
    }

    /// Notes that a block cannot be reused any more.
    pub(super) fn removed(&mut self, hash: BlockHash) {
        match self.events.last_mut() {
            Some(CacheEvent::Removed(hashes)) => hashes.push(hash.0),
            _ => self.events.push(CacheEvent::Removed(vec![hash.0])),
        }
    }

    /// Notes that no block can be reused any more. Nobody needs the events before that.
    pub(super) fn cleared(&mut self) {
        self.events = vec![CacheEvent::Cleared];
    }

    /// The events since the last call.
    pub(super) fn take(&mut self) -> Vec<CacheEvent> {
        std::mem::take(&mut self.events)
    }
}
