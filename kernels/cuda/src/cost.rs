//! The bytes and operations that an operation needs at least. Benchmarks compare a measurement with
//! them.

use std::ops::Add;

/// The least work of an operation: every input is read once, every output is written once.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// Bytes read from and written to device memory.
    pub bytes: f64,
    /// Floating-point operations; a multiplication and an addition count as two.
    pub flops: f64,
}

impl Cost {
    /// The cost of an operation that moves `bytes` and computes next to nothing.
    pub fn moving(bytes: usize) -> Cost {
        Cost { bytes: bytes as f64, flops: 0.0 }
    }

    /// Seconds on a device that moves `bandwidth` bytes and does `peak` operations per second. The
    /// slower of the two decides.
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
