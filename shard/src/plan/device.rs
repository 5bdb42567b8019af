//! How many bytes things take on a device.

use millrace_kernels::{Backend, KvSpec, MatrixFormat, Overheads, ProductShape, StepSize};

/// How many bytes a device takes for what.
pub trait Device {
    /// For a matrix `[out, cols]`.
    fn matrix_bytes(&self, out: usize, cols: usize, format: MatrixFormat) -> usize;
    /// For the KV cache of one layer.
    fn kv_bytes(&self, spec: &KvSpec) -> usize;
    /// For the device's own use in these products.
    fn scratch_bytes(&self, products: &[ProductShape]) -> usize;
    /// For so many elements of activations.
    fn activation_bytes(&self, elements: usize) -> usize {
        elements.saturating_mul(size_of::<f32>())
    }
    /// For gathering this many logits of each of `ranks` ranks.
    fn gather_bytes(&self, _ranks: usize, _elements: usize) -> usize {
        0
    }
    /// For what it keeps of steps and sequences.
    fn step_bytes(&self, size: &StepSize<'_>) -> usize;
    /// For its driver and libraries.
    fn overheads(&self, _ranks: usize) -> Overheads {
        Overheads::default()
    }
}

impl<B: Backend> Device for B {
    fn matrix_bytes(&self, out: usize, cols: usize, format: MatrixFormat) -> usize {
        Backend::matrix_bytes(self, out, cols, format)
    }

    fn kv_bytes(&self, spec: &KvSpec) -> usize {
        Backend::kv_bytes(self, spec)
    }

    fn scratch_bytes(&self, products: &[ProductShape]) -> usize {
        Backend::scratch_bytes(self, products)
    }

    fn activation_bytes(&self, elements: usize) -> usize {
        Backend::activation_bytes(self, elements)
    }

    fn gather_bytes(&self, ranks: usize, elements: usize) -> usize {
        Backend::gather_bytes(self, ranks, elements)
    }

    fn step_bytes(&self, size: &StepSize<'_>) -> usize {
        Backend::step_bytes(self, size)
    }

    fn overheads(&self, ranks: usize) -> Overheads {
        Backend::overheads(self, ranks)
    }
}

/// A device that pads nothing, for estimates without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unpadded;

impl Device for Unpadded {
    fn matrix_bytes(&self, out: usize, cols: usize, format: MatrixFormat) -> usize {
        format.bytes(out, cols)
    }

    fn kv_bytes(&self, spec: &KvSpec) -> usize {
        let features = 2 * spec.kv_heads * spec.head_dim * spec.dtype.size();
        spec.blocks.saturating_mul(spec.block_size).saturating_mul(features)
    }

    fn scratch_bytes(&self, _products: &[ProductShape]) -> usize {
        0
    }

    fn step_bytes(&self, _size: &StepSize<'_>) -> usize {
        0
    }
}
