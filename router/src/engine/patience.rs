//! Waits that end, and that are not cut short when this process stands still.
//!
//! A process that is stopped (SIGSTOP, `docker pause`, a laptop that sleeps) finds all its timers expired when it goes
//! on. The other side has often been stopped with it and could not answer. Time is therefore counted in short slices: a
//! standstill of any length costs one slice.

use std::time::Duration;

use tokio::time::timeout;

/// The longest slice. A wait is shortened by at most this much for each standstill.
pub(super) const SLICE: Duration = Duration::from_secs(1);

/// The time is up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TimeIsUp;

/// Waits for `future`, for at most `limit` of the time in which this process runs.
pub(super) async fn within<F: Future>(limit: Duration, future: F) -> Result<F::Output, TimeIsUp> {
    tokio::pin!(future);
    let mut left = limit;
    loop {
        // At least four slices, so that a short wait is not used up by one standstill.
        let slice = left.min(SLICE).min(limit / 4).max(Duration::from_millis(1));
        if let Ok(output) = timeout(slice, &mut future).await {
            return Ok(output);
        }
        left = left.saturating_sub(slice);
        if left.is_zero() {
            return Err(TimeIsUp);
        }
    }
}

/// Sleeps for `limit` of the time in which this process runs.
pub(super) async fn pass(limit: Duration) {
    // Nothing ends the wait but the time.
    let _ = within(limit, std::future::pending::<()>()).await;
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, advance, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_after_its_time() {
        for limit in [Duration::from_millis(3), Duration::from_secs(2), Duration::from_secs(90)] {
            let since = Instant::now();
            assert_eq!(within(limit, std::future::pending::<()>()).await, Err(TimeIsUp));
            let (passed, late) = (since.elapsed(), Duration::from_millis(200));
            assert!(passed >= limit && passed <= limit + late, "{passed:?} instead of {limit:?}");
            assert_eq!(within(limit, async { 7 }).await, Ok(7));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_standstill_does_not_use_the_wait_up() {
        let answer = async {
            sleep(Duration::from_secs(2)).await;
            // This process stands still for an hour, and so does who should answer.
            advance(Duration::from_secs(3600)).await;
            sleep(Duration::from_secs(2)).await;
            "there"
        };
        assert_eq!(within(Duration::from_secs(10), answer).await, Ok("there"));
    }
}
