//! Tensors in host memory, as a checkpoint holds them.

use std::ops::Range;

use crate::{Error, Result};

/// The element types that weights and KV caches come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

    /// The nearest value of this type to `x`, ties to even.
    pub fn round(self, x: f32) -> f32 {
        match self {
            DType::F32 => x,
            DType::F16 => half::f16::from_f32(x).to_f32(),
            DType::BF16 => half::bf16::from_f32(x).to_f32(),
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

impl Part<'_> {
    /// Writes row `row` of the part, widened, to `out`.
    ///
    /// # Panics
    /// If the row is outside the tensor, or `out` is longer than the part is wide.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        assert!(out.len() <= self.cols.len(), "row of {} into {}", self.cols.len(), out.len());
        let size = self.tensor.dtype.size();
        let at = ((self.rows.start + row) * self.tensor.cols + self.cols.start) * size;
        let bytes = &self.tensor.bytes[at..at + out.len() * size];
        match self.tensor.dtype {
            DType::F32 => {
                for (o, b) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                    *o = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
                }
            }
            DType::F16 => {
                for (o, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                    *o = half::f16::from_le_bytes([b[0], b[1]]).to_f32();
                }
            }
            DType::BF16 => {
                for (o, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                    *o = f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16);
                }
            }
        }
    }

    fn check(&self) -> Result<()> {
        let t = &self.tensor;
        let needed = t.rows.checked_mul(t.cols).and_then(|n| n.checked_mul(t.dtype.size()));
        if needed != Some(t.bytes.len()) {
            return Err(Error::Shape(format!(
                "a {} tensor of {} x {} cannot have {} bytes",
                t.dtype.name(),
                t.rows,
                t.cols,
                t.bytes.len()
            )));
        }
        if self.rows.start > self.rows.end || self.cols.start > self.cols.end {
            return Err(Error::Shape(format!("rows {:?}, columns {:?} run backwards", self.rows, self.cols)));
        }
        if self.rows.end > t.rows || self.cols.end > t.cols {
            return Err(Error::Shape(format!(
                "rows {:?}, columns {:?} are outside a tensor of {} x {}",
                self.rows, self.cols, t.rows, t.cols
            )));
        }
        Ok(())
    }
}

/// Rows and columns of the matrix that `parts` stack up to.
///
/// # Errors
/// [`Error::Shape`] if there is no part, if one reaches outside its tensor, or if their widths differ.
pub fn stacked_shape(parts: &[Part<'_>]) -> Result<(usize, usize)> {
    let Some(first) = parts.first() else {
        return Err(Error::Shape("a weight of no parts".to_owned()));
    };
    let (mut rows, cols) = (0, first.cols.len());
    for part in parts {
        part.check()?;
        if part.cols.len() != cols {
            return Err(Error::Shape(format!("parts of {cols} and of {} columns stacked", part.cols.len())));
        }
        rows += part.rows.len();
    }
    Ok((rows, cols))
}

/// All elements of `parts`, one part after the other in row-major order.
///
/// # Errors
/// [`Error::Shape`] if a part reaches outside its tensor.
pub fn flatten(parts: &[Part<'_>]) -> Result<Vec<f32>> {
    let mut out = Vec::new();
    for part in parts {
        part.check()?;
        let cols = part.cols.len();
        for row in 0..part.rows.len() {
            let at = out.len();
            out.resize(at + cols, 0.0);
            part.read_row(row, &mut out[at..]);
        }
    }
    Ok(out)
}
