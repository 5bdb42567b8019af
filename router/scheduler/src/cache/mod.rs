//! The blocks of the shards' KV cache, and the prefix cache in them.
//!
//! Every block is free, private to one running sequence, or in the prefix tree. Blocks of the tree
//! that no running sequence uses count as available: they are evicted when a sequence needs blocks.
//!
//! A block enters the tree when the step that computed its last position has been answered, so a
//! block that a failed, cancelled or lost step was to compute is never reused. If two sequences
//! compute the same prefix at the same time all the same, the later one joins the path in the tree
//! and keeps its own copy of the blocks.
//!
//! A block may be given to another sequence while a step that uses it is still in flight. The
//! shards run steps in the order in which they were planned, so the last step of the former owner
//! ends before the first step of the new owner writes.
//!
//! If a model has recurrent layers, a sequence can begin with computed blocks only where a
//! checkpoint of its states was saved. Such a checkpoint belongs to the node of the last block
//! before it.
//!
//! With a disk cache, blocks of the tree are also written to slots of a file ([`disk`]), from which
//! they are read when they have been evicted ([`disk_copies`]).

mod checkpoints;
mod disk;
mod disk_copies;
mod events;
mod hash;
mod ids;
mod integrity;
mod lru;
mod pool;
mod tree;

use std::collections::HashMap;

use self::checkpoints::Checkpoints;
use self::disk::DiskTier;
use self::events::EventLog;
use self::hash::bisect;
use self::pool::BlockPool;
use self::tree::PrefixTree;

pub(super) use self::disk_copies::{DiskReadInFlight, DiskRestore};
pub use self::events::{BlockHashBytes, CacheEvent, StoredBlocks};
pub use self::hash::BlockHashes;
pub(super) use self::hash::{BlockHash, common_blocks};
pub(super) use self::ids::{BlockId, CheckpointId, NodeId};

/// The KV cache of the shards and the prefixes computed in it.
#[derive(Debug)]
pub(super) struct KvCache {
    block_size: usize,
    num_blocks: usize,
    /// Whether computed blocks are kept for reuse.
    reuse: bool,
    pool: BlockPool,
    tree: PrefixTree,
    /// The checkpoints of recurrent states, if sequences have such states.
    checkpoints: Option<Checkpoints>,
    evictions: u64,
    /// The changes that have not been taken yet, if anybody wants to know of them.
    events: Option<EventLog>,
    /// The blocks on disk, if there is a disk cache.
    disk: Option<DiskTier>,
}

/// The blocks of a running sequence.
#[derive(Debug, Default)]
pub(super) struct BlockTable {
    /// Block `i` holds the positions from `i * block_size`.
    pub(super) blocks: Vec<BlockId>,
    /// The tree nodes of the first blocks, which are known to be computed. If a node has another
    /// block than the table, the block in the table is a private copy with the same contents.
    path: Vec<NodeId>,
}

impl BlockTable {
    /// Number of blocks at the beginning that are in the tree.
    pub(super) fn published(&self) -> usize {
        self.path.len()
    }
}

/// Computed blocks with which a sequence can start. It is valid until the cache changes.
#[derive(Debug, Default)]
pub(super) struct Prefix {
    /// Number of blocks.
    pub(super) blocks: usize,
    /// Number of these blocks that no running sequence uses.
    unused: usize,
    /// The node of the last block.
    last: Option<NodeId>,
    /// Number of computed blocks of the sequence. It is more than `blocks` if its recurrent states
    /// were not saved behind the last of them.
    pub(super) computed_blocks: usize,
    /// The recurrent states behind the last block, if sequences have such states.
    pub(super) checkpoint: Option<CheckpointId>,
}

impl KvCache {
    pub(super) fn new(num_blocks: usize, block_size: usize, reuse: bool) -> Self {
        KvCache {
            block_size,
            num_blocks,
            reuse,
            pool: BlockPool::new(num_blocks),
            tree: PrefixTree::new(num_blocks),
            checkpoints: None,
            evictions: 0,
            events: None,
            disk: None,
        }
    }

    /// Keeps a log of the changes from now on.
    pub(super) fn log_events(&mut self) {
        self.events = Some(EventLog::default());
    }

    /// The changes since the last call, oldest first. Without [`log_events`](Self::log_events)
    /// there are none.
    pub(super) fn take_events(&mut self) -> Vec<CacheEvent> {
        self.events.as_mut().map(EventLog::take).unwrap_or_default()
    }

    /// Uses so many empty checkpoints from now on, because sequences have recurrent states; none of
    /// them if `None`.
    pub(super) fn set_checkpoints(&mut self, count: Option<usize>) {
        self.checkpoints = count.map(Checkpoints::new);
    }

    /// Whether sequences can begin only where their recurrent states were saved.
    pub(super) fn has_checkpoints(&self) -> bool {
        self.reuse && self.checkpoints.is_some()
    }

    /// Number of checkpoints that sequences with drafts may hold: all of them if there is no prefix
    /// cache, otherwise half.
    pub(super) fn draft_checkpoints(&self) -> usize {
        let count = self.checkpoints.as_ref().map_or(0, Checkpoints::count);
        if self.reuse { count.div_ceil(2) } else { count }
    }

    /// Number of saved checkpoints.
    pub(super) fn saved_states(&self) -> usize {
        self.checkpoints.as_ref().map_or(0, |checkpoints| checkpoints.saved().len())
    }

    /// Takes a checkpoint for the states of a sequence after a row. The caller passes it to
    /// [`save`](Self::save) or to [`give_back`](Self::give_back) when the row has been answered.
    pub(super) fn reserve_checkpoint(&mut self) -> Option<CheckpointId> {
        self.checkpoints.as_mut()?.reserve()
    }

    /// Notes that a checkpoint has the states of a sequence after its first `positions` positions,
    /// which fill blocks that have been published.
    pub(super) fn save(
        &mut self,
        id: CheckpointId,
        table: &BlockTable,
        hashes: &[BlockHash],
        positions: usize,
    ) {
        let Some(last) = (positions / self.block_size).checked_sub(1) else { return self.give_back(id) };
        let node = table.path.get(last).filter(|&&node| self.tree.is_findable(node));
        match (node, hashes.get(last), &mut self.checkpoints) {
            (Some(&node), Some(&hash), Some(checkpoints)) => checkpoints.save(id, node, hash, last + 1),
            _ => self.give_back(id),
        }
    }

    /// Takes back a reserved checkpoint without useful contents.
    pub(super) fn give_back(&mut self, id: CheckpointId) {
        self.checkpoints.iter_mut().for_each(|checkpoints| checkpoints.give_back(id));
    }

    /// Replaces all blocks by other, empty blocks.
    pub(super) fn renew(&mut self, num_blocks: usize, block_size: usize) {
        let (evictions, mut events) = (self.evictions, self.events.take());
        events.as_mut().into_iter().for_each(EventLog::cleared);
        *self = KvCache { evictions, events, ..KvCache::new(num_blocks, block_size, self.reuse) };
    }

    /// The size of the blocks that sequences hash; `None` if blocks are not kept for reuse.
    pub(super) fn hashed_block_size(&self) -> Option<usize> {
        self.reuse.then_some(self.block_size)
    }

    /// Number of blocks that can be handed out now. Only [`allocate`](Self::allocate) and
    /// [`cover`](Self::cover) lower it.
    pub(super) fn available(&self) -> usize {
        self.pool.free().len() + self.tree.unused()
    }

    /// Number of blocks that running sequences hold.
    pub(super) fn used(&self) -> usize {
        self.num_blocks - self.available()
    }

    /// Number of blocks that only the prefix cache holds.
    pub(super) fn cached(&self) -> usize {
        self.tree.unused()
    }

    /// Total number of blocks that were evicted from the prefix cache.
    pub(super) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// The longest computed prefix of a sequence of `len` tokens with these block hashes. It leaves
    /// at least one token to compute, because sampling needs a row.
    ///
    /// The findable blocks of a sequence are its first ones, and so are those of them that running
    /// sequences use. A bisection finds both numbers, in time logarithmic in the length.
    pub(super) fn find(&self, hashes: &[BlockHash], len: usize) -> Prefix {
        let max_blocks = (len.saturating_sub(1) / self.block_size).min(hashes.len());
        let computed_blocks = bisect(max_blocks, |block| self.tree.find(hashes[block]).is_some());
        let longest = |checkpoints: &Checkpoints| checkpoints.longest(&hashes[..computed_blocks]);
        let (blocks, checkpoint) = match self.checkpoints.as_ref().map(longest) {
            None => (computed_blocks, None),
            Some(state) => state.map_or((0, None), |state| (state.blocks, Some(state.id))),
        };
        let users = |block: usize| self.tree.find(hashes[block]).map_or(0, |node| self.tree.users(node));
        let used = bisect(blocks, |block| users(block) > 0);
        let last = blocks.checked_sub(1).and_then(|last| self.tree.find(hashes[last]));
        Prefix { blocks, unused: blocks - used, last, computed_blocks, checkpoint }
    }

    /// Number of positions of a prefix.
    pub(super) fn positions(&self, prefix: &Prefix) -> usize {
        prefix.blocks * self.block_size
    }

    /// Number of [available](Self::available) blocks that a table takes which starts with `prefix`
    /// and covers `positions`.
    pub(super) fn blocks_needed(&self, prefix: &Prefix, positions: usize) -> usize {
        positions.div_ceil(self.block_size) - prefix.blocks + prefix.unused
    }

    /// Returns a table that starts with `prefix` and covers `positions`, or `None` and takes
    /// nothing if there are not enough blocks.
    pub(super) fn allocate(&mut self, prefix: &Prefix, positions: usize) -> Option<BlockTable> {
        if self.blocks_needed(prefix, positions) > self.available() {
            return None;
        }
        if let (Some(checkpoints), Some(last)) = (&mut self.checkpoints, prefix.last) {
            checkpoints.touch(last);
        }
        let path = self.tree.path(prefix.last);
        let mut blocks = Vec::with_capacity(positions.div_ceil(self.block_size));
        for &node in &path {
            self.tree.acquire(node);
            blocks.push(self.tree.block(node));
        }
        let mut table = BlockTable { blocks, path };
        self.cover(&mut table, positions).then_some(table)
    }

    /// Extends `table` until it covers `positions`. Returns false and takes nothing if there are
    /// not enough blocks.
    #[must_use]
    pub(super) fn cover(&mut self, table: &mut BlockTable, positions: usize) -> bool {
        let missing = positions.div_ceil(self.block_size).saturating_sub(table.blocks.len());
        if missing > self.available() {
            return false;
        }
        for _ in 0..missing {
            // One of the two has a block, because as many blocks are available as are missing.
            table.blocks.extend(self.pool.take().or_else(|| self.evict()));
        }
        true
    }

    fn evict(&mut self) -> Option<BlockId> {
        let (node, block, removed) = self.tree.evict()?;
        self.evictions += 1;
        self.checkpoints.iter_mut().for_each(|checkpoints| checkpoints.remove(|gone| gone == node));
        if let Some((events, hash)) = self.events.as_mut().zip(removed) {
            events.removed(hash);
        }
        Some(block)
    }

    /// Puts the blocks of `table` into the tree that the first `computed` positions fill. All of
    /// these positions have been answered. `hashes` and `tokens` are those of the sequence.
    pub(super) fn publish(
        &mut self,
        table: &mut BlockTable,
        block_hashes: &BlockHashes,
        tokens: &[u32],
        computed: usize,
    ) {
        if !self.reuse {
            return;
        }
        let hashes = block_hashes.as_slice();
        let full = (computed / self.block_size).min(hashes.len());
        let first = table.path.len();
        for (index, &hash) in hashes.iter().enumerate().take(full).skip(first) {
            let parent = table.path.last().copied();
            let node = match self.tree.child(parent, hash) {
                Some(node) => {
                    self.tree.acquire(node);
                    self.drop_spare(node, table.blocks[index]);
                    node
                }
                None => {
                    let node = self.tree.insert(parent, hash, table.blocks[index]);
                    self.disk.iter_mut().for_each(|disk| disk.note_published(node, hash));
                    if let Some(events) = &mut self.events
                        && !block_hashes.is_salted()
                        && self.tree.is_findable(node)
                    {
                        self.tree.announce(node);
                        let before = index.checked_sub(1).map(|before| hashes[before]);
                        let positions = index * self.block_size..(index + 1) * self.block_size;
                        events.stored(before, hash, block_hashes.adapter(), &tokens[positions]);
                    }
                    node
                }
            };
            table.path.push(node);
        }
    }

    /// Makes the block with the hash `first`, and all blocks that were computed after it,
    /// impossible to find, because their contents may be wrong. Sequences that use these blocks
    /// keep them.
    pub(super) fn forget(&mut self, first: BlockHash) {
        self.disk.iter_mut().for_each(|disk| disk.forget(first));
        if let Some(node) = self.tree.find(first) {
            let removed = self.tree.detach(node);
            let tree = &self.tree;
            self.checkpoints
                .iter_mut()
                .for_each(|checkpoints| checkpoints.remove(|node| !tree.is_findable(node)));
            if let Some(events) = &mut self.events {
                let hashes = removed.into_iter().filter_map(|node| tree.announced_hash(node));
                hashes.for_each(|hash| events.removed(hash));
            }
        }
    }

    /// Frees the tree's copies of blocks that only this sequence uses and has a private copy of.
    /// Returns whether there were any.
    pub(super) fn drop_spares(&mut self, table: &BlockTable) -> bool {
        let before = self.pool.free().len();
        for (&node, &block) in table.path.iter().zip(&table.blocks) {
            self.drop_spare(node, block);
        }
        self.pool.free().len() > before
    }

    /// Replaces the block of `node` by `copy`, which belongs to a user of `node`, if the node has
    /// no other user.
    fn drop_spare(&mut self, node: NodeId, copy: BlockId) {
        if self.tree.users(node) == 1 && self.tree.block(node) != copy {
            let spare = self.tree.exchange(node, copy);
            self.pool.give_back(spare);
        }
    }

    /// Number of blocks that become available when these tables are [released](Self::release),
    /// apart from the blocks of the prefix `kept`.
    pub(super) fn released_by<'a>(
        &self,
        tables: impl Iterator<Item = &'a BlockTable>,
        kept: &Prefix,
    ) -> usize {
        let (mut private, mut users) = (0, HashMap::<NodeId, usize>::new());
        for table in tables {
            let in_tree = table.path.iter().zip(&table.blocks);
            private += table.blocks.len()
                - in_tree.filter(|&(&node, &block)| self.tree.block(node) == block).count();
            table.path.iter().for_each(|&node| *users.entry(node).or_default() += 1);
        }
        if users.is_empty() {
            // The path of a long prefix takes a while, and most plans ask for no tables.
            return private;
        }
        self.tree.path(kept.last).iter().for_each(|node| _ = users.remove(node));
        private + users.into_iter().filter(|&(node, count)| self.tree.users(node) == count).count()
    }

    /// Takes a table back. Its blocks that are in the tree stay there until they are evicted.
    pub(super) fn release(&mut self, table: BlockTable) {
        // From the end, as the tree requires.
        for (index, block) in table.blocks.into_iter().enumerate().rev() {
            let node = table.path.get(index);
            if node.is_none_or(|&node| self.tree.block(node) != block) {
                self.pool.give_back(block);
            }
            if let Some(&node) = node {
                self.tree.release(node);
            }
        }
    }
}
