//! The pace of the steps: when the next step is sent while another one is in flight.
//!
//! A request that arrives now can be part of the next step that is planned, so steps are planned as
//! late as possible: shortly before the shards are expected to need them. On a slow device this
//! saves a new request the time of a whole step. Short steps are sent at once.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// The time by which a step is sent before it is expected to be needed, for planning it and sending
/// it to all ranks.
const LEAD: Duration = Duration::from_millis(10);

/// Inverse of the part of the predicted time by which a step is sent even earlier, because
/// predictions are wrong by a few percent.
const LEAD_DIVISOR: u32 = 8;

/// The steps in flight and the times at which they are expected to end.
#[derive(Debug)]
pub(super) struct StepPace {
    /// The time at which the shards began with the oldest step in flight.
    begun: Instant,
    /// The predicted times of the steps in flight, oldest first.
    durations: VecDeque<Duration>,
}

impl StepPace {
    /// No steps in flight.
    pub(super) fn new() -> Self {
        StepPace { begun: Instant::now(), durations: VecDeque::new() }
    }

    /// Notes that a step is sent that is expected to take `duration`; zero if this is unknown.
    pub(super) fn sent(&mut self, duration: Duration, now: Instant) {
        if self.durations.is_empty() {
            self.begun = now;
        }
        self.durations.push_back(duration);
    }

    /// Notes that the oldest step has been answered.
    pub(super) fn answered(&mut self, now: Instant) {
        self.durations.pop_front();
        self.begun = now;
    }

    /// Notes that all steps in flight are lost.
    pub(super) fn lost(&mut self) {
        self.durations.clear();
    }

    /// The time at which the next step is to be sent: the time at which the last step in flight
    /// begins if there is none or little is known.
    pub(super) fn next_send(&self) -> Instant {
        // The predictions of a year and more that a step without progress might lead to are cut.
        let expected = self.durations.iter().fold(Duration::ZERO, |sum, &step| sum.saturating_add(step));
        let expected = expected.min(Duration::from_secs(3600));
        self.begun + expected.saturating_sub(LEAD + expected / LEAD_DIVISOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_step_is_sent_shortly_before_the_one_before_it_ends() {
        let mut pace = StepPace::new();
        let start = Instant::now();
        assert!(pace.next_send() <= start);
        pace.sent(millis(80), start);
        assert_eq!(pace.next_send(), start + millis(60));
        pace.sent(millis(160), start + millis(60));
        assert_eq!(pace.next_send(), start + millis(200));
        // The first step has taken longer than expected.
        pace.answered(start + millis(100));
        assert_eq!(pace.next_send(), start + millis(230));
        pace.answered(start + millis(260));
        assert!(pace.next_send() <= start + millis(260));
    }

    #[test]
    fn short_and_unknown_steps_are_sent_at_once() {
        for duration in [millis(0), millis(5), millis(11)] {
            let mut pace = StepPace::new();
            let start = Instant::now();
            pace.sent(duration, start);
            assert_eq!(pace.next_send(), start);
        }
    }

    #[test]
    fn a_loss_ends_all_waiting() {
        let mut pace = StepPace::new();
        let start = Instant::now();
        pace.sent(Duration::MAX, start);
        pace.sent(Duration::MAX, start);
        assert!(pace.next_send() < start + Duration::from_secs(3600));
        pace.lost();
        assert_eq!(pace.next_send(), start);
    }
}
