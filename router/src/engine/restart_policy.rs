//! Counts the losses of shard groups, and decides when the next group starts and when the engine
//! gives up.
//!
//! One failure often causes many losses: a model volume that is gone for twenty seconds ends each
//! new shard within milliseconds. The engine therefore gives up only when enough losses without
//! progress are spread over a window of time, and the pauses between two starts grow.

use std::time::Duration;

use tokio::time::Instant;

use super::config::EngineConfig;
use super::loss::{GroupLoss, LossCause};

/// The conditions under which the engine gives up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RestartPolicy {
    /// Minimum number of losses without progress between them. With 1 the engine gives up at the
    /// first loss.
    pub(super) max: u32,
    /// Minimum time between the first and the last of these losses.
    pub(super) window: Duration,
}

impl RestartPolicy {
    /// The policy of a configuration.
    pub(super) fn new(config: &EngineConfig) -> Self {
        RestartPolicy { max: config.max_failures, window: config.failure_window }
    }
}

/// The consequence of a loss.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RestartDecision {
    /// Start another group after this pause.
    Restart {
        after: Duration,
        /// Whether the loss is logged. A shortage is logged from time to time only.
        log: bool,
    },
    /// End the engine. The text gives the reason.
    GiveUp(String),
}

/// Pause before the second restart in a row. It doubles with each further restart.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Longest pause between two restarts.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Longest pause between two attempts to start a process for which the system has no resources.
const LONGEST_SHORTAGE_PAUSE: Duration = Duration::from_secs(10);

/// Number of losses that a request has caused before it runs alone (`scheduler/quarantine.rs`).
const LOSSES_BEFORE_BLAME: u32 = 2;

/// Time after which a lasting shortage is logged again.
const LOG_AGAIN: Duration = Duration::from_secs(30);

/// Duration of a shortage, in windows, after which the engine gives up.
const SHORTAGE_WINDOWS: u32 = 10;

/// A series of losses without progress between them.
#[derive(Debug, Clone, Copy)]
struct LossSeries {
    since: Instant,
    count: u32,
    /// Time of the last log line about it.
    logged: Instant,
}

/// The losses since the last sign of progress.
#[derive(Debug)]
pub(super) struct LossTracker {
    policy: RestartPolicy,
    losses: Option<LossSeries>,
    /// A series of failed starts because the system had no resources. They do not count as losses.
    shortage: Option<LossSeries>,
}

impl LossTracker {
    /// A tracker without losses.
    pub(super) fn new(policy: RestartPolicy) -> Self {
        LossTracker { policy, losses: None, shortage: None }
    }

    /// Resets the count, because a token was generated or a group has been healthy for some time.
    pub(super) fn note_progress(&mut self) {
        self.losses = None;
        self.shortage = None;
    }

    /// Ends a shortage, because processes could be started.
    pub(super) fn note_start(&mut self) {
        self.shortage = None;
    }

    /// Counts a loss that happened `now`.
    pub(super) fn add(&mut self, loss: &GroupLoss, now: Instant) -> RestartDecision {
        match loss.cause {
            LossCause::Lasting => RestartDecision::GiveUp(loss.reason.clone()),
            LossCause::Shortage => self.add_shortage(&loss.reason, now),
            LossCause::Requested => RestartDecision::Restart { after: Duration::ZERO, log: false },
            LossCause::Shards => self.add_loss(&loss.reason, now),
        }
    }

    /// Counts a loss that one request has caused. The request has been removed, and the earlier
    /// losses that it caused no longer count.
    pub(super) fn blame_request(&mut self) -> RestartDecision {
        let count = self.losses.as_ref().map_or(0, |series| series.count.saturating_sub(LOSSES_BEFORE_BLAME));
        match (&mut self.losses, count) {
            (Some(series), 1..) => series.count = count,
            _ => self.losses = None,
        }
        RestartDecision::Restart { after: Duration::ZERO, log: true }
    }

    fn add_loss(&mut self, reason: &str, now: Instant) -> RestartDecision {
        self.shortage = None;
        let series = self.losses.get_or_insert(LossSeries { since: now, count: 0, logged: now });
        series.count = series.count.saturating_add(1);
        let (count, spread) = (series.count, now.saturating_duration_since(series.since));
        let RestartPolicy { max, window } = self.policy;
        if max <= 1 {
            return RestartDecision::GiveUp(reason.to_owned());
        }
        if count >= max && spread >= window {
            return RestartDecision::GiveUp(format!(
                "the shards were lost {count} times in a row, within {:.0} s (--max-shard-failures {max}, \
                 --shard-failure-window {}); the last loss: {reason}",
                spread.as_secs_f64(),
                window.as_secs_f64(),
            ));
        }
        let after = if count == 1 { Duration::ZERO } else { pause(count - 2, LONGEST_PAUSE) };
        RestartDecision::Restart { after, log: true }
    }

    fn add_shortage(&mut self, reason: &str, now: Instant) -> RestartDecision {
        let is_first = self.shortage.is_none();
        let series = self.shortage.get_or_insert(LossSeries { since: now, count: 0, logged: now });
        series.count = series.count.saturating_add(1);
        let lasted = now.saturating_duration_since(series.since);
        let window = self.policy.window;
        if lasted >= window.saturating_mul(SHORTAGE_WINDOWS) {
            return RestartDecision::GiveUp(format!(
                "{reason}; the system has not had the resources to start a shard for {:.0} s ({SHORTAGE_WINDOWS} times \
                 --shard-failure-window {}): raise the limit on open files or processes (ulimit -n, ulimit -u), or \
                 free memory",
                lasted.as_secs_f64(),
                window.as_secs_f64(),
            ));
        }
        let log = is_first || now.saturating_duration_since(series.logged) >= LOG_AGAIN;
        if log {
            series.logged = now;
        }
        RestartDecision::Restart { after: pause(series.count - 1, LONGEST_SHORTAGE_PAUSE), log }
    }
}

/// The pause after `doublings` shorter pauses.
fn pause(doublings: u32, longest: Duration) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << doublings.min(16)).min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: RestartPolicy = RestartPolicy { max: 3, window: Duration::from_secs(60) };

    fn shortage() -> GroupLoss {
        GroupLoss { reason: "no descriptors".into(), cause: LossCause::Shortage }
    }

    /// Adds the same loss after each pause until the decision is to give up. Returns the number of
    /// starts, the time until the end in seconds, the number of log lines, and the reason.
    fn until_the_end(
        losses: &mut LossTracker,
        loss: &GroupLoss,
        each_lasts: Duration,
    ) -> (u32, f64, u32, String) {
        let begin = Instant::now();
        let (mut now, mut starts, mut logged) = (begin, 0, 0);
        loop {
            now += each_lasts;
            match losses.add(loss, now) {
                RestartDecision::Restart { after, log } => {
                    now += after;
                    starts += 1;
                    logged += u32::from(log);
                }
                RestartDecision::GiveUp(reason) => {
                    return (starts, (now - begin).as_secs_f64(), logged, reason);
                }
            }
        }
    }

    #[test]
    fn shards_that_die_at_once_are_restarted_for_the_whole_window() {
        let mut losses = LossTracker::new(POLICY);
        let loss = GroupLoss::of_shards("the volume is gone");
        let (starts, seconds, _, reason) = until_the_end(&mut losses, &loss, Duration::from_millis(10));
        assert!((60.0..91.0).contains(&seconds), "{seconds}");
        assert!((6..=12).contains(&starts), "{starts}");
        assert!(
            reason.contains("--max-shard-failures 3")
                && reason.ends_with("the last loss: the volume is gone"),
            "{reason}"
        );
    }

    #[test]
    fn slow_starts_end_at_the_maximum_number_of_losses() {
        let mut losses = LossTracker::new(POLICY);
        let loss = GroupLoss::of_shards("no");
        let (starts, ..) = until_the_end(&mut losses, &loss, Duration::from_secs(180));
        assert_eq!(starts, 2);
    }

    #[test]
    fn without_a_window_only_the_number_of_losses_counts() {
        let mut losses = LossTracker::new(RestartPolicy { window: Duration::ZERO, ..POLICY });
        let loss = GroupLoss::of_shards("no");
        let (starts, ..) = until_the_end(&mut losses, &loss, Duration::ZERO);
        assert_eq!(starts, 2);
    }

    #[test]
    fn with_a_maximum_of_one_the_first_loss_ends_the_engine() {
        let mut losses = LossTracker::new(RestartPolicy { max: 1, ..POLICY });
        let decision = losses.add(&GroupLoss::of_shards("dead"), Instant::now());
        assert_eq!(decision, RestartDecision::GiveUp("dead".into()));
    }

    #[test]
    fn progress_resets_the_count() {
        let mut losses = LossTracker::new(POLICY);
        let mut now = Instant::now();
        for _ in 0..100 {
            now += Duration::from_secs(61);
            let decision = losses.add(&GroupLoss::of_shards("dead"), now);
            assert_eq!(decision, RestartDecision::Restart { after: Duration::ZERO, log: true });
            losses.note_progress();
        }
    }

    #[test]
    fn after_a_lasting_failure_no_group_is_started() {
        let mut losses = LossTracker::new(POLICY);
        let decision = losses.add(&GroupLoss::lasting("another model"), Instant::now());
        assert_eq!(decision, RestartDecision::GiveUp("another model".into()));
    }

    #[test]
    fn a_restart_that_was_wanted_counts_as_no_loss() {
        let mut losses = LossTracker::new(RestartPolicy { max: 1, ..POLICY });
        let decision = losses.add(&GroupLoss::requested(), Instant::now());
        assert_eq!(decision, RestartDecision::Restart { after: Duration::ZERO, log: false });
    }

    #[test]
    fn a_shortage_counts_no_losses_and_is_logged_from_time_to_time() {
        let mut losses = LossTracker::new(POLICY);
        let (starts, seconds, logged, reason) =
            until_the_end(&mut losses, &shortage(), Duration::from_millis(1));
        assert!((600.0..620.0).contains(&seconds), "{seconds}");
        assert!(starts > 50, "{starts}");
        assert!((15..=21).contains(&logged), "logged {logged} times");
        assert!(reason.starts_with("no descriptors; ") && reason.contains("ulimit -n"), "{reason}");

        // The next loss counts as the first one.
        let decision = losses.add(&GroupLoss::of_shards("dead"), Instant::now());
        assert_eq!(decision, RestartDecision::Restart { after: Duration::ZERO, log: true });
    }
}
