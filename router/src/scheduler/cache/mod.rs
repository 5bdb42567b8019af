//! Who holds which block of the shards' KV pool.
//!
//! Every block is free, private to one running sequence, or in the tree of computed prefixes. Blocks of the tree that
//! no running sequence uses count as free: they are evicted when they are needed.
//!
//! A block enters the tree when the step that computed the last of its positions has been answered, so nothing is
//! ever reused that a failed, cancelled or lost step was to compute. If it is there already, because two sequences
//! computed the same prefix at once, the later one joins the path in the tree and keeps its own copy to itself.
//!
//! A block may be handed on while a step that uses it is still in flight: shards run steps strictly in the order in
//! which they were planned, so the former owner's last step has ended before the new owner's first one writes.

mod integrity;
mod lru;
mod pool;
mod tree;

use self::pool::BlockPool;
use self::tree::{NodeId, Parent, PrefixTree};

pub(super) use self::pool::BlockId;
pub(super) use self::tree::Salt;

/// The KV pool and the prefixes computed in it.
#[derive(Debug)]
pub(super) struct KvCache {
    block_size: usize,
    num_blocks: usize,
    /// Whether computed blocks are kept for reuse at all.
    reuse: bool,
    pool: BlockPool,
    tree: PrefixTree,
    evictions: u64,
}

/// What a running sequence holds.
#[derive(Debug, Default)]
pub(super) struct BlockTable {
    /// Block `i` holds positions from `i * block_size`.
    pub(super) blocks: Vec<BlockId>,
    /// The nodes of the first blocks: those known to be computed. Where a node has another block than the table, the
    /// latter is private: a copy with the same content.
    path: Vec<NodeId>,
}

/// Computed blocks that a sequence could start with.
#[derive(Debug, Default)]
pub(super) struct Prefix(Vec<NodeId>);

impl KvCache {
    pub(super) fn new(num_blocks: usize, block_size: usize, reuse: bool) -> Self {
        KvCache {
            block_size,
            num_blocks,
            reuse,
            pool: BlockPool::new(num_blocks),
            tree: PrefixTree::new(num_blocks),
            evictions: 0,
        }
    }

    /// Begins anew with other, empty blocks.
    pub(super) fn renew(&mut self, num_blocks: usize, block_size: usize) {
        let evictions = self.evictions;
        *self = KvCache { evictions, ..KvCache::new(num_blocks, block_size, self.reuse) };
    }

    /// Blocks that could be handed out now. Only [`allocate`](Self::allocate) and [`cover`](Self::cover) make it less.
    pub(super) fn available(&self) -> usize {
        self.pool.free().len() + self.tree.unused()
    }

    /// Blocks that running sequences hold.
    pub(super) fn used(&self) -> usize {
        self.num_blocks - self.available()
    }

    /// Blocks that only the cache holds.
    pub(super) fn cached(&self) -> usize {
        self.tree.unused()
    }

    /// Blocks taken from the cache because they were needed, ever.
    pub(super) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// The longest computed prefix of `tokens` that leaves something to compute: a token is sampled only after a row.
    pub(super) fn find(&self, salt: &Salt, tokens: &[u32]) -> Prefix {
        let mut path = Vec::new();
        let mut parent = Parent::Root(salt.clone());
        let all_but_last = &tokens[..tokens.len().saturating_sub(1)];
        for block in all_but_last.chunks_exact(self.block_size) {
            let Some(node) = self.tree.child(&parent, block) else { break };
            path.push(node);
            parent = Parent::Node(node);
        }
        Prefix(path)
    }

    /// Positions of a prefix.
    pub(super) fn positions(&self, prefix: &Prefix) -> usize {
        prefix.0.len() * self.block_size
    }

    /// How many [available](Self::available) blocks a table takes that starts with `prefix` and covers `positions`.
    pub(super) fn price(&self, prefix: &Prefix, positions: usize) -> usize {
        let unused = prefix.0.iter().filter(|&&node| self.tree.users(node) == 0).count();
        positions.div_ceil(self.block_size) - prefix.0.len() + unused
    }

    /// A table that starts with `prefix` and covers `positions`; nothing is taken on shortage.
    pub(super) fn allocate(&mut self, prefix: Prefix, positions: usize) -> Option<BlockTable> {
        if self.price(&prefix, positions) > self.available() {
            return None;
        }
        let mut table = BlockTable::default();
        for node in prefix.0 {
            self.tree.acquire(node);
            table.blocks.push(self.tree.block(node));
            table.path.push(node);
        }
        self.cover(&mut table, positions).then_some(table)
    }

    /// Lengthens `table` until it covers `positions`. On shortage nothing is taken and the answer is false.
    #[must_use]
    pub(super) fn cover(&mut self, table: &mut BlockTable, positions: usize) -> bool {
        let missing = positions.div_ceil(self.block_size).saturating_sub(table.blocks.len());
        if missing > self.available() {
            return false;
        }
        for _ in 0..missing {
            // One of the two has a block: there are as many available as are missing.
            table.blocks.extend(self.pool.take().or_else(|| self.evict()));
        }
        true
    }

    fn evict(&mut self) -> Option<BlockId> {
        let block = self.tree.evict()?;
        self.evictions += 1;
        Some(block)
    }

    /// Puts the blocks of `table` into the tree that `computed` positions fill; all of them have been answered.
    /// `tokens` are the sequence's, as many as computed or more.
    pub(super) fn publish(&mut self, table: &mut BlockTable, salt: &Salt, tokens: &[u32], computed: usize) {
        if !self.reuse {
            return;
        }
        for index in table.path.len()..computed / self.block_size {
            let parent =
                table.path.last().map_or_else(|| Parent::Root(salt.clone()), |&node| Parent::Node(node));
            let tokens = &tokens[index * self.block_size..][..self.block_size];
            let node = match self.tree.child(&parent, tokens) {
                Some(node) => {
                    self.tree.acquire(node);
                    self.drop_spare(node, table.blocks[index]);
                    node
                }
                None => self.tree.insert(parent, tokens, table.blocks[index]),
            };
            table.path.push(node);
        }
    }

    /// Makes the blocks that were computed for `tokens`, and all that were computed after the first of them, impossible to find: they may
    /// hold wrong values. Who uses them keeps them; nobody new gets them.
    pub(super) fn forget(&mut self, salt: &Salt, tokens: &[u32]) {
        let Some(first) = tokens.get(..self.block_size) else { return };
        if let Some(node) = self.tree.child(&Parent::Root(salt.clone()), first) {
            self.tree.detach(node);
        }
    }

    /// Frees the tree's copies of blocks that only this sequence uses and has an own copy of. Answers whether there
    /// were any.
    pub(super) fn drop_spares(&mut self, table: &BlockTable) -> bool {
        let before = self.pool.free().len();
        for (&node, &block) in table.path.iter().zip(&table.blocks) {
            self.drop_spare(node, block);
        }
        self.pool.free().len() > before
    }

    /// Puts `copy`, which belongs to a user of `node`, in the place of a block that has no other user.
    fn drop_spare(&mut self, node: NodeId, copy: BlockId) {
        if self.tree.users(node) == 1 && self.tree.block(node) != copy {
            let spare = self.tree.exchange(node, copy);
            self.pool.give_back(spare);
        }
    }

    /// Takes a table back. What of it is in the tree stays there until it is evicted.
    pub(super) fn release(&mut self, table: BlockTable) {
        // From its end, as the tree wants it.
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
