//! When a failed request is repeated.

use std::time::Duration;

use rand::Rng;

use super::error::HubError;

/// Failures in a row after which a request is given up.
const MAX_FAILURES: u32 = 6;

/// The longest pause between two requests, unless the server asks for a longer one.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// The longest pause that is kept when the server asks for it.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);

/// The failures in a row of one request.
#[derive(Debug)]
pub(super) struct Failures {
    count: u32,
    limit: u32,
    first_pause: Duration,
}

impl Failures {
    /// Starts without failures.
    pub(super) fn new(first_pause: Duration) -> Failures {
        Failures { count: 0, limit: MAX_FAILURES, first_pause }
    }

    /// Sets how many failures in a row end the request.
    pub(super) fn with_limit(self, limit: u32) -> Failures {
        Failures { limit, ..self }
    }

    /// Forgets the failures, because the request has made progress.
    pub(super) fn forget(&mut self) {
        self.count = 0;
    }

    /// Waits until the request may be repeated.
    ///
    /// # Errors
    /// The error itself, if the request is to be given up.
    pub(super) async fn wait_after(&mut self, error: HubError) -> Result<(), HubError> {
        self.count += 1;
        let too_long = error.retry_after().is_some_and(|pause| pause > MAX_RETRY_AFTER);
        if !error.is_transient() || self.count >= self.limit || too_long {
            return Err(error);
        }
        let pause = self.pause(error.retry_after());
        tracing::warn!("{error}; next attempt in {:.1} s", pause.as_secs_f64());
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// Returns the pause: as long as the server asks for, or twice as long as the last one with a
    /// random part, so that many servers do not return at once.
    fn pause(&self, retry_after: Option<Duration>) -> Duration {
        let doubled = self.first_pause.saturating_mul(1 << (self.count - 1).min(16)).min(MAX_PAUSE);
        let part = rand::rng().random_range(0.5..1.0);
        retry_after.unwrap_or_default().max(doubled.mul_f64(part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited(seconds: Option<u64>) -> HubError {
        HubError::RateLimited { retry_after: seconds.map(Duration::from_secs) }
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_bounded_and_pauses_grow() {
        let mut failures = Failures::new(Duration::from_secs(1));
        let since = tokio::time::Instant::now();
        for _ in 1..MAX_FAILURES {
            failures.wait_after(limited(None)).await.unwrap();
        }
        assert!(failures.wait_after(limited(None)).await.is_err());
        let waited = since.elapsed().as_secs_f64();
        // 1 + 2 + 4 + 8 + 16, each at least half.
        assert!((15.5..=31.0).contains(&waited), "{waited}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_pause_of_the_server_is_kept_unless_it_is_too_long() {
        let mut failures = Failures::new(Duration::from_millis(1));
        let since = tokio::time::Instant::now();
        failures.wait_after(limited(Some(7))).await.unwrap();
        assert_eq!(since.elapsed().as_secs(), 7);
        assert!(failures.wait_after(limited(Some(3600))).await.is_err());
        assert!(failures.wait_after(HubError::Unusable(String::new())).await.is_err());
    }
}
