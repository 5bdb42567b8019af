//! The losses of the shards in which a sequence had a row in flight.

use std::ops::Range;

/// Number of losses of the shards while a sequence runs alone after which it is blamed, wherever
/// they happened.
const MAX_LOSSES_ALONE: u32 = 2;

/// The losses of the shards in which a sequence had a row in flight.
#[derive(Debug, Clone, Default)]
pub(super) struct LossHistory {
    /// Number of such losses. It is lowered when the sequence leaves the quarantine.
    pub(super) losses: u32,
    /// Number of such losses while the sequence ran alone.
    losses_alone: u32,
    /// Largest number of positions that the rows in flight would have computed.
    pub(super) reached: usize,
    /// The positions that were in flight in all of these losses; `None` before the first one, and
    /// after the sequence has passed all of them alone.
    common: Option<Range<usize>>,
}

impl LossHistory {
    /// Adds a loss in which the positions `in_flight` of the sequence were in flight.
    pub(super) fn add(&mut self, in_flight: Range<usize>) {
        self.losses += 1;
        self.reached = self.reached.max(in_flight.end);
        self.common = Some(match &self.common {
            None => in_flight,
            Some(common) => common.start.max(in_flight.start)..common.end.min(in_flight.end),
        });
    }

    /// Adds a loss while the sequence ran alone. Returns whether it is the cause of the losses: one
    /// position was in flight in all of them, or the shards were lost before while it ran alone.
    pub(super) fn add_alone(&mut self, in_flight: Range<usize>) -> bool {
        self.add(in_flight);
        self.losses_alone += 1;
        let has_common = self.common.as_ref().is_some_and(|common| !common.is_empty());
        has_common || self.losses_alone >= MAX_LOSSES_ALONE
    }

    /// Notes that the sequence has passed all positions of its losses alone. `losses` of them still
    /// count.
    pub(super) fn pass(&mut self, losses: u32) {
        self.losses = losses;
        self.common = None;
    }
}
