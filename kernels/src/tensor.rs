//! Tensors in host memory, as a checkpoint holds them.

use std::ops::Range;

/// The element types that weights and KV caches come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of a single.
    BF16,
}

impl DType {
    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::BF16 => 2,
        }
    }

    /// The name used on the command line and in `config.json`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "float32",
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
        }
    }
}

/// A row-major tensor of one or two axes, borrowed from host memory (usually a mapped file).
///
/// The bytes are little-endian and need not be aligned to the element.
#[derive(Debug, Clone, Copy)]
pub struct HostTensor<'a> {
    /// Element type.
    pub dtype: DType,
    /// Rows of a matrix; 1 for a vector.
    pub rows: usize,
    /// Columns of a matrix; the length of a vector.
    pub cols: usize,
    /// `rows * cols` elements.
    pub bytes: &'a [u8],
}

/// A rectangle of a [`HostTensor`]: what one weight takes from one stored tensor.
///
/// Weights are made of a list of parts, stacked along the output axis. That covers separate and fused storage, any
/// grouping of fused rows, and the slices of tensor-parallel ranks.
#[derive(Debug, Clone)]
pub struct Part<'a> {
    /// The stored tensor.
    pub tensor: HostTensor<'a>,
    /// Rows taken (output features).
    pub rows: Range<usize>,
    /// Columns taken (input features).
    pub cols: Range<usize>,
}

impl<'a> Part<'a> {
    /// The whole of `tensor`.
    pub fn whole(tensor: HostTensor<'a>) -> Self {
        Part { tensor, rows: 0..tensor.rows, cols: 0..tensor.cols }
    }

    /// Element (`row`, `col`) of the part, widened.
    ///
    /// # Panics
    /// If the position is outside the tensor.
    pub fn get(&self, row: usize, col: usize) -> f32 {
        let at = (self.rows.start + row) * self.tensor.cols + self.cols.start + col;
        let bytes = self.tensor.bytes;
        match self.tensor.dtype {
            DType::F32 => {
                f32::from_le_bytes([bytes[4 * at], bytes[4 * at + 1], bytes[4 * at + 2], bytes[4 * at + 3]])
            }
            DType::F16 => half::f16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]).to_f32(),
            DType::BF16 => half::bf16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]).to_f32(),
        }
    }
}
