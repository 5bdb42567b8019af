//! A complete check of the invariants of blocks and prefix tree.

use std::collections::{HashMap, HashSet};

use super::hash::BlockHash;
use super::ids::{BlockId, CheckpointId, NodeId};
use super::{BlockTable, KvCache};

impl KvCache {
    /// The hashes of the blocks that the event log has reported, and that can still be found.
    #[cfg(test)]
    pub(crate) fn announced(&self) -> HashSet<super::BlockHashBytes> {
        self.tree.announced().map(BlockHash::bytes).collect()
    }

    /// Checks the prefix tree, and that every block and every checkpoint is held exactly once.
    /// `users` are the tables and block hashes of all running sequences, `reserved` the checkpoints
    /// of rows in flight.
    pub(crate) fn check_integrity(
        &self,
        users: &[(&BlockTable, &[BlockHash])],
        reserved: &[CheckpointId],
    ) -> Result<(), String> {
        let nodes = self.tree.check_integrity()?;
        self.check_checkpoints(reserved)?;
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

    /// Checks that every checkpoint is held once, and that each saved one can be found.
    fn check_checkpoints(&self, reserved: &[CheckpointId]) -> Result<(), String> {
        let Some(checkpoints) = &self.checkpoints else {
            let none = reserved.is_empty();
            return if none { Ok(()) } else { Err(format!("{reserved:?} are reserved")) };
        };
        let mut held: Vec<CheckpointId> = checkpoints.unreserved().chain(reserved.iter().copied()).collect();
        held.sort();
        if held.iter().enumerate().any(|(index, id)| id.0 as usize != index) {
            return Err(format!("not every checkpoint once: {held:?}"));
        }
        let nodes: HashSet<NodeId> = checkpoints.saved().iter().map(|state| state.node).collect();
        let lost = checkpoints.saved().iter().find(|state| {
            !self.tree.is_findable(state.node) || self.tree.path(Some(state.node)).len() != state.blocks
        });
        match lost {
            Some(state) => Err(format!("{state:?} cannot be found")),
            None if nodes.len() != checkpoints.saved().len() => Err("two checkpoints at one node".into()),
            None => Ok(()),
        }
    }
}
