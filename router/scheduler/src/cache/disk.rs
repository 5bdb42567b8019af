//! The index of the blocks that the shards hold on disk.
//!
//! The disk cache is a number of slots, each for one block. The blocks in it form a prefix tree of
//! their own, so they are evicted like the blocks of the KV cache: least recently used first, and a
//! block never before those that follow it. A block may be in the KV cache, on disk, or both.
//!
//! A block is written soon after it has been published, not when it is evicted: one admission may
//! evict thousands of blocks, and the step that takes them would have to wait for all the writes.
//! Each block is written once, after all blocks before it.
//!
//! The index says what was asked of the shards. A shard checks the hash and a checksum of what it
//! reads, so a slot that was not written, or was damaged, is a failed read and never a wrong block.
//! A write that is still in flight can be read, because the shards run steps in order.

use std::collections::{HashMap, VecDeque};

use millrace_proto::{DiskEntry, DiskWrite};

use super::hash::{BlockHash, bisect};
use super::ids::{BlockId, NodeId};
use super::pool::BlockPool;
use super::tree::PrefixTree;

/// The blocks on disk. A [`BlockId`] is the number of a slot here.
#[derive(Debug)]
pub(super) struct DiskTier {
    slots: usize,
    tree: PrefixTree,
    free: BlockPool,
    /// Published nodes of the KV cache's tree that may not be on disk yet, oldest first. They may
    /// have been evicted since.
    unwritten: VecDeque<(NodeId, BlockHash)>,
    /// Maximum length of `unwritten`. The oldest nodes give way: they are evicted first.
    max_unwritten: usize,
    /// Slots whose blocks must not be found by a later process.
    erasures: VecDeque<BlockId>,
    /// Whether blocks are written. A full disk or a broken one ends the writes.
    writes: bool,
}

/// The nodes from the beginning of a sequence to the block that was written last. The tree requires
/// that the parent of a new node has a user.
#[derive(Default)]
struct WritePath(Vec<NodeId>);

impl DiskTier {
    /// The index of `slots` slots that hold `entries`, the oldest first, beside a KV cache of
    /// `num_blocks` blocks. Entries without the blocks before them are of no use and are left out.
    pub(super) fn new(slots: usize, entries: &[DiskEntry], num_blocks: usize) -> Self {
        let mut tier = DiskTier {
            slots,
            tree: PrefixTree::new(slots),
            free: BlockPool::new(0),
            unwritten: VecDeque::new(),
            max_unwritten: num_blocks,
            erasures: VecDeque::new(),
            writes: true,
        };
        let held = tier.restore(entries);
        // Reversed, so that slots are handed out in ascending order.
        (0..slots)
            .rev()
            .filter(|&slot| !held[slot])
            .for_each(|slot| tier.free.give_back(BlockId(slot as u32)));
        tier
    }

    /// Adds the entries of an earlier process, and returns for each slot whether it holds one.
    fn restore(&mut self, entries: &[DiskEntry]) -> Vec<bool> {
        let mut held = vec![false; self.slots];
        let mut known: HashMap<BlockHash, Entry> = HashMap::with_capacity(entries.len());
        for (age, entry) in entries.iter().enumerate() {
            if let Some((hash, entry)) = Entry::read(entry, age).filter(|(_, e)| e.slot < self.slots) {
                known.insert(hash, entry);
            }
        }
        let mut nodes: Vec<(usize, usize, NodeId)> = Vec::with_capacity(known.len());
        for (hash, depth) in in_order(&mut known) {
            let Entry { slot, parent, last_use, .. } = known[&hash];
            let before = parent.and_then(|parent| self.tree.find(parent));
            if before.is_some() == parent.is_some() && !std::mem::replace(&mut held[slot], true) {
                let node = self.tree.insert(before, hash, BlockId(slot as u32));
                nodes.push((last_use, usize::MAX - depth, node));
            }
        }
        // A node leaves the tree before the nodes above it, so it loses its user before them.
        nodes.sort_unstable_by_key(|&(last_use, height, _)| (last_use, height));
        nodes.into_iter().for_each(|(.., node)| self.tree.release(node));
        held
    }

    /// Number of slots that hold a block.
    pub(super) fn held(&self) -> usize {
        self.slots - self.free.free().len()
    }

    /// Notes that a block of the KV cache can be reused from now on.
    pub(super) fn note_published(&mut self, node: NodeId, hash: BlockHash) {
        if self.writes {
            if self.unwritten.len() >= self.max_unwritten {
                self.unwritten.pop_front();
            }
            self.unwritten.push_back((node, hash));
        }
    }

    /// Writes nothing more.
    pub(super) fn end_writes(&mut self) {
        self.writes = false;
        self.unwritten = VecDeque::new();
    }

    /// Whether there may be blocks to write, or slots to erase.
    pub(super) fn has_work(&self) -> bool {
        !self.unwritten.is_empty() || !self.erasures.is_empty()
    }

    /// Number of blocks at the beginning of a sequence with these hashes that are on disk.
    pub(super) fn find(&self, hashes: &[BlockHash]) -> usize {
        bisect(hashes.len(), |block| self.tree.find(hashes[block]).is_some())
    }

    /// Keeps the block with the hash `last` and all blocks before it on disk until they are
    /// [released](Self::release). They become the most recently used ones.
    pub(super) fn acquire(&mut self, last: BlockHash) -> Vec<NodeId> {
        let path = self.tree.path(self.tree.find(last));
        path.iter().for_each(|&node| self.tree.acquire(node));
        path
    }

    pub(super) fn release(&mut self, path: Vec<NodeId>) {
        path.into_iter().rev().for_each(|node| self.tree.release(node));
    }

    /// The slot of a block, and its hash.
    pub(super) fn slot(&self, node: NodeId) -> (u32, BlockHash) {
        (self.tree.block(node).0, self.tree.hash(node))
    }

    pub(super) fn is_findable(&self, node: NodeId) -> bool {
        self.tree.is_findable(node)
    }

    /// Notes that a block could not be read. The blocks after it are of no use either.
    pub(super) fn lose(&mut self, node: NodeId, hash: BlockHash) {
        if self.tree.find(hash) == Some(node) {
            self.tree.detach(node);
        }
    }

    /// Removes a block and all blocks after it, because their contents may be wrong.
    pub(super) fn forget(&mut self, first: BlockHash) {
        if let Some(node) = self.tree.find(first) {
            let slots = self.tree.detach(node).into_iter().map(|node| self.tree.block(node));
            self.erasures.extend(slots);
        }
    }

    /// Up to `limit` slots to be erased now.
    pub(super) fn take_erasures(&mut self, limit: usize) -> Vec<u32> {
        let count = limit.min(self.erasures.len());
        self.erasures.drain(..count).map(|slot| slot.0).collect()
    }

    /// Up to `limit` blocks of the KV cache with the tree `device` to be written now.
    pub(super) fn take_writes(&mut self, device: &PrefixTree, limit: usize) -> Vec<DiskWrite> {
        let (mut writes, mut path) = (Vec::new(), WritePath::default());
        while writes.len() < limit {
            let Some((node, hash)) = self.unwritten.pop_front() else { break };
            if device.find(hash) != Some(node) {
                continue;
            }
            let missing = self.missing(device, node);
            let Some(&first) = missing.last() else { continue };
            path.go_to(&mut self.tree, device.parent(first).map(|parent| device.hash(parent)));
            for &block in missing.iter().rev().take(limit - writes.len()) {
                // All slots may be before this one, or be read. Then the block stays out.
                let Some(slot) = self.take_slot() else { break };
                writes.push(path.write(&mut self.tree, device, block, slot));
            }
            if writes.len() == limit && self.tree.find(hash).is_none() {
                self.unwritten.push_front((node, hash));
            }
        }
        self.release(path.0);
        writes
    }

    /// The block of `node` and those before it that are not on disk, the last one first.
    fn missing(&self, device: &PrefixTree, node: NodeId) -> Vec<NodeId> {
        let is_missing = |node: &NodeId| self.tree.find(device.hash(*node)).is_none();
        std::iter::successors(Some(node), |&node| device.parent(node)).take_while(is_missing).collect()
    }

    fn take_slot(&mut self) -> Option<BlockId> {
        self.free.take().or_else(|| self.tree.evict().map(|(_, slot, _)| slot))
    }

    /// Checks the tree, and that every slot is free or in the tree. `users` are the paths that have
    /// been acquired.
    pub(super) fn check_integrity(&self, users: &[&[NodeId]]) -> Result<(), String> {
        let nodes = self.tree.check_integrity()?;
        let mut slots: Vec<BlockId> = nodes.iter().map(|&node| self.tree.block(node)).collect();
        slots.extend(self.free.free());
        slots.sort_unstable();
        if slots.len() != self.slots || slots.iter().enumerate().any(|(index, slot)| slot.0 as usize != index)
        {
            return Err(format!("free and used slots are not all slots once: {slots:?}"));
        }
        let count = |node: NodeId| users.iter().filter(|path| path.contains(&node)).count();
        match nodes.iter().find(|&&node| self.tree.users(node) != count(node)) {
            Some(node) => Err(format!("slot {node:?} has {} users", self.tree.users(*node))),
            None => Ok(()),
        }
    }
}

impl WritePath {
    /// Ends with the node that has the hash `last`, or is empty.
    fn go_to(&mut self, tree: &mut PrefixTree, last: Option<BlockHash>) {
        let last = last.and_then(|last| tree.find(last));
        if self.0.last().copied() != last {
            // Acquired before the others are released, so that common nodes are moved once.
            let path = tree.path(last);
            path.iter().for_each(|&node| tree.acquire(node));
            let before = std::mem::replace(&mut self.0, path);
            before.into_iter().rev().for_each(|node| tree.release(node));
        }
    }

    /// Appends a block of the KV cache, which is written to `slot`.
    fn write(
        &mut self,
        tree: &mut PrefixTree,
        device: &PrefixTree,
        node: NodeId,
        slot: BlockId,
    ) -> DiskWrite {
        let (parent, hash) = (self.0.last().copied(), device.hash(node));
        self.0.push(tree.insert(parent, hash, slot));
        DiskWrite {
            block: device.block(node).0,
            slot: slot.0,
            hash: hash.0.to_vec(),
            parent: parent.map_or_else(Vec::new, |parent| tree.hash(parent).0.to_vec()),
        }
    }
}

/// A slot that an earlier process has written.
struct Entry {
    slot: usize,
    parent: Option<BlockHash>,
    /// When the block, or one after it, was written: its place in the order of the writes.
    last_use: usize,
    /// Number of blocks before this one, once it is known.
    depth: Option<Depth>,
}

/// The number of blocks before a block.
#[derive(Debug, Clone, Copy)]
enum Depth {
    /// All of them are there.
    Complete(usize),
    /// One of them is missing.
    Incomplete,
}

impl Entry {
    /// Reads an entry, which is ignored if its hashes are none.
    fn read(entry: &DiskEntry, last_use: usize) -> Option<(BlockHash, Entry)> {
        let hash = |bytes: &[u8]| bytes.try_into().ok().map(BlockHash);
        let parent = match entry.parent.is_empty() {
            true => None,
            false => Some(hash(&entry.parent)?),
        };
        Some((hash(&entry.hash)?, Entry { slot: entry.slot as usize, parent, last_use, depth: None }))
    }
}

/// The entries whose earlier blocks are all there, with the number of these, parents first. Gives
/// each of them the last use of the blocks after it.
fn in_order(known: &mut HashMap<BlockHash, Entry>) -> Vec<(BlockHash, usize)> {
    let mut order = Vec::with_capacity(known.len());
    for start in known.keys().copied().collect::<Vec<_>>() {
        let mut path = Vec::new();
        let mut next = Some(start);
        let depth = loop {
            let Some(hash) = next else { break Depth::Complete(0) };
            // A damaged file may hold blocks that follow each other in a circle.
            let entry = known.get(&hash).filter(|_| path.len() <= known.len());
            let Some(entry) = entry else { break Depth::Incomplete };
            match entry.depth {
                Some(Depth::Complete(depth)) => break Depth::Complete(depth + 1),
                Some(Depth::Incomplete) => break Depth::Incomplete,
                None => path.push(hash),
            }
            next = entry.parent;
        };
        for (index, hash) in path.into_iter().rev().enumerate() {
            let depth = match depth {
                Depth::Complete(first) => Depth::Complete(first + index),
                Depth::Incomplete => Depth::Incomplete,
            };
            known.entry(hash).and_modify(|entry| entry.depth = Some(depth));
            if let Depth::Complete(depth) = depth {
                order.push((hash, depth));
            }
        }
    }
    order.sort_unstable_by_key(|&(_, depth)| depth);
    for (hash, _) in order.iter().rev() {
        let Entry { parent, last_use, .. } = known[hash];
        if let Some(parent) = parent.and_then(|parent| known.get_mut(&parent)) {
            parent.last_use = parent.last_use.max(last_use);
        }
    }
    order
}
