//! A small thread pool for short parallel loops.
//!
//! A forward pass consists of hundreds of loops, one after the other, that take from tens of
//! microseconds to milliseconds. So a worker without work spins for a moment before it sleeps, to
//! catch the next loop. A caller never waits for a worker that has not woken up: it closes the loop
//! and continues.
//!
//! Each thread begins with a range of neighboring tasks of its own, and steals from the others when
//! it is done. So the thread that writes a piece of memory in one loop usually reads it in the next
//! one, and the pages of that piece are on its own NUMA node.

use std::any::Any;
use std::ops::Range;
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
pub struct ThreadPool {
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
    /// The tasks of the running loop that nobody has begun, one range for each thread.
    ranges: Box<[TaskRange]>,
    /// The running loop. It points into the caller's stack; only workers inside the gate may read
    /// it.
    job: AtomicPtr<Job<'static>>,
    stop: AtomicBool,
}

struct Job<'a> {
    body: &'a (dyn Fn(usize, usize) + Sync),
    caller: Thread,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// Tasks that nobody has begun. Ranges are apart in memory, because each thread changes its own
/// one all the time: neighbors would invalidate one another's cache lines.
#[repr(align(128))]
#[derive(Default)]
struct TaskRange {
    next: AtomicUsize,
    end: AtomicUsize,
}

impl TaskRange {
    fn set(&self, tasks: Range<usize>) {
        self.next.store(tasks.start, Relaxed);
        self.end.store(tasks.end, Relaxed);
    }

    /// Returns a task that nobody else gets.
    fn take(&self) -> Option<usize> {
        let task = self.next.fetch_add(1, Relaxed);
        (task < self.end.load(Relaxed)).then_some(task)
    }
}

impl ThreadPool {
    /// Creates a pool of `threads` threads, including the caller's own.
    ///
    /// # Errors
    /// If the system refuses to start a thread.
    pub fn new(threads: usize) -> std::io::Result<ThreadPool> {
        ThreadPool::on_cores(threads, &[])
    }

    /// As [`ThreadPool::new`], with each thread bound to the core of its number. Threads for which
    /// `cores` has no entry, or whose core the system refuses, run anywhere.
    ///
    /// # Errors
    /// As [`ThreadPool::new`].
    pub fn on_cores(threads: usize, cores: &[usize]) -> std::io::Result<ThreadPool> {
        let shared = Arc::new(PoolState {
            gate: AtomicU64::new(0),
            ranges: (0..threads).map(|_| TaskRange::default()).collect(),
            job: AtomicPtr::new(std::ptr::null_mut()),
            stop: AtomicBool::new(false),
        });
        let mut pool = ThreadPool { shared, workers: Vec::new(), running: Mutex::new(()) };
        for index in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let asleep = Arc::new(AtomicBool::new(false));
            let flag = Arc::clone(&asleep);
            let core = cores.get(index).copied();
            let thread = thread::Builder::new().name(format!("kernels-{index}")).spawn(move || {
                bind(core);
                shared.serve(index, &flag);
            })?;
            pool.workers.push(Worker { thread, asleep });
        }
        // The caller's thread is bound last, because threads inherit the binding of their creator.
        bind(cores.first().copied());
        Ok(pool)
    }

    /// The number of threads that loops run on.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `body(task, thread)` for every task, on any thread and in any order, and returns when
    /// all are done. `thread` is below [`ThreadPool::threads`] and never used twice at the same
    /// time. If a task panics, this call panics.
    ///
    /// Thread `t` of `n` begins with the tasks from `tasks * t / n` on, so that loops over the same
    /// memory use it on the same threads.
    ///
    /// `body` must not call the same pool.
    pub fn run(&self, tasks: usize, body: impl Fn(usize, usize) + Sync) {
        let threads = self.threads();
        self.run_ranges(tasks, |thread| tasks * thread / threads..tasks * (thread + 1) / threads, body);
    }

    /// As [`ThreadPool::run`], but tasks begin in ascending order: each thread takes the next one.
    pub fn run_in_order(&self, tasks: usize, body: impl Fn(usize, usize) + Sync) {
        self.run_ranges(tasks, |thread| if thread == 0 { 0..tasks } else { 0..0 }, body);
    }

    fn run_ranges(
        &self,
        tasks: usize,
        range: impl Fn(usize) -> Range<usize>,
        body: impl Fn(usize, usize) + Sync,
    ) {
        let _running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if tasks <= 1 || self.workers.is_empty() {
            (0..tasks).for_each(|task| body(task, 0));
            return;
        }
        let job = Job { body: &body, caller: thread::current(), panic: Mutex::new(None) };
        // No worker is inside the gate, so nobody reads the ranges now. Opening it publishes them.
        for (thread, tasks) in self.shared.ranges.iter().enumerate() {
            tasks.set(range(thread));
        }
        self.open(&job);
        self.shared.work(&job, 0);
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

    /// Runs tasks until none is left: first those of the thread's own range, then those of others.
    fn work(&self, job: &Job<'_>, thread: usize) {
        let (before, own_and_after) = self.ranges.split_at(thread);
        let result = catch_unwind(AssertUnwindSafe(|| {
            for range in own_and_after.iter().chain(before) {
                while let Some(task) = range.take() {
                    (job.body)(task, thread);
                }
            }
        }));
        if let Err(payload) = result {
            self.ranges.iter().for_each(|range| range.end.store(0, Relaxed));
            job.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
        }
    }

    fn join_loop(&self, index: usize) {
        // SAFETY: the gate counts this thread, and the caller keeps the job alive until that count
        // is zero.
        let job = unsafe { &*self.job.load(Relaxed) };
        self.work(job, index);
        let caller = job.caller.clone();
        let before = self.gate.fetch_sub(1, AcqRel);
        if before & (OPEN | INSIDE) == 1 {
            caller.unpark();
        }
    }
}

/// Binds this thread to a core, if there is one and the system allows it.
#[cfg(target_os = "linux")]
fn bind(core: Option<usize>) {
    let Some(core) = core.filter(|core| *core < libc::CPU_SETSIZE as usize) else { return };
    // SAFETY: the set is plain bits and has a bit for this core; the call only reads it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}

#[cfg(not(target_os = "linux"))]
fn bind(_core: Option<usize>) {}

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
    fn tasks_begin_in_order_if_asked_for() {
        let pool = ThreadPool::new(3).unwrap();
        let (order, counts) = (Mutex::new(Vec::new()), [const { AtomicU32::new(0) }; 40]);
        pool.run_in_order(40, |task, thread| {
            counts[task].fetch_add(1, Relaxed);
            order.lock().unwrap().push((thread, task));
        });
        assert!(counts.iter().all(|count| count.load(Relaxed) == 1));
        for thread in 0..3 {
            let order = order.lock().unwrap();
            assert!(order.iter().filter(|entry| entry.0 == thread).is_sorted());
        }
    }

    /// Both tasks wait for each other, so that no thread can take both.
    #[test]
    fn a_thread_begins_with_its_own_tasks() {
        let pool = ThreadPool::new(2).unwrap();
        for _ in 0..50 {
            let both = std::sync::Barrier::new(2);
            pool.run(2, |task, thread| {
                both.wait();
                assert_eq!(task, thread);
            });
        }
    }

    /// The first task lasts until all others are done, those of its own range included.
    #[test]
    fn a_thread_without_tasks_steals_those_of_others() {
        let pool = ThreadPool::new(2).unwrap();
        let (done, stolen) = (AtomicUsize::new(0), AtomicUsize::new(0));
        pool.run(20, |task, thread| {
            if task == 0 {
                while done.load(Relaxed) < 19 {
                    thread::yield_now();
                }
            } else {
                stolen.fetch_add(usize::from(task < 10 && thread == 1), Relaxed);
                done.fetch_add(1, Relaxed);
            }
        });
        // Either the caller runs task 0, and the worker steals the rest of the caller's tasks; or
        // the worker steals task 0 from a slow caller, who runs the rest.
        assert!(matches!(stolen.into_inner(), 9 | 0));
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
