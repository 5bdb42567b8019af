//! A watchdog for the threads that answer requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use crate::metrics;

/// The number of heartbeat tasks. If a thread is blocked, the runtime never runs the task in the
/// thread's next-task slot. Another thread can run the second task.
const HEARTBEAT_TASKS: u32 = 2;

/// The minimum number of checks and heartbeats within the limit.
const MIN_CHECKS: u32 = 16;

/// The shortest and the longest time between two heartbeats or checks.
const INTERVAL: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));

/// Watches a runtime from a thread outside of it. Tasks on the runtime send heartbeats, and the
/// watcher measures the time without a heartbeat.
#[derive(Debug)]
pub(super) struct Watchdog {
    limit: Duration,
    heartbeats: AtomicU64,
    is_stuck: watch::Sender<bool>,
}

impl Watchdog {
    /// Creates a watchdog for a runtime that counts as stuck after `limit` without progress.
    pub(super) fn new(limit: Duration) -> Arc<Self> {
        Arc::new(Watchdog { limit, heartbeats: AtomicU64::new(0), is_stuck: watch::Sender::new(false) })
    }

    fn interval(&self) -> Duration {
        (self.limit / MIN_CHECKS).clamp(INTERVAL.0, INTERVAL.1)
    }

    /// Starts the heartbeat tasks on `runtime`. They run until `finished`.
    pub(super) fn start_heartbeats(self: &Arc<Self>, runtime: &Handle, finished: &CancellationToken) {
        for _ in 0..HEARTBEAT_TASKS {
            let (watchdog, finished) = (self.clone(), finished.clone());
            runtime.spawn(async move {
                let mut ticks = interval(watchdog.interval());
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                let beat = async {
                    loop {
                        ticks.tick().await;
                        watchdog.heartbeats.fetch_add(1, Ordering::Relaxed);
                    }
                };
                finished.run_until_cancelled(beat).await;
            });
        }
    }

    /// Measures the time without a heartbeat. The future never completes and must be polled on
    /// another runtime.
    pub(super) async fn watch(&self) {
        let interval = self.interval();
        let (mut seen, mut time_without_heartbeat, mut looked) = (0, Duration::ZERO, Instant::now());
        loop {
            sleep(interval).await;
            let elapsed = looked.elapsed();
            looked = Instant::now();
            let heartbeats = self.heartbeats.load(Ordering::Relaxed);
            if heartbeats != seen {
                (seen, time_without_heartbeat) = (heartbeats, Duration::ZERO);
            } else {
                // If the whole process was paused, this task was paused too. The pause does not
                // count.
                time_without_heartbeat += elapsed.min(interval * 2);
            }
            self.evaluate(time_without_heartbeat);
        }
    }

    fn evaluate(&self, time_without_heartbeat: Duration) {
        let is_stuck = time_without_heartbeat >= self.limit;
        let has_changed =
            self.is_stuck.send_if_modified(|before| std::mem::replace(before, is_stuck) != is_stuck);
        match is_stuck {
            true if has_changed => {
                metrics::runtime_stalled();
                tracing::error!(
                    limit = ?self.limit,
                    "the server's threads are stuck: requests get no answer, and /health is 503 (--watchdog-timeout)"
                );
            }
            false if has_changed => tracing::info!("the server's threads make progress again"),
            _ => {}
        }
    }

    /// Returns the limit if the runtime has made no progress for longer.
    pub(super) fn stuck_for(&self) -> Option<Duration> {
        self.is_stuck.borrow().then_some(self.limit)
    }

    /// Waits until the runtime is stuck.
    pub(super) async fn stuck(&self) {
        // The sender is in `self`, so the channel does not close.
        let _ = self.is_stuck.subscribe().wait_for(|is_stuck| *is_stuck).await;
    }
}
