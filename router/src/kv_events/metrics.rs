//! The metrics of the events.

use ::metrics::{Unit, describe_counter};

/// Counter: batches of events.
pub(super) const BATCHES: &str = "millrace_kv_event_batches_total";
/// Counter: batches that a subscriber was too slow to receive.
pub(super) const MISSED: &str = "millrace_kv_event_batches_missed_total";

/// Describes the metrics to the installed recorder.
pub(super) fn describe() {
    describe_counter!(BATCHES, Unit::Count, "Batches of events of the prefix cache");
    describe_counter!(MISSED, Unit::Count, "Batches of events that a subscriber was too slow to receive");
}
