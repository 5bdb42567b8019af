//! How many bytes things take on a device.

use millrace_kernels::{Backend, DType, KvSpec, StepSize};

/// How many bytes a device takes for what.
pub trait Device {
    /// For a matrix `[out, cols]` of a type.
    fn matrix_bytes(&self, out: usize, cols: usize, dtype: DType) -> usize;
    /// For the KV cache of one layer.
    fn kv_bytes(&self, spec: &KvSpec) -> usize;
    /// For the device's own use in products of this many rows and columns at most.
    fn scratch_bytes(&self, rows: usize, cols: usize) -> usize;
    /// For what it keeps of steps and sequences.
    fn step_bytes(&self, size: &StepSize<'_>) -> usize;
}

impl<B: Backend> Device for B {
    fn matrix_bytes(&self, out: usize, cols: usize, dtype: DType) -> usize {
        Backend::matrix_bytes(self, out, cols, dtype)
    }

    fn kv_bytes(&self, spec: &KvSpec) -> usize {
        Backend::kv_bytes(self, spec)
    }

    fn scratch_bytes(&self, rows: usize, cols: usize) -> usize {
        Backend::scratch_bytes(self, rows, cols)
    }

    fn step_bytes(&self, size: &StepSize<'_>) -> usize {
        Backend::step_bytes(self, size)
    }
}

/// A device that pads nothing, for estimates without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unpadded;

impl Device for Unpadded {
    fn matrix_bytes(&self, out: usize, cols: usize, dtype: DType) -> usize {
        out * cols * dtype.size()
    }

    fn kv_bytes(&self, spec: &KvSpec) -> usize {
        let features = 2 * spec.kv_heads * spec.head_dim * spec.dtype.size();
        spec.blocks.saturating_mul(spec.block_size).saturating_mul(features)
    }

    fn scratch_bytes(&self, _rows: usize, _cols: usize) -> usize {
        0
    }

    fn step_bytes(&self, _size: &StepSize<'_>) -> usize {
        0
    }
}
