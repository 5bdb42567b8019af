//! A queue of log lines for a file or pipe that may be slow, full or broken.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Limit of the bytes of all waiting lines. Only `--log-requests` makes lines that are longer.
const MAX_BYTES: usize = 8 << 20;

/// Limit of the number of waiting lines.
const MAX_LINES: usize = 1 << 16;

/// Shortest time between two reports of dropped lines.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Pause between writes to a non-blocking target that is full.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// A bounded queue of lines and the thread that writes them. Only that thread waits for the target,
/// and [`flush`](Self::flush) waits for a bounded time.
pub(super) struct LogQueue {
    shared: Arc<Shared>,
    /// Called with the number of lines dropped so far, after each drop.
    count: fn(u64),
}

#[derive(Default)]
struct Shared {
    state: Mutex<QueueState>,
    /// Signals that there are lines to write.
    filled: Condvar,
    /// Signals that all lines are written.
    drained: Condvar,
}

#[derive(Default)]
struct QueueState {
    lines: VecDeque<Vec<u8>>,
    /// Bytes of all lines, including the one that is being written.
    bytes: usize,
    is_writing: bool,
    dropped: u64,
}

impl LogQueue {
    /// Starts the thread that writes to `target`.
    ///
    /// As soon as `target` accepts lines again, `report` is called with the number of lines dropped
    /// since its last call. It may log.
    pub(super) fn start(
        target: impl Write + Send + 'static,
        count: fn(u64),
        report: impl Fn(u64) + Send + 'static,
    ) -> LogQueue {
        let shared = Arc::new(Shared::default());
        let worker = shared.clone();
        let thread = std::thread::Builder::new().name("log".into());
        // If the thread cannot start, the queue fills up and lines are dropped.
        let _ = thread.spawn(move || worker.write_lines(target, count, report));
        LogQueue { shared, count }
    }

    /// Adds a line, or drops and counts it if the queue is full. Never waits for the target.
    pub(super) fn push(&self, line: Vec<u8>) {
        let mut state = self.shared.state();
        if state.lines.len() >= MAX_LINES || line.len() > MAX_BYTES - state.bytes {
            state.dropped += 1;
            let dropped = state.dropped;
            drop(state);
            (self.count)(dropped);
            return;
        }
        state.bytes += line.len();
        state.lines.push_back(line);
        drop(state);
        self.shared.filled.notify_one();
    }

    /// Waits until all lines are written, for at most `limit`.
    pub(super) fn flush(&self, limit: Duration) {
        let state = self.shared.state();
        let is_busy = |state: &mut QueueState| state.is_writing || !state.lines.is_empty();
        let waited = self.shared.drained.wait_timeout_while(state, limit, is_busy);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns the number of lines dropped so far.
    pub(super) fn dropped(&self) -> u64 {
        self.shared.state().dropped
    }
}

/// The next task of the writing thread.
enum Task {
    Write(Vec<u8>),
    /// Report the number of lines dropped so far.
    Report(u64),
}

impl Shared {
    /// Locks the state. A poisoned lock is usable, because each change is complete before anything
    /// can panic.
    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_lines(&self, mut target: impl Write, count: fn(u64), report: impl Fn(u64)) {
        let (mut reported, mut report_at) = (0, Instant::now());
        // A report is written to the same target, so it waits until the target accepts lines.
        let mut takes_lines = false;
        loop {
            match self.next_task(takes_lines.then_some((reported, report_at))) {
                Task::Report(dropped) => {
                    report(dropped - reported);
                    (reported, report_at) = (dropped, Instant::now() + REPORT_INTERVAL);
                }
                Task::Write(line) => {
                    takes_lines = write_whole(&mut target, &line).is_ok();
                    self.finish(line.len(), takes_lines, count);
                }
            }
        }
    }

    /// Waits for a line, or for the time of the next report if more lines were dropped than
    /// `report` says.
    fn next_task(&self, report: Option<(u64, Instant)>) -> Task {
        let mut state = self.state();
        loop {
            let wait = match report {
                Some((reported, at)) if state.dropped > reported => {
                    let wait = at.saturating_duration_since(Instant::now());
                    if wait.is_zero() {
                        return Task::Report(state.dropped);
                    }
                    Some(wait)
                }
                _ => None,
            };
            if let Some(line) = state.lines.pop_front() {
                state.is_writing = true;
                return Task::Write(line);
            }
            state = match wait {
                None => self.filled.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(wait) => self.filled.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }

    /// Records that a line of `bytes` bytes has been written, or could not be written.
    fn finish(&self, bytes: usize, is_written: bool, count: fn(u64)) {
        let mut state = self.state();
        state.is_writing = false;
        state.bytes -= bytes;
        if state.lines.is_empty() {
            self.drained.notify_all();
        }
        if !is_written {
            state.dropped += 1;
            let dropped = state.dropped;
            drop(state);
            count(dropped);
        }
    }
}

/// Writes the whole line. Retries if another process has made the target non-blocking.
fn write_whole(target: &mut impl Write, mut line: &[u8]) -> io::Result<()> {
    while !line.is_empty() {
        match target.write(line) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => line = &line[written..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(RETRY_INTERVAL),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Time after which a test gives up waiting.
    fn deadline() -> Duration {
        millrace_test_patience::patience(Duration::from_secs(60))
    }

    /// A target whose writes block until the test permits them.
    struct GatedTarget {
        permits: Receiver<io::Result<()>>,
        written: Sender<Vec<u8>>,
    }

    impl Write for GatedTarget {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // After the end of the test all writes are permitted.
            self.permits.recv().unwrap_or(Ok(()))?;
            let _ = self.written.send(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Fixture {
        queue: LogQueue,
        permits: Sender<io::Result<()>>,
        written: Receiver<Vec<u8>>,
        reports: Receiver<u64>,
    }

    fn start() -> Fixture {
        let ((permits, permitted), (sent, written), (told, reports)) = (channel(), channel(), channel());
        let report = move |count| told.send(count).unwrap_or_default();
        let queue = LogQueue::start(GatedTarget { permits: permitted, written: sent }, |_| {}, report);
        Fixture { queue, permits, written, reports }
    }

    #[test]
    fn a_blocked_target_holds_up_no_thread_and_bounded_memory() {
        let Fixture { queue, permits, written, reports } = start();
        let line = vec![b'x'; 64 << 10];
        let fit = MAX_BYTES / line.len();
        for _ in 0..fit + 7 {
            queue.push(line.clone());
        }
        // The line that the thread is writing still counts, so exactly seven did not fit.
        assert_eq!(queue.dropped(), 7);
        let since = Instant::now();
        queue.flush(Duration::from_millis(50));
        assert!(since.elapsed() < deadline(), "a flush waits a bounded time");
        assert!(written.try_recv().is_err());
        for _ in 0..fit {
            permits.send(Ok(())).unwrap();
        }
        assert_eq!((0..fit).filter(|_| written.recv_timeout(deadline()).is_ok()).count(), fit);
        assert_eq!(
            reports.recv_timeout(deadline()),
            Ok(7),
            "what was lost is said once lines are taken again"
        );
        queue.push(b"after".to_vec());
        permits.send(Ok(())).unwrap();
        assert_eq!(written.recv_timeout(deadline()).unwrap(), b"after");
    }

    #[test]
    fn lines_are_bounded_in_number_and_each_in_length() {
        let Fixture { queue, permits: _blocked, .. } = start();
        queue.push(vec![0; MAX_BYTES + 1]);
        assert_eq!(queue.dropped(), 1, "longer than the queue");
        (0..MAX_LINES + 10).for_each(|_| queue.push(b"\n".to_vec()));
        let dropped = queue.dropped();
        // The thread may have removed one line by now.
        assert!((10..=11).contains(&dropped), "{dropped}");
    }

    #[test]
    fn a_broken_target_costs_its_lines_and_nothing_else() {
        let Fixture { queue, permits, written, reports } = start();
        for _ in 0..3 {
            permits.send(Err(ErrorKind::BrokenPipe.into())).unwrap();
            queue.push(b"lost".to_vec());
        }
        queue.flush(deadline());
        assert_eq!(queue.dropped(), 3);
        assert!(reports.try_recv().is_err(), "a report would be lost as well");
        for error in [ErrorKind::Interrupted, ErrorKind::WouldBlock] {
            permits.send(Err(error.into())).unwrap();
        }
        permits.send(Ok(())).unwrap();
        queue.push(b"kept".to_vec());
        assert_eq!(written.recv_timeout(deadline()).unwrap(), b"kept");
        assert_eq!(reports.recv_timeout(deadline()), Ok(3));
        assert_eq!(queue.dropped(), 3);
    }
}
