//! A complete check of the invariants of blocks and prefix tree.

use std::collections::{HashMap, HashSet};

use super::hash::BlockHash;
use super::ids::{BlockId, NodeId};
use super::{BlockTable, KvCache};

impl KvCache {
    /// The hashes of the blocks that the event log has reported, and that can still be found.
    #[cfg(test)]
    pub(crate) fn announced(&self) -> HashSet<super::BlockHashBytes> {
        self.tree.announced().map(BlockHash::bytes).collect()
    }

    /// Checks the prefix tree, and that every block is held exactly once. `users` are the tables
    /// and block hashes of all running sequences.
    pub(crate) fn check_integrity(&self, users: &[(&BlockTable, &[BlockHash])]) -> Result<(), String> {
        let nodes = self.tree.check_integrity()?;
        if !self.reuse && !nodes.is_empty() {
            return Err(format!("blocks are cached although the cache is off: {nodes:?}"));
        }
        let mut counts: HashMap<NodeId, usize> = nodes.iter().map(|&node| (node, 0)).collect();
        let mut held: Vec<BlockId> = self.pool.free().to_vec();
        held.extend(nodes.iter().map(|&node| self.tree.block(node)));
        for (table, hashes) in users {
            let mut parent = None;
            for (index, &node) in table.path.iter().enumerate() {
                let found = hashes.get(index).and_then(|&hash| self.tree.child(parent, hash));
                if self.tree.is_findable(node) && found != Some(node) {
                    return Err(format!("node {index} of {table:?} does not match the hashes"));
                }
                *counts.entry(node).or_default() += 1;
                parent = Some(node);
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
