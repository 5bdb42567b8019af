//! The queue of mask jobs, in which light requests do not wait for heavy ones.
//!
//! Each request has an account of the CPU time that its masks have used. The deadline of a job is
//! later the more the masks of its request usually cost, and the job with the earliest deadline
//! runs first. A light request therefore overtakes heavy ones, and a heavy request still gets its
//! turn. Besides, one thread serves light requests only, so heavy requests can never occupy all
//! threads.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Average CPU time of a mask above which a request is heavy.
const HEAVY: Duration = Duration::from_millis(4);
/// Ratio of the time until a job's deadline to its expected CPU time.
const SLACK: u32 = 8;

/// CPU time that every request may use.
const ALLOWED_AT_ONCE: Duration = Duration::from_secs(2);
/// CPU time that a request may use in addition for each generated token.
const ALLOWED_PER_TOKEN: Duration = Duration::from_millis(10);
/// Maximum CPU time of a request, however many tokens it generates.
const MAX_ALLOWED: Duration = Duration::from_secs(60);

/// The CPU time that the masks of a request have used.
#[derive(Debug, Clone, Copy)]
pub(super) struct CpuAccount {
    spent: Duration,
    /// Moving average of the CPU time of a mask.
    cost: Duration,
}

impl CpuAccount {
    /// The account of a new request whose masks are expected to cost this much.
    pub(super) fn new(expected_cost: Duration) -> Self {
        CpuAccount { spent: Duration::ZERO, cost: expected_cost }
    }

    pub(super) fn is_heavy(&self) -> bool {
        self.cost > HEAVY
    }

    /// Adds the cost of the mask after token number `generated`.
    ///
    /// # Errors
    /// A message for the client if the request has used more CPU time than it may.
    pub(super) fn charge(&mut self, cost: Duration, generated: usize) -> Result<(), String> {
        self.spent += cost;
        self.cost = match cost > self.cost {
            true => (self.cost + cost) / 2,
            false => (self.cost * 3 + cost) / 4,
        };
        let tokens = u32::try_from(generated).unwrap_or(u32::MAX);
        let allowed = ALLOWED_AT_ONCE.saturating_add(ALLOWED_PER_TOKEN.saturating_mul(tokens));
        if self.spent > allowed.min(MAX_ALLOWED) {
            return Err(format!(
                "grammar is too complex: its masks took {:.1} s of CPU time for {generated} tokens",
                self.spent.as_secs_f64()
            ));
        }
        Ok(())
    }
}

/// The jobs that a thread takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkerKind {
    /// Jobs of light requests only.
    Light,
    /// Jobs of light requests, and of heavy ones if there are no others.
    Any,
    /// Jobs of heavy requests only, at a lower priority.
    Heavy,
}

/// The queue of jobs.
pub(super) struct MaskQueue<J> {
    state: Mutex<QueueState<J>>,
    /// Wakes a thread of the kind `Light` or `Any`.
    job_added: Condvar,
    /// Wakes the thread of the kind `Heavy`.
    heavy_job_added: Condvar,
}

struct QueueState<J> {
    light: BTreeMap<(Instant, u64), J>,
    heavy: BTreeMap<(Instant, u64), J>,
    /// Number of jobs so far. It distinguishes jobs with the same deadline.
    count: u64,
    /// Whether the thread for heavy jobs is idle.
    heavy_waits: bool,
    closed: bool,
}

impl<J> MaskQueue<J> {
    pub(super) fn new() -> Self {
        let (light, heavy) = (BTreeMap::new(), BTreeMap::new());
        let state = QueueState { light, heavy, count: 0, heavy_waits: false, closed: false };
        MaskQueue { state: Mutex::new(state), job_added: Condvar::new(), heavy_job_added: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, QueueState<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a job for a request with this account.
    pub(super) fn push(&self, job: J, account: &CpuAccount) {
        self.push_at(Instant::now(), job, account);
    }

    fn push_at(&self, now: Instant, job: J, account: &CpuAccount) {
        let mut state = self.state();
        state.count += 1;
        let key = (now + account.cost * SLACK, state.count);
        if !account.is_heavy() {
            state.light.insert(key, job);
            self.job_added.notify_one();
            return;
        }
        state.heavy.insert(key, job);
        match std::mem::take(&mut state.heavy_waits) {
            true => self.heavy_job_added.notify_one(),
            false => self.job_added.notify_one(),
        }
    }

    /// Waits for the next job for a thread of this kind. Returns `None` when the queue has been
    /// closed.
    pub(super) fn pop(&self, worker: WorkerKind) -> Option<J> {
        let mut state = self.state();
        loop {
            if state.closed {
                return None;
            }
            let job = match worker {
                WorkerKind::Light => state.light.pop_first(),
                WorkerKind::Any if state.light.is_empty() => state.heavy.pop_first(),
                WorkerKind::Any => state.light.pop_first(),
                WorkerKind::Heavy => state.heavy.pop_first(),
            };
            if let Some((_, job)) = job {
                return Some(job);
            }
            state = match worker {
                WorkerKind::Heavy => {
                    state.heavy_waits = true;
                    self.heavy_job_added.wait(state)
                }
                WorkerKind::Light | WorkerKind::Any => {
                    // This thread may have been woken for a job that only another kind takes.
                    if !state.heavy.is_empty() {
                        self.job_added.notify_one();
                    }
                    self.job_added.wait(state)
                }
            }
            .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends all waiting threads and drops the jobs.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let jobs = (std::mem::take(&mut state.light), std::mem::take(&mut state.heavy));
        drop(state);
        self.job_added.notify_all();
        self.heavy_job_added.notify_all();
        drop(jobs);
    }
}

#[cfg(test)]
mod tests {
    use millrace_test_patience::patience;

    use super::*;

    #[test]
    fn a_request_that_uses_too_much_cpu_time_fails() {
        let mut light = CpuAccount::new(Duration::ZERO);
        for token in 1..5000 {
            assert_eq!(light.charge(Duration::from_millis(1), token), Ok(()));
        }
        assert!(!light.is_heavy());
        let mut heavy = CpuAccount::new(Duration::ZERO);
        let ended = (1..).find(|&token| heavy.charge(Duration::from_millis(60), token).is_err());
        assert_eq!(ended, Some(41));
        assert!(heavy.is_heavy());
        let mut steady = CpuAccount::new(Duration::ZERO);
        let ended = (1..).find(|&token| steady.charge(Duration::from_millis(9), token).is_err());
        assert_eq!(ended.map(|token| token * 9), Some(60_003));
    }

    #[test]
    fn a_request_is_heavy_while_its_masks_are_expensive() {
        let mut account = CpuAccount::new(Duration::from_millis(10));
        assert!(account.is_heavy());
        for token in 1..10 {
            account.charge(Duration::ZERO, token).unwrap();
        }
        assert!(!account.is_heavy());
        account.charge(Duration::from_millis(50), 10).unwrap();
        assert!(account.is_heavy());
    }

    #[test]
    fn light_jobs_overtake_heavy_ones_and_heavy_ones_get_their_turn() {
        let queue = MaskQueue::new();
        let (now, account) = (Instant::now(), |millis| CpuAccount::new(Duration::from_millis(millis)));
        for (name, millis) in [("heavy", 100), ("less heavy", 50), ("light", 1), ("lightest", 0)] {
            queue.push_at(now, name, &account(millis));
        }
        let popped = [WorkerKind::Light, WorkerKind::Any, WorkerKind::Any, WorkerKind::Heavy]
            .map(|worker| queue.pop(worker));
        assert_eq!(popped, ["lightest", "light", "less heavy", "heavy"].map(Some));
        // A job gets its turn before jobs that were added long after it.
        queue.push_at(now, "heavy", &account(10));
        queue.push_at(now + Duration::from_millis(100), "later", &account(5));
        assert_eq!(queue.pop(WorkerKind::Any), Some("heavy"));
        queue.close();
        assert_eq!(queue.pop(WorkerKind::Any), None);
    }

    #[test]
    fn no_job_is_left_behind() {
        let queue = MaskQueue::new();
        let (done, results) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            for worker in [WorkerKind::Light, WorkerKind::Any, WorkerKind::Any, WorkerKind::Heavy] {
                let (queue, done) = (&queue, done.clone());
                scope.spawn(move || {
                    while let Some(number) = queue.pop(worker) {
                        done.send(number).unwrap();
                    }
                });
            }
            let done = (0..2000).all(|round| {
                let jobs = if round % 3 == 0 { vec![0, 100] } else { vec![100] };
                for &millis in &jobs {
                    queue.push(millis, &CpuAccount::new(Duration::from_millis(millis)));
                }
                jobs.iter().all(|_| results.recv_timeout(patience(Duration::from_secs(30))).is_ok())
            });
            queue.close();
            assert!(done, "a job was left behind");
        });
    }
}
