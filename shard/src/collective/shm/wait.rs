//! How a rank tells the others that it has published, and how they wait for it: a short spin, then a futex.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::collective::{Call, Operation};

/// How long to spin before sleeping: about what it takes to sleep and be woken, so that at most twice the best is paid.
const SPIN: Duration = Duration::from_micros(40);

/// The longest sleep.
const SLICE: Duration = Duration::from_secs(1);

/// What is added to a turn's word by a round. The bit below says that the rank takes no further part.
const ROUND: u32 = 2;
const ENDED: u32 = 1;

/// The rounds begin shortly before the counter wraps, so that every test and every start goes over it.
const FIRST: Round = Round(0_u32.wrapping_sub(100 * ROUND));

/// A number of a round. A rank is never more than one round ahead of another, so that numbers that wrap can be compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round(u32);

impl Round {
    pub(super) const START: Round = FIRST;

    pub(super) fn next(self) -> Round {
        Round(self.0.wrapping_add(ROUND))
    }

    /// Which half of the slots this round uses.
    pub(super) fn half(self) -> usize {
        (self.0 / ROUND % 2) as usize
    }

    fn is_reached(self, word: u32) -> bool {
        ((word & !ENDED).wrapping_sub(self.0) as i32) >= 0
    }
}

/// Why a wait has ended without the round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The rank takes no further part, or the group was aborted.
    Ended,
    /// The deadline is over.
    TimedOut,
}

/// The call that a rank is in, beside its turn's word, so that one cache line brings both.
#[derive(Default)]
#[repr(C)]
struct Head {
    sequence: AtomicU64,
    length: AtomicU64,
    operation: AtomicU32,
}

/// What one rank tells the others. It has its cache line (and the one that the processor fetches along) for itself.
#[derive(Default)]
#[repr(C, align(128))]
pub(super) struct Turn {
    /// The last round that the rank has published, and [`ENDED`]. One word, so that whoever sleeps until it changes is woken
    /// by either.
    word: AtomicU32,
    /// How many ranks sleep until the word changes.
    parked: AtomicU32,
    /// Not 0 once a process has joined as this rank.
    claimed: AtomicU32,
    /// One for each half.
    heads: [Head; 2],
}

impl Turn {
    /// Before the others see it.
    pub(super) fn prepare(&self) {
        self.word.store(Round::START.0, Ordering::Relaxed);
    }

    /// Takes the rank; false if it is taken.
    pub(super) fn claim(&self) -> bool {
        self.claimed.swap(1, Ordering::Relaxed) == 0
    }

    /// The owner's: says that what belongs to the next round stands in its half of the slot.
    pub(super) fn publish(&self, half: usize, call: &Call) {
        let head = &self.heads[half];
        head.sequence.store(call.sequence, Ordering::Relaxed);
        head.length.store(call.length, Ordering::Relaxed);
        head.operation.store(call.operation as u32, Ordering::Relaxed);
        // Adding keeps a bit that an aborter sets at the same time. Sequentially consistent, as is what a sleeper does: of the
        // two, "word, then parked" here and "parked, then word" there, one must see the other's.
        self.word.fetch_add(ROUND, Ordering::SeqCst);
        self.wake();
    }

    /// Says that the rank takes no further part.
    pub(super) fn end(&self) {
        self.word.fetch_or(ENDED, Ordering::SeqCst);
        self.wake();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.word.load(Ordering::Acquire) & ENDED != 0
    }

    /// What the rank has called, as published in a half; `None` for an operation that this version does not know.
    pub(super) fn call(&self, half: usize) -> Option<Call> {
        let head = &self.heads[half];
        Some(Call {
            sequence: head.sequence.load(Ordering::Relaxed),
            operation: Operation::from_code(head.operation.load(Ordering::Relaxed))?,
            length: head.length.load(Ordering::Relaxed),
        })
    }

    /// Waits until the rank has published `round`. What it wrote before is visible then.
    pub(super) fn wait(&self, round: Round, spin: bool, deadline: Duration) -> Result<(), Stop> {
        // A round that was published counts, even if the rank has ended since.
        let check = |word: u32| match () {
            () if round.is_reached(word) => Some(Ok(())),
            () if word & ENDED != 0 => Some(Err(Stop::Ended)),
            () => None,
        };
        if let Some(done) = check(self.word.load(Ordering::Acquire)) {
            return done;
        }
        let since = Instant::now();
        while spin && since.elapsed() < SPIN {
            for _ in 0..16 {
                std::hint::spin_loop();
                if let Some(done) = check(self.word.load(Ordering::Acquire)) {
                    return done;
                }
            }
        }
        self.parked.fetch_add(1, Ordering::SeqCst);
        let mut left = deadline;
        let longest = SLICE.min(deadline / 4).max(Duration::from_millis(1));
        let done = loop {
            let word = self.word.load(Ordering::SeqCst);
            if let Some(done) = check(word) {
                break done;
            }
            if left.is_zero() {
                break Err(Stop::TimedOut);
            }
            // In slices, of which a standstill of all ranks (SIGSTOP, `docker pause`) costs one, however long it lasts.
            let (slice, since) = (left.min(longest), Instant::now());
            futex_wait(&self.word, word, slice);
            left -= since.elapsed().min(slice);
        };
        self.parked.fetch_sub(1, Ordering::Relaxed);
        done
    }

    fn wake(&self) {
        if self.parked.load(Ordering::SeqCst) > 0 {
            futex_wake(&self.word);
        }
    }
}

/// Sleeps while the word is `expected`, at most `left`. May return early.
fn futex_wait(word: &AtomicU32, expected: u32, left: Duration) {
    // SAFETY: all zeros is a time, whatever further fields it has on this system.
    let mut time: libc::timespec = unsafe { std::mem::zeroed() };
    time.tv_sec = left.as_secs() as libc::time_t;
    time.tv_nsec = left.subsec_nanos() as _;
    // Not FUTEX_PRIVATE_FLAG: the sleepers are of other processes.
    // SAFETY: word and time live during the call; the system only reads them.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, &raw const time) };
}

/// Wakes all that sleep on the word.
fn futex_wake(word: &AtomicU32) {
    // SAFETY: the word lives during the call; the system takes its address only.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
