//! The invariants of blocks and tree, checked whole.

use std::collections::{HashMap, HashSet};

use super::tree::{NodeId, Parent, Salt};
use super::{BlockId, BlockTable, KvCache};

impl KvCache {
    /// Checks that every block is held exactly once, and the tree whole, against the tables of all running sequences
    /// with their salts and tokens.
    pub(in crate::scheduler) fn check_integrity(
        &self,
        users: &[(&BlockTable, &Salt, &[u32])],
    ) -> Result<(), String> {
        let nodes = self.tree.check_integrity()?;
        if !self.reuse && !nodes.is_empty() {
            return Err(format!("blocks are cached although the cache is off: {nodes:?}"));
        }
        let mut counts: HashMap<NodeId, usize> = nodes.iter().map(|&node| (node, 0)).collect();
        let mut held: Vec<BlockId> = self.pool.free().to_vec();
        held.extend(nodes.iter().map(|&node| self.tree.block(node)));
        for (table, salt, tokens) in users {
            let mut parent = Parent::Root((*salt).clone());
            for (index, &node) in table.path.iter().enumerate() {
                let block_tokens = tokens.get(index * self.block_size..(index + 1) * self.block_size);
                let is_reachable = self.tree.is_reachable(node);
                if is_reachable
                    && block_tokens.and_then(|tokens| self.tree.child(&parent, tokens)) != Some(node)
                {
                    return Err(format!("node {index} of {table:?} is not what its tokens lead to"));
                }
                *counts.entry(node).or_default() += 1;
                parent = Parent::Node(node);
            }
            let private = |(index, block): &(usize, &BlockId)| {
                table.path.get(*index).is_none_or(|&node| self.tree.block(node) != **block)
            };
            held.extend(table.blocks.iter().enumerate().filter(private).map(|(_, block)| *block));
        }
        if let Some((node, count)) = counts.iter().find(|(node, count)| self.tree.users(**node) != **count) {
            return Err(format!("{node:?} has {count} users and counts {}", self.tree.users(*node)));
        }
        let distinct: HashSet<BlockId> = held.iter().copied().collect();
        if held.len() != self.num_blocks || distinct.len() != self.num_blocks {
            return Err(format!("free, private and cached blocks are not all blocks once: {held:?}"));
        }
        if distinct.iter().any(|block| block.0 as usize >= self.num_blocks) {
            return Err(format!("a block that does not exist: {held:?}"));
        }
        Ok(())
    }
}
