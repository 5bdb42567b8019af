//! Checks that the cost of untrusted input is proportional to its size. The targets of
//! `millrace_router::fuzz::cost` run on inputs that double, and the test measures the CPU time of
//! the process and the memory that it allocates.
//!
//! | variable | effect |
//! |---|---|
//! | none | the test tries the same inputs each time, for some seconds |
//! | `MILLRACE_COST_SECONDS` | the test tries longer inputs, and random ones until the time is over |
//! | `MILLRACE_COST_SEED` | with seconds, the number from which random inputs are taken; else the one input to try |
//! | `MILLRACE_COST_TARGET` | only targets are tried whose names contain this text |
//!
//! The CPU time of the whole process is measured, so that work on other threads counts and the load
//! of the machine does not. Therefore the tests of this file run one after the other.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use millrace_router::fuzz::cost::{CostLimits, CostTarget, Work, targets};

/// Counts the bytes that are requested from the system's allocator.
struct Counting;

static ALLOCATED: AtomicU64 = AtomicU64::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: all calls are passed to the system's allocator with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller fulfills the requirements of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller fulfills the requirements of `System`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // The old content may be copied, so the whole new size counts.
        ALLOCATED.fetch_add(size as u64, Ordering::Relaxed);
        // SAFETY: the caller fulfills the requirements of `System`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Held by each test while it measures.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The length of the shortest input, whose cost is the fixed cost of the work.
const TINY: usize = 64;
/// The length of the first input whose growth counts. Each further input is twice as long.
const FIRST: usize = 1024;
/// The factor by which the cost may grow when the input doubles: 2, with slack for logarithms and
/// caches.
const GROWTH: f64 = 2.6;
/// Growth is ignored below this CPU time, in which interruptions would be visible, and below the
/// corresponding number of bytes.
const FLOOR_NANOSECONDS: u64 = 1_000_000;
const FLOOR_BYTES: u64 = 4 << 20;
/// The number of bytes that may be allocated for each byte of input, and for the work itself.
const MAX_BYTES_PER_BYTE: u64 = 20_000;
const MAX_BYTES: u64 = 256 << 20;
/// The number of bytes that work may allocate that limits of its own end.
const MAX_LIMITED_BYTES: u64 = 1 << 30;
/// The number of additional measurements of a suspicious cost. The least one counts.
const CONFIRMATIONS: u32 = 12;
/// The pause before the second of them. It grows by itself with each further one, so that a time in
/// which other processes slow down this one is waited out.
const PAUSE: Duration = Duration::from_millis(20);
/// The factor on the budgets, which are meant for release builds.
const SLOWER: u64 = if cfg!(debug_assertions) { 12 } else { 1 };

/// How far inputs are doubled.
#[derive(Clone, Copy)]
struct Reach {
    /// The maximum length of an input in bytes.
    longest: usize,
    /// An input that costs more is not doubled again, unless its cost seems to grow too fast.
    enough: Duration,
    /// The number of random patterns for each target.
    random: u64,
}

/// Used in each test run.
const SHORT: Reach = Reach { longest: 16 << 10, enough: Duration::from_millis(6), random: 6 };
/// The factor on the time for a cost that seems to grow too fast.
const SUSPICION: u32 = 8;
/// Used with `MILLRACE_COST_SECONDS` and in replays.
const LONG: Reach = Reach { longest: 256 << 10, enough: Duration::from_millis(60), random: u64::MAX };

/// The cost of a piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cost {
    /// The length of the input.
    bytes: usize,
    nanoseconds: u64,
    allocated: u64,
}

impl Cost {
    fn least(self, other: Cost) -> Cost {
        Cost {
            bytes: self.bytes,
            nanoseconds: self.nanoseconds.min(other.nanoseconds),
            allocated: self.allocated.min(other.allocated),
        }
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.nanoseconds as f64 / 1e6;
        write!(f, "{} bytes: {ms:.3} ms, {} bytes allocated", self.bytes, self.allocated)
    }
}

fn cpu_nanoseconds() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn measure(bytes: usize, work: Work) -> Cost {
    let (allocated, begin) = (ALLOCATED.load(Ordering::Relaxed), cpu_nanoseconds());
    work();
    let nanoseconds = cpu_nanoseconds() - begin;
    Cost { bytes, nanoseconds, allocated: ALLOCATED.load(Ordering::Relaxed) - allocated }
}

/// Returns the cost above that of a tiny input.
fn above(tiny: &Cost, each: &Cost, cost: fn(&Cost) -> u64) -> f64 {
    (cost(each) as f64 - cost(tiny) as f64).max(1.0)
}

/// The costs of work: first on a tiny input, then on inputs that double.
#[derive(Default)]
struct Costs(Vec<Cost>);

impl Costs {
    /// Returns the factors of the last two doublings, without the fixed cost.
    fn growth(&self, cost: fn(&Cost) -> u64) -> Option<[f64; 2]> {
        let [tiny, .., first, second, third] = &self.0[..] else { return None };
        let [first, second, third] = [first, second, third].map(|each| above(tiny, each, cost));
        Some([second / first, third / second])
    }

    /// Describes which limit the last costs exceed; `None` if they exceed none.
    fn complaint(&self, limits: CostLimits) -> Option<String> {
        let last = self.0.last()?;
        let bytes = last.bytes as u64;
        let (budget, allowance) = (limits.budget * SLOWER, limits.allowance * SLOWER);
        if last.nanoseconds > FLOOR_NANOSECONDS.max(bytes * budget) {
            let each = last.nanoseconds / bytes;
            return Some(format!("{each} ns for each byte; {budget} are allowed in this build"));
        }
        let most = if allowance > 0 { MAX_LIMITED_BYTES } else { MAX_BYTES };
        if last.allocated > most.max(bytes * MAX_BYTES_PER_BYTE) {
            return Some(format!("{} bytes allocated for each byte", last.allocated / bytes));
        }
        let grows = |what: &str, cost: fn(&Cost) -> u64, floor: u64| {
            let [once, twice] = self.growth(cost)?;
            // The fixed cost is not known exactly, so the growth must be much larger.
            let in_any_case = cost(&self.0[0]);
            let is_much = cost(last).saturating_sub(in_any_case) > floor.max(3 * in_any_case);
            (is_much && once > GROWTH && twice > GROWTH)
                .then(|| format!("{what} grows {once:.1} and {twice:.1} times when the input doubles"))
        };
        let bytes_floor = if allowance > 0 { MAX_LIMITED_BYTES } else { FLOOR_BYTES };
        grows("CPU time", |cost| cost.nanoseconds, FLOOR_NANOSECONDS.max(allowance))
            .or_else(|| grows("allocated memory", |cost| cost.allocated, bytes_floor))
    }

    /// Whether a further doubling may give more information.
    fn goes_on(&self, reach: Reach) -> bool {
        let Some(last) = self.0.last() else { return true };
        let time = |cost: &Cost| cost.nanoseconds;
        let grows = match &self.0[..] {
            [tiny, .., before, last] => above(tiny, last, time) > GROWTH * above(tiny, before, time),
            _ => false,
        };
        let enough = if grows { reach.enough * SUSPICION } else { reach.enough };
        last.bytes < reach.longest && Duration::from_nanos(last.nanoseconds) <= enough
    }

    /// Measures the last costs again several times and keeps the least.
    ///
    /// Even CPU time grows under load: other processes take the caches, the other half of a core,
    /// or, on a virtual machine, the core itself.
    fn confirm(&mut self, limits: CostLimits, prepare: &dyn Fn(usize) -> Work) {
        let suspects = self.0.len().saturating_sub(3);
        for round in 0..CONFIRMATIONS {
            std::thread::sleep(PAUSE * round);
            for index in (0..self.0.len()).filter(|&index| index == 0 || index >= suspects) {
                let bytes = self.0[index].bytes;
                self.0[index] = self.0[index].least(measure(bytes, prepare(bytes)));
            }
            if self.complaint(limits).is_none() {
                break;
            }
        }
    }
}

/// Doubles inputs as far as `reach` allows or until a cost exceeds its limit. Returns the costs and
/// a description of the excess, which has been confirmed by several measurements. A panic also
/// counts as an excess.
fn try_sizes(reach: Reach, limits: CostLimits, prepare: &dyn Fn(usize) -> Work) -> (Costs, Option<String>) {
    let mut costs = Costs::default();
    let double = || {
        // The first call creates what is created only once.
        prepare(TINY)();
        let sizes = [TINY].into_iter().chain(std::iter::successors(Some(FIRST), |bytes| Some(2 * bytes)));
        for bytes in sizes {
            if !costs.goes_on(reach) {
                break;
            }
            costs.0.push(measure(bytes, prepare(bytes)));
            if costs.complaint(limits).is_some() {
                costs.confirm(limits, prepare);
            }
            if let Some(why) = costs.complaint(limits) {
                return Some(why);
            }
        }
        None
    };
    let wrong = catch_unwind(AssertUnwindSafe(double));
    (costs, wrong.unwrap_or_else(|_| Some("it panics; the message is above".into())))
}

/// The results for all inputs of a target.
#[derive(Default)]
struct Summary {
    patterns: u64,
    /// The maximum of nanoseconds per byte over the inputs above the floor.
    highest: u64,
    highest_seed: u64,
    time: Duration,
    /// One failure is enough. Further ones would mostly have the same cause.
    failed: bool,
}

struct Fuzzer {
    reach: Reach,
    targets: Vec<(CostTarget, Summary)>,
    failures: Vec<String>,
}

impl Fuzzer {
    fn try_pattern(&mut self, index: usize, seed: u64) {
        let (target, summary) = &mut self.targets[index];
        let pattern = target.pattern(seed);
        let prepare = |bytes: usize| target.prepare(&pattern.text(bytes));
        let begin = Instant::now();
        let (costs, wrong) = try_sizes(self.reach, target.limits, &prepare);
        summary.patterns += 1;
        summary.time += begin.elapsed();
        for cost in costs.0.iter().skip(1).filter(|cost| cost.nanoseconds > FLOOR_NANOSECONDS) {
            let each = cost.nanoseconds / cost.bytes as u64;
            if each > summary.highest {
                (summary.highest, summary.highest_seed) = (each, seed);
            }
        }
        let Some(why) = wrong else { return };
        let costs: String = costs.0.iter().map(|cost| format!("    {cost}\n")).collect();
        let start: String = pattern.text(FIRST).chars().take(160).collect();
        let name = &target.name;
        let failure = format!(
            "{name}, seed {seed}: {why}\n{costs}    the input begins with {start:?}\n    replay: MILLRACE_COST_TARGET='{name}' \
             MILLRACE_COST_SEED={seed} cargo test -p millrace-router --features fuzz --test cost -- --nocapture\n"
        );
        eprintln!("{failure}");
        summary.failed = true;
        self.failures.push(failure);
    }

    fn report(&self) {
        for (target, Summary { patterns, highest, highest_seed, time, .. }) in &self.targets {
            let (name, seconds) = (&target.name, time.as_secs_f64());
            eprintln!(
                "{name:<30} {patterns:>6} patterns in {seconds:>6.1} s, at most {highest:>7} ns for each byte (seed \
                 {highest_seed})"
            );
        }
    }
}

fn variable<T: std::str::FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: not a number")))
}

#[test]
fn costs_grow_no_faster_than_inputs() {
    let _alone = alone();
    let seconds: Option<f64> = variable("MILLRACE_COST_SECONDS");
    let seed: Option<u64> = variable("MILLRACE_COST_SEED");
    let chosen = std::env::var("MILLRACE_COST_TARGET").unwrap_or_default();
    let until = seconds.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
    let is_over = || until.is_some_and(|until| Instant::now() >= until);
    let targets = targets().into_iter().filter(|target| target.name.contains(&chosen));
    let targets: Vec<_> = targets.map(|target| (target, Summary::default())).collect();
    assert!(!targets.is_empty(), "MILLRACE_COST_TARGET={chosen}: there is no such target");
    let reach = if seconds.is_some() || seed.is_some() { LONG } else { SHORT };
    let mut fuzzer = Fuzzer { reach, targets, failures: Vec::new() };
    let count = fuzzer.targets.len();
    // The targets take turns, so that each gets its share of the time.
    let mut round = 0;
    loop {
        let mut tried = false;
        for index in 0..count {
            let (target, summary) = &fuzzer.targets[index];
            let plain = target.plain_patterns();
            let (pattern, last) = match seed {
                Some(seed) if seconds.is_none() => (seed, 1),
                Some(seed) if round >= plain => (round.saturating_add(seed), u64::MAX),
                _ => (round, plain.saturating_add(reach.random)),
            };
            // If a target has an allowance, short inputs cost too little to judge their growth. A
            // part of them is enough to find panics and costs that are far too high.
            let is_skipped = reach.longest == SHORT.longest && target.limits.allowance > 0 && round % 4 != 0;
            if round < last && !summary.failed && !is_over() {
                tried = true;
                if !is_skipped {
                    fuzzer.try_pattern(index, pattern);
                }
            }
        }
        round += 1;
        if !tried {
            break;
        }
    }
    fuzzer.report();
    let failures = &fuzzer.failures;
    assert!(failures.is_empty(), "{} inputs cost too much:\n{}", failures.len(), failures.join("\n"));
}

/// A chain of sums that the compiler cannot shorten.
fn spin(rounds: usize) {
    let mut sum = 0usize;
    for i in 0..rounds {
        sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(i));
    }
}

#[test]
fn growth_is_distinguished_from_size() {
    let _alone = alone();
    let limits = CostLimits { budget: 1_000, allowance: 0 };
    let tried = |prepare: &dyn Fn(usize) -> Work| try_sizes(LONG, limits, prepare).1;
    let linear = |n: usize| -> Work { Box::new(move || spin(50 * n)) };
    assert_eq!(tried(&linear), None);
    let sorting = |n: usize| -> Work { Box::new(move || spin(4 * n * n.ilog2() as usize)) };
    assert_eq!(tried(&sorting), None);
    let quadratic = |n: usize| -> Work { Box::new(move || spin(n * n / 64)) };
    let why = tried(&quadratic).unwrap();
    assert!(why.contains("CPU time grows"), "{why}");
    let limits = CostLimits { budget: 1_000_000, allowance: 1_000_000_000 };
    assert_eq!(try_sizes(SHORT, limits, &quadratic).1, None, "it costs less than is allowed in any case");
    let copying = |n: usize| -> Work {
        Box::new(move || (0..n / 16).for_each(|_| drop(std::hint::black_box(Vec::<u8>::with_capacity(n)))))
    };
    let why = tried(&copying).unwrap();
    assert!(why.contains("allocated"), "{why}");
    let dear = |n: usize| -> Work { Box::new(move || spin(30_000 * n)) };
    let why = tried(&dear).unwrap();
    assert!(why.contains("ns for each byte"), "{why}");
    let panicking = |_| -> Work { Box::new(|| panic!("on purpose")) };
    assert!(tried(&panicking).unwrap().contains("panics"));
}
