//! Work whose cost may grow no faster than its input: everything that a request, or a model's
//! answer to it, can trigger.
//!
//! `tests/cost.rs` runs each [`Target`] on inputs of n, 2n and 4n bytes and measures CPU time and
//! allocated memory. This module says what is run (`targets`) and what the inputs look like
//! (`pattern`); it measures nothing.

mod alphabets;
mod pattern;
mod targets;

pub use pattern::Pattern;
pub use targets::targets;

use alphabets::Alphabet;

/// What is measured: a piece of work that has got its input already.
pub type Work = Box<dyn FnOnce()>;

/// What a target may cost, in nanoseconds of CPU time in a release build. The numbers are many times
/// what was measured, because they shall find what is wrong and not what is slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// For each byte of input.
    pub budget: u64,
    /// For any input, however fast the cost grows: growth is judged above this only. It is 0 unless
    /// the target has limits of its own that end its work.
    pub allowance: u64,
}

/// Code that processes untrusted input.
pub struct Target {
    /// Names the target in reports and in `MILLRACE_COST_TARGET`.
    pub name: String,
    /// What it may cost.
    pub limits: Limits,
    frames: Vec<Frame>,
    prepare: Box<dyn Fn(&str) -> Work>,
}

/// Where in a larger text the part that grows stands, and what that part consists of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    before: &'static str,
    /// Stands between two repetitions.
    between: &'static str,
    after: &'static str,
    alphabet: &'static Alphabet,
}

impl Target {
    /// The pattern with this number. The first ones repeat each piece of each alphabet by itself,
    /// so that they are the same for everybody; the rest is random.
    pub fn pattern(&self, seed: u64) -> Pattern {
        Pattern::new(&self.frames, seed)
    }

    /// How many patterns repeat a single piece.
    pub fn plain_patterns(&self) -> u64 {
        self.frames.iter().map(|frame| frame.alphabet.plain_patterns()).sum()
    }

    /// The work on this input.
    pub fn prepare(&self, input: &str) -> Work {
        (self.prepare)(input)
    }
}
