//! Why a group of shards was lost.

/// The loss of a group of shards, or a failed start of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GroupLoss {
    /// The explanation for the operator.
    pub(super) reason: String,
    pub(super) cause: LossCause,
}

/// The kind of a [`GroupLoss`], which decides about the next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LossCause {
    /// The shards failed. Another group may not.
    Shards,
    /// The system had no memory, processes or file descriptors to start a shard.
    Shortage,
    /// An operator wanted the shards to be restarted.
    Requested,
    /// Another group would fail in the same way.
    Lasting,
}

impl GroupLoss {
    /// The end of shards that an operator wants to be restarted.
    pub(super) fn requested() -> Self {
        GroupLoss { reason: "they were to be restarted".to_owned(), cause: LossCause::Requested }
    }

    /// A failure of the shards.
    pub(super) fn of_shards(reason: impl Into<String>) -> Self {
        GroupLoss { reason: reason.into(), cause: LossCause::Shards }
    }

    /// A failure that another start cannot repair.
    pub(super) fn lasting(reason: impl Into<String>) -> Self {
        GroupLoss { reason: reason.into(), cause: LossCause::Lasting }
    }
}
