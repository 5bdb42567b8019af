//! Time limits of the tests, and waiting.

use std::path::Path;
use std::time::{Duration, Instant};

use millrace_test_patience::patience;

/// The pause between two checks of a condition.
const POLL: Duration = Duration::from_millis(2);

/// Returns the time after which a test gives up waiting for something that must happen.
///
/// It is never used up when things go right, so it is generous: a machine that is busy with other
/// work fails no test.
pub fn wait_limit() -> Duration {
    patience(Duration::from_secs(180))
}

/// Returns the time without a heartbeat after which the servers of tests count a shard as lost,
/// unless a test says otherwise.
///
/// The default of the flag is 2 s, which a shard on a busy machine may exceed. Tests that stop a
/// shard wait for this time.
pub(crate) fn heartbeat_timeout() -> Duration {
    patience(Duration::from_secs(5))
}

/// Returns a duration as the flags of the server take it, in seconds.
pub fn seconds(duration: Duration) -> String {
    duration.as_secs_f64().to_string()
}

/// Polls until `holds` returns true.
///
/// # Panics
/// After [`wait_limit`], with the text that `log` returns.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool, log: impl Fn() -> String) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < wait_limit(), "timed out waiting until {what}:\n{}", log());
        std::thread::sleep(POLL);
    }
}

/// Waits until these processes have ended. A zombie has ended.
///
/// # Panics
/// After [`wait_limit`].
pub fn wait_for_end_of(pids: &[u32]) {
    wait_until(
        &format!("the processes {pids:?} have ended"),
        || !pids.iter().copied().any(is_running),
        String::new,
    );
}

/// Whether a process exists and is not a zombie.
pub fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    // The state follows the name, which is in parentheses.
    stat.is_ok_and(|stat| !stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['Z', 'X'])))
}
