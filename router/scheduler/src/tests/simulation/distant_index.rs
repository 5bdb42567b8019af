//! An index of the blocks of a server as a router in front of it has it: it knows the events only.

use std::collections::{HashMap, HashSet};

use crate::{AdapterId, BlockHashBytes, BlockHashes, CacheEvent, Scheduler, StoredBlocks};

/// The blocks that the server can reuse according to its events.
#[derive(Default)]
pub(super) struct DistantIndex {
    /// The adapter, and all tokens from the beginning of the sequence to the end of the block.
    blocks: HashMap<BlockHashBytes, (Option<AdapterId>, Vec<u32>)>,
    /// Number of blocks that have been stored.
    pub(super) stored: u64,
}

impl DistantIndex {
    /// Applies the new events of the scheduler, and checks that the index has the blocks that the
    /// scheduler can find.
    pub(super) fn follow(&mut self, scheduler: &mut Scheduler) {
        for event in scheduler.take_cache_events() {
            match event {
                CacheEvent::Stored(blocks) => self.store(blocks),
                CacheEvent::Removed(hashes) => {
                    for hash in hashes {
                        assert!(self.blocks.remove(&hash).is_some(), "an unknown block is removed");
                    }
                }
                CacheEvent::Cleared => self.blocks.clear(),
            }
        }
        let known: HashSet<BlockHashBytes> = self.blocks.keys().copied().collect();
        assert_eq!(known, scheduler.cache.announced());
    }

    fn store(&mut self, blocks: StoredBlocks) {
        let StoredBlocks { mut parent, adapter, hashes, tokens, block_size } = blocks;
        assert_eq!(tokens.len(), hashes.len() * block_size);
        for (&hash, tokens) in hashes.iter().zip(tokens.chunks(block_size)) {
            let before = parent.map(|parent| self.blocks[&parent].clone());
            let (beginning, mut sequence) = before.unwrap_or((adapter, Vec::new()));
            assert_eq!(beginning, adapter, "a block follows another adapter's block");
            sequence.extend_from_slice(tokens);
            let expected = BlockHashes::of_prompt(&sequence, adapter, None, block_size);
            assert_eq!(expected.as_slice().last().map(|last| last.bytes()), Some(hash));
            assert!(self.blocks.insert(hash, (adapter, sequence)).is_none(), "a block is stored twice");
            self.stored += 1;
            parent = Some(hash);
        }
    }
}
