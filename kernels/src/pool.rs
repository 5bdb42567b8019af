//! A small thread pool for short parallel loops.
//!
//! A forward pass is some hundred loops of tens of microseconds to milliseconds, one after the other. So workers that
//! have run out of work look for the next loop for a moment before they sleep, and a caller never waits for a
//! worker that has not woken up: it closes the loop and goes on.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a thread looks for work, or for the last worker to finish, before it sleeps.
const SPIN: Duration = Duration::from_micros(30);

/// The gate's lowest bits count the workers inside the loop; then one bit says that it is open; the rest is its number.
const OPEN: u64 = 1 << 16;
const INSIDE: u64 = OPEN - 1;
const LOOP: u64 = OPEN << 1;

/// Threads that share the iterations of a loop with the caller.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<Worker>,
    /// Held by the caller whose loop is running.
    turn: Mutex<()>,
}

struct Worker {
    thread: JoinHandle<()>,
    asleep: Arc<AtomicBool>,
}

struct Shared {
    gate: AtomicU64,
    /// The loop; points into the caller's stack and may be read by workers inside the gate only.
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
    /// Takes tasks until none is left.
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

impl Pool {
    /// A pool of `threads` threads, the caller's own among them.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub(crate) fn new(threads: usize) -> std::io::Result<Pool> {
        let shared = Arc::new(Shared {
            gate: AtomicU64::new(0),
            job: AtomicPtr::new(std::ptr::null_mut()),
            stop: AtomicBool::new(false),
        });
        let mut pool = Pool { shared, workers: Vec::new(), turn: Mutex::new(()) };
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

    /// Threads that loops run on.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `body(task, thread)` for every task, on any thread and in any order, and returns when all are done.
    /// `thread` is below [`Pool::threads`] and never in use twice at a time. A panic of a task is passed on.
    ///
    /// `body` must not call `run` of the same pool.
    pub(crate) fn run(&self, tasks: usize, body: impl Fn(usize, usize) + Sync) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
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
            drop(_turn);
            resume_unwind(payload);
        }
    }

    fn open(&self, job: &Job<'_>) {
        self.shared.job.store(std::ptr::from_ref(job).cast_mut().cast(), Relaxed);
        // No worker is inside and the turn is ours: a plain store cannot overwrite anything.
        let number = self.shared.gate.load(Relaxed) / LOOP + 1;
        self.shared.gate.store(number * LOOP + OPEN, SeqCst);
        for worker in &self.workers {
            if worker.asleep.load(SeqCst) {
                worker.thread.thread().unpark();
            }
        }
    }

    /// Lets no further worker in, and waits for those inside: after it nobody looks at the job.
    fn close(&self) {
        self.shared.gate.fetch_and(!OPEN, AcqRel);
        let mut spin = Spin::new();
        while self.shared.gate.load(Acquire) & INSIDE != 0 {
            if !spin.again() {
                thread::park();
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread.thread().unpark();
            // A worker catches the panics of its tasks and has no others.
            let _ = worker.thread.join();
        }
    }
}

impl Shared {
    fn serve(&self, index: usize, asleep: &AtomicBool) {
        let mut last = 0; // the number of the last loop that was looked at
        let mut spin = Spin::new();
        loop {
            if self.stop.load(SeqCst) {
                return;
            }
            let gate = self.gate.load(SeqCst);
            if gate & OPEN != 0 && gate / LOOP != last {
                if self.gate.compare_exchange(gate, gate + 1, AcqRel, Relaxed).is_ok() {
                    last = gate / LOOP;
                    self.take_part(index);
                    spin = Spin::new();
                }
            } else if !spin.again() {
                asleep.store(true, SeqCst);
                // Whoever opens a loop first changes the gate and then looks at `asleep`: one of the two sees the other.
                let gate = self.gate.load(SeqCst);
                if !(self.stop.load(SeqCst) || gate & OPEN != 0 && gate / LOOP != last) {
                    thread::park();
                }
                asleep.store(false, SeqCst);
                spin = Spin::new();
            }
        }
    }

    fn take_part(&self, index: usize) {
        // SAFETY: this thread is counted at the gate, and the caller keeps the job alive until that count is zero.
        let job = unsafe { &*self.job.load(Relaxed) };
        job.work(index);
        let caller = job.caller.clone();
        let before = self.gate.fetch_sub(1, AcqRel);
        if before & (OPEN | INSIDE) == 1 {
            caller.unpark();
        }
    }
}

/// Busy waiting of bounded length.
struct Spin {
    turns: u32,
    since: Option<Instant>,
}

impl Spin {
    fn new() -> Spin {
        Spin { turns: 0, since: None }
    }

    /// Waits for an instant, or returns false when it is time to sleep.
    fn again(&mut self) -> bool {
        self.turns += 1;
        if self.turns.is_multiple_of(64) {
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
            let pool = Pool::new(threads).unwrap();
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
        let pool = Pool::new(3).unwrap();
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
    fn panics_are_passed_on_and_the_pool_lives() {
        let pool = Pool::new(3).unwrap();
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
    fn callers_take_turns() {
        let pool = Pool::new(2).unwrap();
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
