//! Publishing a round, and waiting for the round of another rank: a short spin, then a futex.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::collective::{Call, Operation};

/// Time that a wait spins before it sleeps: about the time of falling asleep and being woken, so
/// that a wait takes at most twice the optimum.
const SPIN: Duration = Duration::from_micros(40);

/// The longest time of one sleep.
const SLICE: Duration = Duration::from_secs(1);

/// The increment of the round counter. The bit below is [`ENDED`]: the rank has left the group.
const ROUND: u32 = 2;
const ENDED: u32 = 1;

/// The first round. It is shortly before the counter wraps, so that every test covers the wrap.
const FIRST: Round = Round(0_u32.wrapping_sub(100 * ROUND));

/// The number of a round. A rank is never more than one round ahead of another, so wrapped numbers
/// can be compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round(u32);

impl Round {
    pub(super) const START: Round = FIRST;

    pub(super) fn next(self) -> Round {
        Round(self.0.wrapping_add(ROUND))
    }

    /// Returns the half that this round uses.
    pub(super) fn half(self) -> usize {
        (self.0 / ROUND % 2) as usize
    }

    fn is_reached(self, word: u32) -> bool {
        ((word & !ENDED).wrapping_sub(self.0) as i32) >= 0
    }
}

/// The reason why a wait failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitError {
    /// The rank has left the group, or the group has been aborted.
    Ended,
    /// The deadline has passed.
    TimedOut,
}

/// The call that a rank has published. It is in the same cache line as the rank's round.
#[derive(Default)]
#[repr(C)]
struct PublishedCall {
    sequence: AtomicU64,
    length: AtomicU64,
    operation: AtomicU32,
}

/// The state that one rank shows the others. It is alone in its cache line and in the one that the
/// CPU prefetches with it.
#[derive(Default)]
#[repr(C, align(128))]
pub(super) struct RankState {
    /// The last round that the rank has published, and [`ENDED`]. Both are in one word, so that
    /// either change wakes a rank that sleeps on it.
    word: AtomicU32,
    /// Number of ranks that sleep until the word changes.
    sleepers: AtomicU32,
    /// Flag that is not 0 once a process has joined as this rank.
    claimed: AtomicU32,
    /// The published calls, one for each half.
    calls: [PublishedCall; 2],
}

impl RankState {
    /// Initializes the state, before other ranks can see it.
    pub(super) fn initialize(&self) {
        self.word.store(Round::START.0, Ordering::Relaxed);
    }

    /// Claims the rank. Returns false if another process has claimed it.
    pub(super) fn claim(&self) -> bool {
        self.claimed.swap(1, Ordering::Relaxed) == 0
    }

    /// Publishes the next round, whose values are in its half. Only the rank itself calls this.
    pub(super) fn publish(&self, half: usize, call: &Call) {
        let call_slot = &self.calls[half];
        call_slot.sequence.store(call.sequence, Ordering::Relaxed);
        call_slot.length.store(call.length, Ordering::Relaxed);
        call_slot.operation.store(call.operation as u32, Ordering::Relaxed);
        // An addition keeps the bit that an aborter may set at the same time. The order is
        // sequentially consistent here and in `wait`: this writes `word` and then reads `sleepers`,
        // a waiter writes `sleepers` and then reads `word`, and at least one of them must see the
        // other's write.
        self.word.fetch_add(ROUND, Ordering::SeqCst);
        self.wake();
    }

    /// Marks that the rank has left the group.
    pub(super) fn end(&self) {
        self.word.fetch_or(ENDED, Ordering::SeqCst);
        self.wake();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.word.load(Ordering::Acquire) & ENDED != 0
    }

    /// Returns the call that the rank has published in a half, or `None` if this version does not
    /// know the operation.
    pub(super) fn call(&self, half: usize) -> Option<Call> {
        let call_slot = &self.calls[half];
        Some(Call {
            sequence: call_slot.sequence.load(Ordering::Relaxed),
            operation: Operation::from_code(call_slot.operation.load(Ordering::Relaxed))?,
            length: call_slot.length.load(Ordering::Relaxed),
        })
    }

    /// Waits until the rank has published `round`. Everything that the rank wrote before is visible
    /// then.
    pub(super) fn wait(&self, round: Round, spin: bool, deadline: Duration) -> Result<(), WaitError> {
        // A published round counts, even if the rank has left since.
        let check = |word: u32| match () {
            () if round.is_reached(word) => Some(Ok(())),
            () if word & ENDED != 0 => Some(Err(WaitError::Ended)),
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
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let mut left = deadline;
        let longest = SLICE.min(deadline / 4).max(Duration::from_millis(1));
        let done = loop {
            let word = self.word.load(Ordering::SeqCst);
            if let Some(done) = check(word) {
                break done;
            }
            if left.is_zero() {
                break Err(WaitError::TimedOut);
            }
            // The wait sleeps in slices. A pause of all processes (SIGSTOP, `docker pause`) counts
            // as one slice at most, however long it lasts.
            let (slice, since) = (left.min(longest), Instant::now());
            futex_wait(&self.word, word, slice);
            left -= since.elapsed().min(slice);
        };
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        done
    }

    fn wake(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            futex_wake(&self.word);
        }
    }
}

/// Sleeps while the word is `expected`, at most for `left`. It may return early.
fn futex_wait(word: &AtomicU32, expected: u32, left: Duration) {
    // SAFETY: all zeros is a time, whatever further fields it has on this system.
    let mut time: libc::timespec = unsafe { std::mem::zeroed() };
    time.tv_sec = left.as_secs() as libc::time_t;
    time.tv_nsec = left.subsec_nanos() as _;
    // FUTEX_PRIVATE_FLAG is not set, because the sleepers are in other processes.
    // SAFETY: word and time live during the call; the system only reads them.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, &raw const time) };
}

/// Wakes all sleepers on the word.
fn futex_wake(word: &AtomicU32) {
    // SAFETY: the word lives during the call; the system takes its address only.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
