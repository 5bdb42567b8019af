//! Whether the threads that answer requests make progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use crate::metrics;

/// Tasks that beat. The runtime never runs one of them while its thread is blocked, if it is the task that this thread would
/// run next; another thread can take the second one over.
const HEARTS: u32 = 2;

/// Looks and beats within the limit, at least.
const LOOKS: u32 = 16;

/// The shortest and the longest time between two beats or looks.
const INTERVAL: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));

/// Watches a runtime from a thread that does not belong to it. Tasks on the runtime beat, the watcher counts the time
/// without a beat.
#[derive(Debug)]
pub(super) struct Watchdog {
    limit: Duration,
    beats: AtomicU64,
    is_stuck: watch::Sender<bool>,
}

impl Watchdog {
    /// A watchdog for a runtime that counts as stuck after `limit` without progress.
    pub(super) fn new(limit: Duration) -> Arc<Self> {
        Arc::new(Watchdog { limit, beats: AtomicU64::new(0), is_stuck: watch::Sender::new(false) })
    }

    fn interval(&self) -> Duration {
        (self.limit / LOOKS).clamp(INTERVAL.0, INTERVAL.1)
    }

    /// Starts the tasks that beat on `runtime` until `finished`.
    pub(super) fn beat_on(self: &Arc<Self>, runtime: &Handle, finished: &CancellationToken) {
        for _ in 0..HEARTS {
            let (watchdog, finished) = (self.clone(), finished.clone());
            runtime.spawn(async move {
                let mut ticks = interval(watchdog.interval());
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                let beat = async {
                    loop {
                        ticks.tick().await;
                        watchdog.beats.fetch_add(1, Ordering::Relaxed);
                    }
                };
                finished.run_until_cancelled(beat).await;
            });
        }
    }

    /// Counts the time without a beat, for ever. To be polled on another runtime.
    pub(super) async fn watch(&self) {
        let interval = self.interval();
        let (mut seen, mut silence, mut looked) = (0, Duration::ZERO, Instant::now());
        loop {
            sleep(interval).await;
            let elapsed = looked.elapsed();
            looked = Instant::now();
            let beats = self.beats.load(Ordering::Relaxed);
            if beats != seen {
                (seen, silence) = (beats, Duration::ZERO);
            } else {
                // A process that was paused as a whole did not get here either, so its pause does not count.
                silence += elapsed.min(interval * 2);
            }
            self.judge(silence);
        }
    }

    fn judge(&self, silence: Duration) {
        let is_stuck = silence >= self.limit;
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

    /// The limit, if the runtime has made no progress for longer.
    pub(super) fn stuck_for(&self) -> Option<Duration> {
        self.is_stuck.borrow().then_some(self.limit)
    }

    /// Waits until the runtime is stuck.
    pub(super) async fn stuck(&self) {
        // The sender is in `self`, so the channel does not close.
        let _ = self.is_stuck.subscribe().wait_for(|is_stuck| *is_stuck).await;
    }
}
