//! The body of a response, which must neither stall nor trickle.

use std::time::Duration;

use bytes::Bytes;
use reqwest::Response;
use tokio::time::{Instant, timeout};

/// The least speed of a body in bytes per second. A link that is slower would need weeks for a
/// model, and another connection is likely to be faster.
const MIN_SPEED: f64 = 1024.0;

/// Why there are no more chunks.
#[derive(Debug)]
pub(super) enum BodyError {
    /// The bytes come too slowly, for this reason.
    Slow(String),
    /// The connection has ended.
    Broken(reqwest::Error),
}

/// The body of a response.
pub(super) struct PacedBody {
    response: Response,
    pace: Pace,
}

impl PacedBody {
    /// Takes the body of a response. In each `window`, bytes must come, and enough of them.
    pub(super) fn new(response: Response, window: Duration) -> Self {
        PacedBody { response, pace: Pace::new(window) }
    }

    /// Returns the response.
    pub(super) fn response(&self) -> &Response {
        &self.response
    }

    /// Waits for the next bytes. Returns `None` at the end.
    ///
    /// # Errors
    /// If the connection ends early, or the bytes come too slowly.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, BodyError> {
        match timeout(self.pace.window, self.response.chunk()).await {
            Ok(Ok(Some(bytes))) => {
                self.pace.count(bytes.len()).map_err(BodyError::Slow)?;
                Ok(Some(bytes))
            }
            Ok(Ok(None)) => Ok(None),
            Ok(Err(error)) => Err(BodyError::Broken(error)),
            Err(_) => Err(BodyError::Slow(format!("no bytes for {} s", self.pace.window.as_secs_f64()))),
        }
    }
}

/// The bytes of the current window of time.
struct Pace {
    window: Duration,
    since: Instant,
    bytes: usize,
}

impl Pace {
    fn new(window: Duration) -> Self {
        Pace { window, since: Instant::now(), bytes: 0 }
    }

    /// Counts bytes. The error says that too few of them came in a whole window.
    fn count(&mut self, bytes: usize) -> Result<(), String> {
        self.bytes += bytes;
        let elapsed = self.since.elapsed();
        if elapsed < self.window {
            return Ok(());
        }
        let (received, seconds) = (self.bytes, elapsed.as_secs_f64());
        *self = Pace::new(self.window);
        if (received as f64) < MIN_SPEED * seconds {
            return Err(format!("only {received} bytes in {seconds:.1} s"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_trickles_is_given_up() {
        let mut pace = Pace::new(Duration::from_secs(30));
        for _ in 0..29 {
            tokio::time::advance(Duration::from_secs(1)).await;
            assert_eq!(pace.count(1), Ok(()));
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(pace.count(1), Err("only 30 bytes in 30.0 s".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_body_is_read_to_its_end() {
        let mut pace = Pace::new(Duration::from_secs(30));
        for _ in 0..1000 {
            tokio::time::advance(Duration::from_secs(1)).await;
            assert_eq!(pace.count(1100), Ok(()));
        }
    }
}
