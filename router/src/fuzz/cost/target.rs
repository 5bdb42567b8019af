//! Targets whose cost is measured.

use super::alphabets::InputFrame;
use super::pattern::InputPattern;

/// A piece of work with its input prepared.
pub type Work = Box<dyn FnOnce()>;

/// The limits of a target's cost in nanoseconds of CPU time in a release build. They are many times
/// the measured cost, because they are meant to find defects and not slow code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CostLimits {
    /// The cost per byte of input.
    pub budget: u64,
    /// The cost for any input. Growth counts only above it. It is 0 unless limits of the target's
    /// own end its work.
    pub allowance: u64,
}

/// Code that processes untrusted input.
pub struct CostTarget {
    /// The name of the target in reports and in `MILLRACE_COST_TARGET`.
    pub name: String,
    /// The limits of the target's cost.
    pub limits: CostLimits,
    pub(super) frames: Vec<InputFrame>,
    pub(super) prepare: Box<dyn Fn(&str) -> Work>,
}

impl CostTarget {
    /// Returns the pattern with this seed. The first patterns repeat each piece of each alphabet
    /// and are the same for every run. The others are random.
    pub fn pattern(&self, seed: u64) -> InputPattern {
        InputPattern::new(&self.frames, seed)
    }

    /// Returns the number of patterns that repeat a single piece or nest a single pair.
    pub fn plain_patterns(&self) -> u64 {
        self.frames.iter().map(|frame| frame.alphabet.plain_patterns()).sum()
    }

    /// Prepares the work for this input.
    pub fn prepare(&self, input: &str) -> Work {
        (self.prepare)(input)
    }
}
