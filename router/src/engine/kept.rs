//! What every group of shards must have in common with the first one.

use millrace_proto::Ready;

/// What the first group announced. Later groups are started with it, so that all that ran before can go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kept {
    /// Tokens that the KV pool holds.
    pub(super) pool_tokens: u64,
    /// Tokens of the longest sequence.
    pub(super) sequence_tokens: u32,
    /// The files of the model as each rank has found them: names, sizes and times. A text that only shards read.
    pub(super) checkpoints: Vec<String>,
}

impl Kept {
    /// What a group has announced, and the files of its ranks.
    pub(super) fn of(Announced { ready, checkpoints }: &Announced) -> Self {
        Kept {
            pool_tokens: u64::from(ready.num_blocks) * u64::from(ready.block_size),
            sequence_tokens: ready.max_sequence_tokens,
            checkpoints: checkpoints.clone(),
        }
    }

    /// The first rank whose files differ from those of the first group. Ranks of this machine look themselves before
    /// they load anything.
    pub(super) fn differs(&self, other: &Announced) -> Option<usize> {
        self.checkpoints.iter().zip(&other.checkpoints).position(|(kept, now)| kept != now)
    }
}

/// What all ranks of a group have announced together.
#[derive(Debug, Clone)]
pub(super) struct Announced {
    /// The announcement of rank 0, with the smallest pool and the shortest sequences of all ranks.
    pub(super) ready: Ready,
    /// By rank; see [`Kept::checkpoints`].
    pub(super) checkpoints: Vec<String>,
}
