//! Identifiers of sequences, slots and adapters.

/// Identifies a sequence for as long as the scheduler knows it. Sequences with lower ids go first:
/// ids rise in the order of arrival, and a lower priority adds to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqId {
    /// The step before which the sequence arrived, plus the delay of its priority in steps.
    pub(super) due: u64,
    /// Number of sequences that arrived before this one.
    pub(super) serial: u64,
}

/// A row of the shards' table of running sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub(super) u32);

/// An adapter of the model, by its number. No other adapter that the server loads ever has the same
/// number, even if it has the same name, so that blocks computed with one adapter are never taken
/// for blocks of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AdapterId(pub u32);
