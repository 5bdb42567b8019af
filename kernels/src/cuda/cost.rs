//! What an operation has to move and compute, so that a measurement can be judged against a device's limits.

use std::ops::Add;

/// The least that an operation can cost: every input read once, every output written once.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// Bytes to and from device memory.
    pub bytes: f64,
    /// Floating-point operations, a multiplication and an addition being two.
    pub flops: f64,
}

impl Cost {
    /// Moves `bytes` and computes next to nothing.
    pub fn moving(bytes: usize) -> Cost {
        Cost { bytes: bytes as f64, flops: 0.0 }
    }

    /// Seconds on a device that moves `bandwidth` bytes and does `peak` operations a second, whichever takes longer.
    pub fn seconds(&self, bandwidth: f64, peak: f64) -> f64 {
        (self.bytes / bandwidth).max(self.flops / peak)
    }
}

impl Add for Cost {
    type Output = Cost;

    fn add(self, other: Cost) -> Cost {
        Cost { bytes: self.bytes + other.bytes, flops: self.flops + other.flops }
    }
}
