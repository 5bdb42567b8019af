//! Counts the losses of shard groups, and decides when the next group is started and when the engine gives up.
//!
//! One failure often comes as many: a model volume that is gone for twenty seconds ends each new shard within
//! milliseconds. The engine therefore gives up only when enough losses without progress are spread over a window of
//! time, and the pauses between two starts grow.

use std::time::Duration;

use tokio::time::Instant;

use super::EngineConfig;

/// Why a group of shards was lost, or could not be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Loss {
    /// The explanation for the operator.
    pub(super) why: String,
    pub(super) cause: Cause,
}

/// What a [`Loss`] says about the next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// The shards failed. Another group may do better.
    Shards,
    /// The system had no memory, processes or descriptors to start a shard with. That says nothing about the shards.
    Shortage,
    /// Another group would fail in the same way.
    Lasting,
}

impl Loss {
    /// A failure of the shards.
    pub(super) fn of_shards(why: impl Into<String>) -> Self {
        Loss { why: why.into(), cause: Cause::Shards }
    }

    /// A failure that another start cannot mend.
    pub(super) fn lasting(why: impl Into<String>) -> Self {
        Loss { why: why.into(), cause: Cause::Lasting }
    }
}

/// When to give up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LossPolicy {
    /// Losses without progress between them, at least. With 1 the first loss is the last one.
    pub(super) max: u32,
    /// Time between the first and the last of them, at least.
    pub(super) window: Duration,
}

impl LossPolicy {
    /// The policy that the operator has chosen.
    pub(super) fn of(config: &EngineConfig) -> Self {
        LossPolicy { max: config.max_failures, window: config.failure_window }
    }
}

/// What follows from a loss.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decision {
    /// Start another group after this pause.
    Restart {
        after: Duration,
        /// Whether the operator is told. A shortage is told once in a while only.
        tell: bool,
    },
    /// End the engine. The text says why.
    GiveUp(String),
}

/// Pause before the second start in a row; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The longest pause between two attempts to start a process for which the system has no resources.
const LONGEST_SHORTAGE_PAUSE: Duration = Duration::from_secs(10);

/// Losses that a request has caused before it runs alone (`scheduler/quarantine.rs`).
const LOSSES_BEFORE_BLAME: u32 = 2;

/// A shortage is told again after this time.
const TELL_AGAIN: Duration = Duration::from_secs(30);

/// A shortage is given this many times the window.
const SHORTAGE_WINDOWS: u32 = 10;

/// Losses in a row, without progress between them.
#[derive(Debug, Clone, Copy)]
struct Series {
    since: Instant,
    count: u32,
    /// When the operator was told last.
    told: Instant,
}

/// The losses since the last sign of progress.
#[derive(Debug)]
pub(super) struct Losses {
    policy: LossPolicy,
    losses: Option<Series>,
    /// Failed starts in a row for want of resources. They do not count as losses.
    shortage: Option<Series>,
}

impl Losses {
    /// Nothing has been lost yet.
    pub(super) fn new(policy: LossPolicy) -> Self {
        Losses { policy, losses: None, shortage: None }
    }

    /// A token was generated, or a group has been well for a while: the count begins anew.
    pub(super) fn progress(&mut self) {
        self.losses = None;
        self.shortage = None;
    }

    /// Processes could be started: a shortage is over.
    pub(super) fn started(&mut self) {
        self.shortage = None;
    }

    /// Takes in a loss that happened `now`.
    pub(super) fn add(&mut self, loss: &Loss, now: Instant) -> Decision {
        match loss.cause {
            Cause::Lasting => Decision::GiveUp(loss.why.clone()),
            Cause::Shortage => self.add_shortage(&loss.why, now),
            Cause::Shards => self.add_loss(&loss.why, now),
        }
    }

    /// Takes in a loss for which one request is to blame. The earlier losses that this request caused no longer count,
    /// and the request is gone.
    pub(super) fn blame_request(&mut self) -> Decision {
        let count = self.losses.as_ref().map_or(0, |series| series.count.saturating_sub(LOSSES_BEFORE_BLAME));
        match (&mut self.losses, count) {
            (Some(series), 1..) => series.count = count,
            _ => self.losses = None,
        }
        Decision::Restart { after: Duration::ZERO, tell: true }
    }

    fn add_loss(&mut self, why: &str, now: Instant) -> Decision {
        self.shortage = None;
        let series = self.losses.get_or_insert(Series { since: now, count: 0, told: now });
        series.count = series.count.saturating_add(1);
        let (count, spread) = (series.count, now.saturating_duration_since(series.since));
        let LossPolicy { max, window } = self.policy;
        if max <= 1 {
            return Decision::GiveUp(why.to_owned());
        }
        if count >= max && spread >= window {
            return Decision::GiveUp(format!(
                "the shards were lost {count} times in a row, within {:.0} s (--max-shard-failures {max}, \
                 --shard-failure-window {}); at last: {why}",
                spread.as_secs_f64(),
                window.as_secs_f64(),
            ));
        }
        let after = if count == 1 { Duration::ZERO } else { pause(count - 2, LONGEST_PAUSE) };
        Decision::Restart { after, tell: true }
    }

    fn add_shortage(&mut self, why: &str, now: Instant) -> Decision {
        let is_first = self.shortage.is_none();
        let series = self.shortage.get_or_insert(Series { since: now, count: 0, told: now });
        series.count = series.count.saturating_add(1);
        let lasted = now.saturating_duration_since(series.since);
        let window = self.policy.window;
        if lasted >= window.saturating_mul(SHORTAGE_WINDOWS) {
            return Decision::GiveUp(format!(
                "{why}; the system has not had the resources to start a shard for {:.0} s ({SHORTAGE_WINDOWS} times \
                 --shard-failure-window {}): raise the limit on open files or processes (ulimit -n, ulimit -u), or \
                 free memory",
                lasted.as_secs_f64(),
                window.as_secs_f64(),
            ));
        }
        let tell = is_first || now.saturating_duration_since(series.told) >= TELL_AGAIN;
        if tell {
            series.told = now;
        }
        Decision::Restart { after: pause(series.count - 1, LONGEST_SHORTAGE_PAUSE), tell }
    }
}

/// The pause after `doublings` shorter ones.
fn pause(doublings: u32, longest: Duration) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << doublings.min(16)).min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: LossPolicy = LossPolicy { max: 3, window: Duration::from_secs(60) };

    fn shortage() -> Loss {
        Loss { why: "no descriptors".into(), cause: Cause::Shortage }
    }

    /// Adds the same loss after each pause until the decision is to give up. Answers how often a group was started,
    /// after what time in seconds the end came, how often the operator was told, and the last text.
    fn until_the_end(losses: &mut Losses, loss: &Loss, each_lasts: Duration) -> (u32, f64, u32, String) {
        let begin = Instant::now();
        let (mut now, mut starts, mut told) = (begin, 0, 0);
        loop {
            now += each_lasts;
            match losses.add(loss, now) {
                Decision::Restart { after, tell } => {
                    now += after;
                    starts += 1;
                    told += u32::from(tell);
                }
                Decision::GiveUp(why) => return (starts, (now - begin).as_secs_f64(), told, why),
            }
        }
    }

    #[test]
    fn shards_that_die_at_once_are_started_again_for_the_whole_window() {
        let mut losses = Losses::new(POLICY);
        let loss = Loss::of_shards("the volume is gone");
        let (starts, seconds, _, why) = until_the_end(&mut losses, &loss, Duration::from_millis(10));
        assert!((60.0..91.0).contains(&seconds), "{seconds}");
        assert!((6..=12).contains(&starts), "{starts}");
        assert!(
            why.contains("--max-shard-failures 3") && why.ends_with("at last: the volume is gone"),
            "{why}"
        );
    }

    #[test]
    fn slow_starts_end_with_the_last_failure_that_is_allowed() {
        let mut losses = Losses::new(POLICY);
        let loss = Loss::of_shards("no");
        let (starts, ..) = until_the_end(&mut losses, &loss, Duration::from_secs(180));
        assert_eq!(starts, 2);
    }

    #[test]
    fn without_a_window_the_losses_alone_are_counted() {
        let mut losses = Losses::new(LossPolicy { window: Duration::ZERO, ..POLICY });
        let loss = Loss::of_shards("no");
        let (starts, ..) = until_the_end(&mut losses, &loss, Duration::ZERO);
        assert_eq!(starts, 2);
    }

    #[test]
    fn one_failure_may_be_one_too_many() {
        let mut losses = Losses::new(LossPolicy { max: 1, ..POLICY });
        let decision = losses.add(&Loss::of_shards("dead"), Instant::now());
        assert_eq!(decision, Decision::GiveUp("dead".into()));
    }

    #[test]
    fn progress_begins_the_count_anew() {
        let mut losses = Losses::new(POLICY);
        let mut now = Instant::now();
        for _ in 0..100 {
            now += Duration::from_secs(61);
            let decision = losses.add(&Loss::of_shards("dead"), now);
            assert_eq!(decision, Decision::Restart { after: Duration::ZERO, tell: true });
            losses.progress();
        }
    }

    #[test]
    fn a_lasting_failure_is_not_tried_again() {
        let mut losses = Losses::new(POLICY);
        let decision = losses.add(&Loss::lasting("another model"), Instant::now());
        assert_eq!(decision, Decision::GiveUp("another model".into()));
    }

    #[test]
    fn a_shortage_counts_no_losses_and_is_told_now_and_then() {
        let mut losses = Losses::new(POLICY);
        let (starts, seconds, told, why) = until_the_end(&mut losses, &shortage(), Duration::from_millis(1));
        assert!((600.0..620.0).contains(&seconds), "{seconds}");
        assert!(starts > 50, "{starts}");
        assert!((15..=21).contains(&told), "told {told} times");
        assert!(why.starts_with("no descriptors; ") && why.contains("ulimit -n"), "{why}");

        // What follows is the first loss.
        let decision = losses.add(&Loss::of_shards("dead"), Instant::now());
        assert_eq!(decision, Decision::Restart { after: Duration::ZERO, tell: true });
    }
}
