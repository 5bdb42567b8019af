//! Which token is worked for next, and by which thread: light requests do not wait for heavy ones.
//!
//! Each request has an account of the CPU time that its masks have taken. A job has a deadline that is the later
//! the more its request usually costs, and the earliest deadline goes first. So a light request overtakes heavy
//! ones, and a heavy one still has its turn. Besides, one thread serves light requests only, so that
//! heavy ones can never occupy all threads.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A request whose masks cost more CPU time than this on average is heavy.
const HEAVY: Duration = Duration::from_millis(4);
/// How much later the deadline of a job is for each unit of time that it is expected to cost.
const SLACK: u32 = 8;

/// CPU time that a request may have taken before its first token counts.
const ALLOWED_AT_ONCE: Duration = Duration::from_secs(2);
/// CPU time that each generated token adds to what a request may have taken.
const ALLOWED_PER_TOKEN: Duration = Duration::from_millis(10);
/// CPU time that no request may exceed, however many tokens it generates.
const ALLOWED_AT_MOST: Duration = Duration::from_secs(60);

/// The CPU time that a request's masks have taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Account {
    spent: Duration,
    /// What a mask costs, as an average in which the last ones count most.
    cost: Duration,
}

impl Account {
    /// The account of a request that has taken nothing, and whose masks are expected to cost this much.
    pub(super) fn new(expected_cost: Duration) -> Self {
        Account { spent: Duration::ZERO, cost: expected_cost }
    }

    pub(super) fn is_heavy(&self) -> bool {
        self.cost > HEAVY
    }

    /// Adds the mask after the token number `generated`.
    ///
    /// # Errors
    /// Why the request has to end: it has taken more than it may.
    pub(super) fn charge(&mut self, cost: Duration, generated: usize) -> Result<(), String> {
        self.spent += cost;
        self.cost = match cost > self.cost {
            true => (self.cost + cost) / 2,
            false => (self.cost * 3 + cost) / 4,
        };
        let tokens = u32::try_from(generated).unwrap_or(u32::MAX);
        let allowed = ALLOWED_AT_ONCE.saturating_add(ALLOWED_PER_TOKEN.saturating_mul(tokens));
        if self.spent > allowed.min(ALLOWED_AT_MOST) {
            return Err(format!(
                "grammar is too complex: its masks took {:.1} s of CPU time for {generated} tokens",
                self.spent.as_secs_f64()
            ));
        }
        Ok(())
    }
}

/// What a thread works for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Worker {
    /// Light requests only.
    Light,
    /// Light requests, and heavy ones if there is nothing else.
    Any,
    /// Heavy requests only, at a lower priority.
    Heavy,
}

/// Jobs that wait, each with the account of its request.
pub(super) struct Queue<J> {
    state: Mutex<State<J>>,
    /// A job came, for a thread of the kind `Light` or `Any`.
    came: Condvar,
    /// A heavy job came.
    heavy_came: Condvar,
}

struct State<J> {
    light: BTreeMap<(Instant, u64), J>,
    heavy: BTreeMap<(Instant, u64), J>,
    /// Distinguishes jobs with the same deadline.
    count: u64,
    /// Whether the thread for heavy jobs waits.
    heavy_waits: bool,
    closed: bool,
}

impl<J> Queue<J> {
    pub(super) fn new() -> Self {
        let (light, heavy) = (BTreeMap::new(), BTreeMap::new());
        let state = State { light, heavy, count: 0, heavy_waits: false, closed: false };
        Queue { state: Mutex::new(state), came: Condvar::new(), heavy_came: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a job of a request with this account.
    pub(super) fn push(&self, job: J, account: &Account) {
        self.push_at(Instant::now(), job, account);
    }

    fn push_at(&self, now: Instant, job: J, account: &Account) {
        let mut state = self.state();
        state.count += 1;
        let key = (now + account.cost * SLACK, state.count);
        if !account.is_heavy() {
            state.light.insert(key, job);
            self.came.notify_one();
            return;
        }
        state.heavy.insert(key, job);
        match std::mem::take(&mut state.heavy_waits) {
            true => self.heavy_came.notify_one(),
            false => self.came.notify_one(),
        }
    }

    /// The next job for such a thread; waits until there is one. Nothing once the queue is closed.
    pub(super) fn pop(&self, worker: Worker) -> Option<J> {
        let mut state = self.state();
        loop {
            if state.closed {
                return None;
            }
            let job = match worker {
                Worker::Light => state.light.pop_first(),
                Worker::Any if state.light.is_empty() => state.heavy.pop_first(),
                Worker::Any => state.light.pop_first(),
                Worker::Heavy => state.heavy.pop_first(),
            };
            if let Some((_, job)) = job {
                return Some(job);
            }
            state = match worker {
                Worker::Heavy => {
                    state.heavy_waits = true;
                    self.heavy_came.wait(state)
                }
                Worker::Light | Worker::Any => {
                    // This one may have been woken for a job that only another kind takes.
                    if !state.heavy.is_empty() {
                        self.came.notify_one();
                    }
                    self.came.wait(state)
                }
            }
            .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends all threads that wait, and gives up the jobs.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let jobs = (std::mem::take(&mut state.light), std::mem::take(&mut state.heavy));
        drop(state);
        self.came.notify_all();
        self.heavy_came.notify_all();
        drop(jobs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_ends_what_takes_too_much() {
        let mut light = Account::new(Duration::ZERO);
        for token in 1..5000 {
            assert_eq!(light.charge(Duration::from_millis(1), token), Ok(()));
        }
        assert!(!light.is_heavy());
        let mut heavy = Account::new(Duration::ZERO);
        let ended = (1..).find(|&token| heavy.charge(Duration::from_millis(60), token).is_err());
        assert_eq!(ended, Some(41));
        assert!(heavy.is_heavy());
        let mut steady = Account::new(Duration::ZERO);
        let ended = (1..).find(|&token| steady.charge(Duration::from_millis(9), token).is_err());
        assert_eq!(ended.map(|token| token * 9), Some(60_003));
    }

    #[test]
    fn a_request_is_heavy_as_long_as_its_masks_are() {
        let mut account = Account::new(Duration::from_millis(10));
        assert!(account.is_heavy());
        for token in 1..10 {
            account.charge(Duration::ZERO, token).unwrap();
        }
        assert!(!account.is_heavy());
        account.charge(Duration::from_millis(50), 10).unwrap();
        assert!(account.is_heavy());
    }

    #[test]
    fn light_jobs_overtake_heavy_ones_and_heavy_ones_have_their_turn() {
        let queue = Queue::new();
        let (now, account) = (Instant::now(), |millis| Account::new(Duration::from_millis(millis)));
        for (name, millis) in [("heavy", 100), ("less heavy", 50), ("light", 1), ("lightest", 0)] {
            queue.push_at(now, name, &account(millis));
        }
        let popped = [Worker::Light, Worker::Any, Worker::Any, Worker::Heavy].map(|worker| queue.pop(worker));
        assert_eq!(popped, ["lightest", "light", "less heavy", "heavy"].map(Some));
        // A job that waits has its turn before those that came long after it.
        queue.push_at(now, "heavy", &account(10));
        queue.push_at(now + Duration::from_millis(100), "later", &account(5));
        assert_eq!(queue.pop(Worker::Any), Some("heavy"));
        queue.close();
        assert_eq!(queue.pop(Worker::Any), None);
    }

    #[test]
    fn no_job_is_left_behind() {
        let queue = Queue::new();
        let (done, results) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            for worker in [Worker::Light, Worker::Any, Worker::Any, Worker::Heavy] {
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
                    queue.push(millis, &Account::new(Duration::from_millis(millis)));
                }
                jobs.iter().all(|_| results.recv_timeout(Duration::from_secs(30)).is_ok())
            });
            queue.close();
            assert!(done, "a job was left behind");
        });
    }
}
