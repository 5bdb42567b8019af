//! The CPU time of a thread. What grammars and tests cost is measured in it, because other threads
//! do not change it.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CPU time that this thread has used.
pub fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // Both numbers are non-negative, and `tv_nsec` is below 10^9.
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
