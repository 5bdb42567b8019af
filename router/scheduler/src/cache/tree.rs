//! The prefix tree of computed blocks.
//!
//! A node stands for one full block. Its key is the chained hash of the block, which identifies all
//! tokens from the beginning of the sequence, the adapter and the salt, so one index finds a node
//! at any depth.
//!
//! A sequence that uses a node uses all nodes above it. A node without users therefore has only
//! nodes without users below it, and a sequence releases its path from the end. In the list of
//! unused nodes every node stands after its descendants, and the oldest unused node is always a
//! leaf. This makes eviction strictly least recently used, in constant time.
//!
//! A node is *findable* if the index has it. [`PrefixTree::detach`] makes nodes impossible to find
//! whose contents may be wrong: their users keep them, and a node that is computed again gets an
//! entry of its own.
//!
//! The ancestors of a findable node are findable, so the findable blocks of a sequence are always
//! its first ones.
//!
//! The tree has up to a node for each block of the KV cache, which may be millions. A node takes 32
//! bytes, its links in the list 8, and the index 5 to 10: it is one flat table of node ids, which
//! compares the hashes in the nodes.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use super::hash::BlockHash;
use super::ids::{BlockId, NodeId};
use super::lru::LruList;

/// Where the keys and values of a block are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockPlace {
    /// In this block of the shards' KV cache.
    Device(BlockId),
}

#[derive(Debug)]
pub(super) struct PrefixTree {
    /// The arena. It never holds more nodes than the KV cache has blocks.
    nodes: Vec<Node>,
    /// Free places of the arena.
    vacant: Vec<NodeId>,
    /// The findable nodes, by their block hashes.
    index: HashTable<NodeId>,
    /// Spreads the block hashes over the index with a random key. Clients could find tokens whose
    /// block hashes fall into the same part of the index if they knew how it is divided.
    spread: RandomState,
    /// The nodes without users.
    unused: LruList,
}

#[derive(Debug)]
struct Node {
    hash: BlockHash,
    place: BlockPlace,
    /// The node of the block before this one; `None` for the first block of a sequence.
    parent: Option<NodeId>,
    /// Number of running sequences whose path contains this node.
    users: u32,
    /// Whether the event log tells of the end of this node.
    announced: bool,
}

impl PrefixTree {
    /// An empty tree for a KV cache of `num_blocks` blocks.
    pub(super) fn new(num_blocks: usize) -> Self {
        PrefixTree {
            // Memory that is reserved and not used yet costs nothing, and growing would copy the
            // whole tree while requests wait.
            nodes: Vec::with_capacity(num_blocks),
            vacant: Vec::new(),
            index: HashTable::with_capacity(num_blocks),
            spread: RandomState::new(),
            unused: LruList::new(num_blocks),
        }
    }

    /// Number of nodes without users. All of them can be evicted.
    pub(super) fn unused(&self) -> usize {
        self.unused.len()
    }

    pub(super) fn block(&self, node: NodeId) -> BlockId {
        let BlockPlace::Device(block) = self.nodes[node.index()].place;
        block
    }

    pub(super) fn hash(&self, node: NodeId) -> BlockHash {
        self.nodes[node.index()].hash
    }

    pub(super) fn parent(&self, node: NodeId) -> Option<NodeId> {
        self.nodes[node.index()].parent
    }

    pub(super) fn users(&self, node: NodeId) -> usize {
        self.nodes[node.index()].users as usize
    }

    /// The nodes from the first block of a sequence to `last`.
    pub(super) fn path(&self, last: Option<NodeId>) -> Vec<NodeId> {
        let parent = |node: &NodeId| self.nodes[node.index()].parent;
        let mut path: Vec<NodeId> = std::iter::successors(last, parent).collect();
        path.reverse();
        path
    }

    /// Finds the node with this hash.
    pub(super) fn find(&self, hash: BlockHash) -> Option<NodeId> {
        self.index.find(self.spread.hash_one(hash), |id| self.nodes[id.index()].hash == hash).copied()
    }

    /// Finds the node with this hash below `parent`. It is not found if `parent` itself is not
    /// findable.
    pub(super) fn child(&self, parent: Option<NodeId>, hash: BlockHash) -> Option<NodeId> {
        self.find(hash).filter(|&node| self.nodes[node.index()].parent == parent)
    }

    /// Whether [`find`](Self::find) finds this node.
    pub(super) fn is_findable(&self, node: NodeId) -> bool {
        self.find(self.nodes[node.index()].hash) == Some(node)
    }

    /// Adds a node with one user below `parent`, which has a user. The node is findable if its
    /// parent is.
    pub(super) fn insert(&mut self, parent: Option<NodeId>, hash: BlockHash, block: BlockId) -> NodeId {
        let node = Node { hash, place: BlockPlace::Device(block), parent, users: 1, announced: false };
        let id = match self.vacant.pop() {
            Some(id) => {
                self.nodes[id.index()] = node;
                id
            }
            None => {
                self.nodes.push(node);
                NodeId::new(self.nodes.len() - 1)
            }
        };
        if parent.is_none_or(|parent| self.is_findable(parent)) {
            let PrefixTree { index, nodes, spread, .. } = self;
            index.insert_unique(spread.hash_one(hash), id, |id| spread.hash_one(nodes[id.index()].hash));
        }
        id
    }

    /// Adds a user. A sequence acquires the nodes of its path from the first to the last.
    pub(super) fn acquire(&mut self, node: NodeId) {
        let users = &mut self.nodes[node.index()].users;
        *users += 1;
        if *users == 1 {
            self.unused.remove(node);
        }
    }

    /// Removes a user. A sequence releases the nodes of its path from the last to the first.
    pub(super) fn release(&mut self, node: NodeId) {
        let users = &mut self.nodes[node.index()].users;
        *users -= 1;
        if *users == 0 {
            self.unused.push(node);
        }
    }

    /// Gives a node another block with the same contents, and returns the old block.
    pub(super) fn exchange(&mut self, node: NodeId, block: BlockId) -> BlockId {
        let BlockPlace::Device(old) =
            std::mem::replace(&mut self.nodes[node.index()].place, BlockPlace::Device(block));
        old
    }

    /// Asks for the hash of this node when it stops being findable.
    pub(super) fn announce(&mut self, node: NodeId) {
        self.nodes[node.index()].announced = true;
    }

    /// The hash of a node that was announced.
    pub(super) fn announced_hash(&self, node: NodeId) -> Option<BlockHash> {
        let node = &self.nodes[node.index()];
        node.announced.then_some(node.hash)
    }

    /// Makes a findable node and all nodes below it impossible to find, and returns them. Takes
    /// time linear in the number of nodes.
    pub(super) fn detach(&mut self, node: NodeId) -> Vec<NodeId> {
        // Whether each node that has been visited is below `node`.
        let mut below = HashMap::from([(node, true)]);
        let findable: Vec<NodeId> = self.index.iter().copied().collect();
        for start in findable {
            let mut path = Vec::new();
            let mut next = Some(start);
            let is_below = loop {
                let Some(id) = next else { break false };
                if let Some(&known) = below.get(&id) {
                    break known;
                }
                path.push(id);
                next = self.nodes[id.index()].parent;
            };
            below.extend(path.into_iter().map(|id| (id, is_below)));
        }
        let mut removed = Vec::new();
        self.index.retain(|id| {
            removed.extend(below[id].then_some(*id));
            !below[id]
        });
        removed
    }

    /// Removes the node that has been without users for longest. Returns it with its block, and its
    /// hash if it was findable and announced.
    pub(super) fn evict(&mut self) -> Option<(NodeId, BlockId, Option<BlockHash>)> {
        let id = self.unused.oldest()?;
        self.unused.remove(id);
        self.vacant.push(id);
        let Node { hash, announced, .. } = self.nodes[id.index()];
        let entry = self.index.find_entry(self.spread.hash_one(hash), |&found| found == id);
        let removed = entry.is_ok().then_some(hash).filter(|_| announced);
        if let Ok(entry) = entry {
            entry.remove();
        }
        Some((id, self.block(id), removed))
    }

    /// The hashes of the findable nodes that were announced.
    #[cfg(test)]
    pub(super) fn announced(&self) -> impl Iterator<Item = BlockHash> {
        let nodes = self.index.iter().map(|id| &self.nodes[id.index()]);
        nodes.filter(|node| node.announced).map(|node| node.hash)
    }

    /// Checks that parents, index, users and the list of unused nodes fit together, and returns all
    /// nodes.
    pub(super) fn check_integrity(&self) -> Result<Vec<NodeId>, String> {
        let vacant: Vec<bool> = {
            let mut vacant = vec![false; self.nodes.len()];
            self.vacant.iter().for_each(|id| vacant[id.index()] = true);
            vacant
        };
        let unused: Vec<NodeId> = self.unused.iter().collect();
        let age: HashMap<NodeId, usize> = unused.iter().enumerate().map(|(age, &node)| (node, age)).collect();
        if unused.len() != self.unused.len() || age.len() != unused.len() {
            return Err(format!("the list of unused nodes is broken: {unused:?}"));
        }
        let nodes: Vec<NodeId> =
            (0..self.nodes.len()).map(NodeId::new).filter(|id| !vacant[id.index()]).collect();
        for &id in &nodes {
            let node = &self.nodes[id.index()];
            if (node.users == 0) != age.contains_key(&id) {
                return Err(format!("{id:?} is among the unused nodes: {}", age.contains_key(&id)));
            }
            let Some(parent) = node.parent else { continue };
            if vacant[parent.index()] {
                return Err(format!("the parent of {id:?} has been evicted"));
            }
            if self.is_findable(id) && !self.is_findable(parent) {
                return Err(format!("{id:?} is findable and its parent is not"));
            }
            if self.nodes[parent.index()].users < node.users {
                return Err(format!("{id:?} has more users than its parent"));
            }
            if age.get(&parent).is_some_and(|parent| *parent < age[&id]) {
                return Err(format!("{id:?} would be evicted after its parent"));
            }
        }
        if let Some(id) = self.index.iter().find(|id| vacant[id.index()]) {
            return Err(format!("the index has the evicted node {id:?}"));
        }
        if let Some(id) = self.index.iter().find(|&&id| !self.is_findable(id)) {
            return Err(format!("the index has {id:?} beside another node with its hash"));
        }
        Ok(nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::BlockHashes;
    use crate::cache::pool::BlockPool;

    /// Bytes that a tree and its pool have allocated.
    fn allocated(tree: &PrefixTree, pool: &BlockPool) -> usize {
        tree.nodes.capacity() * size_of::<Node>()
            + tree.vacant.capacity() * size_of::<NodeId>()
            + tree.index.allocation_size()
            + tree.unused.allocated()
            + pool.allocated()
    }

    #[test]
    fn a_million_blocks_take_less_than_100_megabytes() {
        const BLOCKS: usize = 1 << 20;
        let (mut tree, mut pool) = (PrefixTree::new(BLOCKS), BlockPool::new(BLOCKS));
        // A hundred prompts whose blocks hold one token.
        for prompt in 0..BLOCKS.div_ceil(10_000) {
            let tokens: Vec<u32> = (0..10_000).map(|token| token + prompt as u32).collect();
            let mut path = Vec::new();
            for &hash in BlockHashes::of_prompt(&tokens, None, None, 1).as_slice() {
                let Some(block) = pool.take() else { break };
                path.push(tree.insert(path.last().copied(), hash, block));
            }
            path.into_iter().rev().for_each(|node| tree.release(node));
        }
        assert_eq!((tree.unused(), tree.index.len(), pool.free().len()), (BLOCKS, BLOCKS, 0));
        let full = allocated(&tree, &pool);
        // Evicted nodes are kept for reuse.
        (0..BLOCKS).for_each(|_| pool.give_back(tree.evict().unwrap().1));
        assert_eq!((tree.unused(), tree.index.len()), (0, 0));
        let empty = allocated(&tree, &pool);
        assert!(full < 64_000_000 && empty < 64_000_000, "{full} and {empty} bytes");
        assert_eq!((size_of::<Node>(), size_of::<Option<NodeId>>()), (32, 4));
    }
}
