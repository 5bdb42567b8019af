//! The checkpoints of recurrent states, by the prefix after which they were saved.
//!
//! A checkpoint is free, reserved for a row in flight, or saved: it then belongs to a node of the
//! prefix tree and leaves with it. There are few checkpoints, since each is as large as the states
//! of a running sequence, so all operations look at each of them.

use super::hash::BlockHash;
use super::ids::{CheckpointId, NodeId};

#[derive(Debug)]
pub(super) struct Checkpoints {
    count: usize,
    free: Vec<CheckpointId>,
    /// Least recently used first.
    saved: Vec<SavedState>,
}

/// A checkpoint with which a sequence can begin.
#[derive(Debug, Clone, Copy)]
pub(super) struct SavedState {
    pub(super) id: CheckpointId,
    /// The node of the last block before the checkpoint.
    pub(super) node: NodeId,
    /// The hash of that block.
    hash: BlockHash,
    /// Number of blocks before the checkpoint.
    pub(super) blocks: usize,
}

impl Checkpoints {
    pub(super) fn new(count: usize) -> Self {
        // Reversed, so that checkpoints are handed out in ascending order.
        Checkpoints { count, free: (0..count as u32).rev().map(CheckpointId).collect(), saved: Vec::new() }
    }

    /// The number of checkpoints, free or not.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn saved(&self) -> &[SavedState] {
        &self.saved
    }

    /// The checkpoint after most of these blocks.
    pub(super) fn longest(&self, hashes: &[BlockHash]) -> Option<SavedState> {
        let fits = |state: &&SavedState| hashes.get(state.blocks - 1) == Some(&state.hash);
        self.saved.iter().filter(fits).max_by_key(|state| state.blocks).copied()
    }

    /// Takes a checkpoint to be written: a free one, or the saved one that was not used for
    /// longest. There is none if all are reserved.
    pub(super) fn reserve(&mut self) -> Option<CheckpointId> {
        let oldest = |saved: &mut Vec<SavedState>| (!saved.is_empty()).then(|| saved.remove(0).id);
        self.free.pop().or_else(|| oldest(&mut self.saved))
    }

    /// Takes back a reserved checkpoint that was not written, or whose contents nobody can find.
    pub(super) fn give_back(&mut self, id: CheckpointId) {
        self.free.push(id);
    }

    /// Notes that a reserved checkpoint has the states after the first `blocks` blocks of a
    /// sequence. The last of them has the hash `hash` and is at `node`.
    pub(super) fn save(&mut self, id: CheckpointId, node: NodeId, hash: BlockHash, blocks: usize) {
        match self.saved.iter().any(|state| state.node == node) {
            true => self.give_back(id),
            false => self.saved.push(SavedState { id, node, hash, blocks }),
        }
        self.touch(node);
    }

    /// Makes the checkpoint at `node` the most recently used one.
    pub(super) fn touch(&mut self, node: NodeId) {
        if let Some(index) = self.saved.iter().position(|state| state.node == node) {
            self.saved[index..].rotate_left(1);
        }
    }

    /// Frees the checkpoints at the nodes that `is_gone` names.
    pub(super) fn remove(&mut self, is_gone: impl Fn(NodeId) -> bool) {
        let Checkpoints { free, saved, .. } = self;
        saved.retain(|state| {
            let gone = is_gone(state.node);
            free.extend(gone.then_some(state.id));
            !gone
        });
    }

    /// The free and saved checkpoints.
    pub(super) fn unreserved(&self) -> impl Iterator<Item = CheckpointId> {
        self.free.iter().copied().chain(self.saved.iter().map(|state| state.id))
    }
}
