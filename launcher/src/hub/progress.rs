//! The progress of a download: counters, and how they are shown.

use std::convert::Infallible;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;

/// The time between two updates of the bar.
const BAR_UPDATE: Duration = Duration::from_millis(200);

/// The time between two lines of the log.
const LOG_UPDATE: Duration = Duration::from_secs(10);

/// Counters of bytes, shared by all files of a download.
#[derive(Debug, Clone, Default)]
pub(crate) struct DownloadProgress(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    /// Bytes on the disk.
    done: AtomicU64,
    /// Bytes of all files.
    total: AtomicU64,
}

impl DownloadProgress {
    /// Returns the bytes that are on the disk, and those of all files.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.0.done.load(Ordering::Relaxed), self.0.total.load(Ordering::Relaxed))
    }

    /// Returns whether all bytes are on the disk.
    pub(crate) fn is_complete(&self) -> bool {
        let (done, total) = self.bytes();
        done >= total
    }

    /// Adds bytes to the sum of all files.
    pub(super) fn add_total(&self, bytes: u64) {
        self.0.total.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Adds bytes that are on the disk.
    pub(super) fn add(&self, bytes: u64) {
        self.0.done.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes back bytes that were not those of the file.
    pub(super) fn take_back(&self, bytes: u64) {
        self.0.done.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Shows the progress until this is cancelled: a bar if standard error is a terminal and the
    /// log is not JSON, else lines of the log.
    pub(crate) async fn show(&self, label: &str, json: bool) -> Infallible {
        if std::io::stderr().is_terminal() && !json { self.draw(label).await } else { self.log(label).await }
    }

    /// Draws a bar until this is cancelled.
    async fn draw(&self, label: &str) -> Infallible {
        let bar = BarGuard(ProgressBar::no_length());
        bar.0.set_style(crate::progress::measured());
        bar.0.set_message(label.to_owned());
        loop {
            let (done, total) = self.bytes();
            bar.0.set_length(total);
            bar.0.set_position(done);
            tokio::time::sleep(BAR_UPDATE).await;
        }
    }

    /// Writes lines to the log until this is cancelled.
    pub(crate) async fn log(&self, label: &str) -> Infallible {
        let (since, (before, _)) = (Instant::now(), self.bytes());
        loop {
            tokio::time::sleep(LOG_UPDATE).await;
            let (done, total) = self.bytes();
            let rate = done.saturating_sub(before) as f64 / since.elapsed().as_secs_f64();
            tracing::info!("{label}: {}", line(done, total, rate));
        }
    }
}

/// A bar that is removed when this is dropped.
struct BarGuard(ProgressBar);

impl Drop for BarGuard {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Returns one line of the log. `rate` is in bytes per second.
fn line(done: u64, total: u64, rate: f64) -> String {
    let left = total.saturating_sub(done) as f64 / rate;
    let left = if left.is_finite() { format!(", {} s left", left.ceil()) } else { String::new() };
    format!("{} of {}, {}/s{left}", Size(done), Size(total), Size(rate as u64))
}

/// A number of bytes in decimal units, as the hub's pages show sizes.
pub(crate) struct Size(pub(crate) u64);

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (unit, name) = match self.0 {
            bytes if bytes < 1_000 => return write!(f, "{bytes} B"),
            bytes if bytes < 1_000_000 => (1e3, "kB"),
            bytes if bytes < 1_000_000_000 => (1e6, "MB"),
            bytes if bytes < 1_000_000_000_000 => (1e9, "GB"),
            _ => (1e12, "TB"),
        };
        write!(f, "{:.1} {name}", self.0 as f64 / unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_bytes_rate_and_remaining_time() {
        assert_eq!(line(1_200_000_000, 15_300_000_000, 1e8), "1.2 GB of 15.3 GB, 100.0 MB/s, 141 s left");
        assert_eq!(line(0, 900, 0.0), "0 B of 900 B, 0 B/s");
    }
}
