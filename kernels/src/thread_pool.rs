//! A small thread pool for short parallel loops.
//!
//! A forward pass consists of hundreds of loops, one after the other, that take from tens of
//! microseconds to milliseconds. So a worker without work spins for a moment before it sleeps, to
//! catch the next loop. A caller never waits for a worker that has not woken up: it closes the loop
//! and continues.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a thread spins for work, or for the last worker to finish, before it sleeps.
const SPIN: Duration = Duration::from_micros(30);

/// The gate is one word. Its lowest bits count the workers inside the loop, the next bit tells
/// whether the gate is open, and the rest is the number of the loop.
const OPEN: u64 = 1 << 16;
const INSIDE: u64 = OPEN - 1;
const LOOP: u64 = OPEN << 1;

/// Threads that share the iterations of a loop with the caller.
pub(crate) struct ThreadPool {
    shared: Arc<PoolState>,
    workers: Vec<Worker>,
    /// Held by the caller whose loop is running.
    running: Mutex<()>,
}

struct Worker {
    thread: JoinHandle<()>,
    asleep: Arc<AtomicBool>,
}

struct PoolState {
    gate: AtomicU64,
    /// The running loop. It points into the caller's stack; only workers inside the gate may read
    /// it.
    job: AtomicPtr<Job<'static>>,
    stop: AtomicBool,
}

struct Job<'a> {
    body: &'a (dyn Fn(usize, usize) + Sync),
    tasks: usize,
    next: AtomicUsize,
    caller: Thread,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Job<'_> {
    /// Runs tasks until none is left.
    fn work(&self, thread: usize) {
        let result = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let task = self.next.fetch_add(1, Relaxed);
                if task >= self.tasks {
                    return;
                }
                (self.body)(task, thread);
            }
        }));
        if let Err(payload) = result {
            self.next.store(self.tasks, Relaxed);
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
        }
    }
}

impl ThreadPool {
    /// Creates a pool of `threads` threads, including the caller's own.
    ///
    /// # Errors
    /// If the system refuses to start a thread.
    pub(crate) fn new(threads: usize) -> std::io::Result<ThreadPool> {
        let shared = Arc::new(PoolState {
            gate: AtomicU64::new(0),
            job: AtomicPtr::new(std::ptr::null_mut()),
            stop: AtomicBool::new(false),
        });
        let mut pool = ThreadPool { shared, workers: Vec::new(), running: Mutex::new(()) };
        for index in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let asleep = Arc::new(AtomicBool::new(false));
            let flag = Arc::clone(&asleep);
            let thread = thread::Builder::new()
                .name(format!("kernels-{index}"))
                .spawn(move || shared.serve(index, &flag))?;
            pool.workers.push(Worker { thread, asleep });
        }
        Ok(pool)
    }

    /// The number of threads that loops run on.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `body(task, thread)` for every task, on any thread and in any order, and returns when
    /// all are done. `thread` is below [`ThreadPool::threads`] and never used twice at the same
    /// time. If a task panics, this call panics.
    ///
    /// `body` must not call `run` of the same pool.
    pub(crate) fn run(&self, tasks: usize, body: impl Fn(usize, usize) + Sync) {
        let _running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if tasks <= 1 || self.workers.is_empty() {
            (0..tasks).for_each(|task| body(task, 0));
            return;
        }
        let job = Job {
            body: &body,
            tasks,
            next: AtomicUsize::new(0),
            caller: thread::current(),
            panic: Mutex::new(None),
        };
        self.open(&job);
        job.work(0);
        self.close();
        let panic = job.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(payload) = panic {
            drop(_running);
            resume_unwind(payload);
        }
    }

    fn open(&self, job: &Job<'_>) {
        self.shared.job.store(std::ptr::from_ref(job).cast_mut().cast(), Relaxed);
        // No worker is inside, and the caller holds `running`, so a plain store overwrites nothing.
        let number = self.shared.gate.load(Relaxed) / LOOP + 1;
        self.shared.gate.store(number * LOOP + OPEN, SeqCst);
        for worker in &self.workers {
            if worker.asleep.load(SeqCst) {
                worker.thread.thread().unpark();
            }
        }
    }

    /// Lets no further worker in and waits for those inside. After that nothing reads the job.
    fn close(&self) {
        self.shared.gate.fetch_and(!OPEN, AcqRel);
        let mut spin = Spin::new();
        while self.shared.gate.load(Acquire) & INSIDE != 0 {
            if !spin.spin() {
                thread::park();
            }
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread.thread().unpark();
            // A worker catches the panics of its tasks and does not panic itself.
            let _ = worker.thread.join();
        }
    }
}

impl PoolState {
    fn serve(&self, index: usize, asleep: &AtomicBool) {
        let mut last = 0; // the number of the last loop that this worker joined
        let mut spin = Spin::new();
        loop {
            if self.stop.load(SeqCst) {
                return;
            }
            let gate = self.gate.load(SeqCst);
            if gate & OPEN != 0 && gate / LOOP != last {
                if self.gate.compare_exchange(gate, gate + 1, AcqRel, Relaxed).is_ok() {
                    last = gate / LOOP;
                    self.join_loop(index);
                    spin = Spin::new();
                }
            } else if !spin.spin() {
                asleep.store(true, SeqCst);
                // A caller that opens a loop first changes the gate and then reads `asleep`. This
                // order ensures that at least one of the two threads sees the other's store.
                let gate = self.gate.load(SeqCst);
                if !(self.stop.load(SeqCst) || gate & OPEN != 0 && gate / LOOP != last) {
                    thread::park();
                }
                asleep.store(false, SeqCst);
                spin = Spin::new();
            }
        }
    }

    fn join_loop(&self, index: usize) {
        // SAFETY: the gate counts this thread, and the caller keeps the job alive until that count
        // is zero.
        let job = unsafe { &*self.job.load(Relaxed) };
        job.work(index);
        let caller = job.caller.clone();
        let before = self.gate.fetch_sub(1, AcqRel);
        if before & (OPEN | INSIDE) == 1 {
            caller.unpark();
        }
    }
}

/// Busy waiting for a limited time.
struct Spin {
    rounds: u32,
    since: Option<Instant>,
}

impl Spin {
    fn new() -> Spin {
        Spin { rounds: 0, since: None }
    }

    /// Spins once. Returns false when it is time to sleep.
    fn spin(&mut self) -> bool {
        self.rounds += 1;
        if self.rounds.is_multiple_of(64) {
            let since = *self.since.get_or_insert_with(Instant::now);
            return since.elapsed() < SPIN;
        }
        std::hint::spin_loop();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn every_task_runs_once() {
        for threads in 1..5 {
            let pool = ThreadPool::new(threads).unwrap();
            for tasks in [0, 1, 2, 3, 100, 1000] {
                let counts: Vec<AtomicU32> = (0..tasks).map(|_| AtomicU32::new(0)).collect();
                for _ in 0..20 {
                    pool.run(tasks, |task, thread| {
                        assert!(thread < threads);
                        counts[task].fetch_add(1, Relaxed);
                    });
                }
                assert!(counts.iter().all(|c| c.load(Relaxed) == 20));
            }
        }
    }

    #[test]
    fn sleeping_workers_wake_up() {
        let pool = ThreadPool::new(3).unwrap();
        for _ in 0..5 {
            thread::sleep(Duration::from_millis(2));
            let sum = AtomicUsize::new(0);
            pool.run(50, |task, _| {
                sum.fetch_add(task, Relaxed);
                thread::sleep(Duration::from_micros(50));
            });
            assert_eq!(sum.into_inner(), 49 * 25);
        }
        assert!(pool.workers.iter().all(|w| !w.thread.is_finished()));
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_still_works() {
        let pool = ThreadPool::new(3).unwrap();
        for _ in 0..10 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(100, |task, _| assert!(task != 57, "task {task} fails"));
            }));
            let payload = result.unwrap_err();
            assert_eq!(payload.downcast_ref::<String>().map(String::as_str), Some("task 57 fails"));
            let count = AtomicUsize::new(0);
            pool.run(10, |_, _| {
                count.fetch_add(1, Relaxed);
            });
            assert_eq!(count.into_inner(), 10);
        }
    }

    #[test]
    fn concurrent_callers_run_one_after_the_other() {
        let pool = ThreadPool::new(2).unwrap();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let sum = AtomicUsize::new(0);
                        pool.run(8, |task, _| {
                            sum.fetch_add(task, Relaxed);
                        });
                        assert_eq!(sum.into_inner(), 28);
                    }
                });
            }
        });
    }
}
