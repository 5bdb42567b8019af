//! The properties that every group of shards must have in common with the first one.

use millrace_proto::Ready;

use super::kept_adapters::{KeptAdapter, LostAdapter};

/// The announcement of the first group. Later groups are started with it, so that all running
/// sequences can continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GroupBaseline {
    /// Number of tokens that the KV cache holds.
    pub(super) pool_tokens: u64,
    /// Maximum number of tokens of a sequence.
    pub(super) sequence_tokens: u32,
    /// The model's files as each rank has found them: names, sizes and times. Only shards read this
    /// text.
    pub(super) checkpoints: Vec<String>,
    /// The adapters that are loaded at this time, whatever the first group had.
    pub(super) adapters: Vec<KeptAdapter>,
}

impl GroupBaseline {
    /// The baseline that the first group's announcement sets.
    pub(super) fn new(announcement: &GroupAnnouncement) -> Self {
        let GroupAnnouncement { ready, checkpoints, adapters, .. } = announcement;
        GroupBaseline {
            pool_tokens: u64::from(ready.num_blocks) * u64::from(ready.block_size),
            sequence_tokens: ready.max_sequence_tokens,
            checkpoints: checkpoints.clone(),
            adapters: adapters.clone(),
        }
    }

    /// The first rank that has loaded other files than in the first group. Ranks of this machine
    /// also compare the files before they load them.
    pub(super) fn rank_with_other_files(&self, other: &GroupAnnouncement) -> Option<usize> {
        self.checkpoints.iter().zip(&other.checkpoints).position(|(first, now)| first != now)
    }
}

/// The combined announcement of all ranks of a group.
#[derive(Debug, Clone)]
pub(super) struct GroupAnnouncement {
    /// The announcement of rank 0, with the smallest KV cache and the shortest sequences of all
    /// ranks.
    pub(super) ready: Ready,
    /// The files of each rank; see [`GroupBaseline::checkpoints`].
    pub(super) checkpoints: Vec<String>,
    /// The adapters that the group has loaded.
    pub(super) adapters: Vec<KeptAdapter>,
    /// The adapters that it should have loaded and could not.
    pub(super) lost_adapters: Vec<LostAdapter>,
}
