//! Timeouts that do not count the time in which this process is suspended.
//!
//! A process that is suspended (SIGSTOP, `docker pause`, a laptop that sleeps) finds all its timers
//! expired when it continues. Its peer has often been suspended with it and could not answer. Time
//! is therefore counted in short slices: a suspension of any length costs one slice.

use std::time::Duration;

use tokio::time::timeout;

/// The longest slice. Each suspension shortens a timeout by at most this much.
pub(super) const MAX_SLICE: Duration = Duration::from_secs(1);

/// The time has run out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TimedOut;

/// Waits for `future`, for at most `limit` of the time in which this process runs.
pub(super) async fn running_timeout<F: Future>(limit: Duration, future: F) -> Result<F::Output, TimedOut> {
    tokio::pin!(future);
    let mut left = limit;
    loop {
        // At least four slices, so that one suspension does not use up a short timeout.
        let slice = left.min(MAX_SLICE).min(limit / 4).max(Duration::from_millis(1));
        if let Ok(output) = timeout(slice, &mut future).await {
            return Ok(output);
        }
        left = left.saturating_sub(slice);
        if left.is_zero() {
            return Err(TimedOut);
        }
    }
}

/// Sleeps for `limit` of the time in which this process runs.
pub(super) async fn running_sleep(limit: Duration) {
    // The future never completes.
    let _ = running_timeout(limit, std::future::pending::<()>()).await;
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, advance, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_timeout_ends_after_its_time() {
        for limit in [Duration::from_millis(3), Duration::from_secs(2), Duration::from_secs(90)] {
            let since = Instant::now();
            assert_eq!(running_timeout(limit, std::future::pending::<()>()).await, Err(TimedOut));
            let (passed, late) = (since.elapsed(), Duration::from_millis(200));
            assert!(passed >= limit && passed <= limit + late, "{passed:?} instead of {limit:?}");
            assert_eq!(running_timeout(limit, async { 7 }).await, Ok(7));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspension_does_not_use_up_the_timeout() {
        let answer = async {
            sleep(Duration::from_secs(2)).await;
            // This process is suspended for an hour, and so is its peer.
            advance(Duration::from_secs(3600)).await;
            sleep(Duration::from_secs(2)).await;
            "there"
        };
        assert_eq!(running_timeout(Duration::from_secs(10), answer).await, Ok("there"));
    }
}
