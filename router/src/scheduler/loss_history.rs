//! How often a sequence was in flight when the shards were lost.

/// The losses of the shards in which a sequence had a row in flight.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LossHistory {
    /// Number of such losses. It is lowered when the sequence leaves the quarantine.
    pub(super) losses: u32,
    /// Largest number of positions that the rows in flight would have computed.
    pub(super) reached: usize,
}
