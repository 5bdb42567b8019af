//! The order in which waiting sequences are admitted.

/// The choice of the sequence that is admitted first. Priorities and the time of arrival decide the
/// order of the queue in both schedules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Schedule {
    /// The first one in the queue that fits ("first come, first served").
    #[default]
    Fcfs,
    /// The one with the longest cached prefix that fits ("longest prefix match"). Sequences with a
    /// shorter prefix are overtaken, up to the limit that holds for both schedules.
    Lpm,
}
