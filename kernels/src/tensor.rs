//! Tensors in host memory, as a checkpoint stores them.

use std::ops::Range;

use bytes::Bytes;

use crate::{Error, Result};

/// An element type of dense weights and KV caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DType {
    /// IEEE single precision (binary32).
    F32,
    /// IEEE half precision (binary16).
    F16,
    /// bfloat16: the upper 16 bits of a binary32 number.
    BF16,
}

impl DType {
    /// Returns the bytes per element.
    pub const fn size(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::BF16 => 2,
        }
    }

    /// Returns the value of this type that is nearest to `x`; ties go to the even one.
    pub fn round(self, x: f32) -> f32 {
        match self {
            DType::F32 => x,
            DType::F16 => half::f16::from_f32(x).to_f32(),
            DType::BF16 => half::bf16::from_f32(x).to_f32(),
        }
    }

    /// Returns the name used on the command line and in `config.json`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "float32",
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
        }
    }
}

/// How the numbers of a stored tensor are encoded in its bytes.
///
/// An encoding divides each row into blocks of [`Encoding::block_cols`] columns, and each block
/// takes [`Encoding::block_bytes`] bytes. A dense tensor has blocks of one element. An encoding
/// whose blocks need further tensors (scales, zero points) carries them in its variant, which is
/// why this type is not `Copy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Encoding {
    /// Little-endian numbers of this type, one after the other.
    Dense(DType),
}

impl Encoding {
    /// Returns how many columns of a row are encoded together.
    pub const fn block_cols(&self) -> usize {
        match self {
            Encoding::Dense(_) => 1,
        }
    }

    /// Returns the bytes of one block.
    pub const fn block_bytes(&self) -> usize {
        match self {
            Encoding::Dense(dtype) => dtype.size(),
        }
    }

    /// Returns the bytes of `cols` columns of a row; a started block counts as a whole one.
    pub const fn row_bytes(&self, cols: usize) -> usize {
        cols.div_ceil(self.block_cols()).saturating_mul(self.block_bytes())
    }

    /// Returns a name for error messages.
    pub const fn name(&self) -> &'static str {
        match self {
            Encoding::Dense(dtype) => dtype.name(),
        }
    }
}

/// A row-major tensor of one or two axes in host memory, usually in a mapped file.
///
/// The bytes need not be aligned to the element. The tensor shares ownership of its bytes: cloning
/// it copies no data, and the memory stays valid for as long as a clone exists.
#[derive(Debug, Clone)]
pub struct HostTensor {
    /// How the bytes encode the numbers.
    pub encoding: Encoding,
    /// Rows of a matrix; 1 for a vector.
    pub rows: usize,
    /// Columns of a matrix; the length of a vector.
    pub cols: usize,
    /// `rows` rows of [`HostTensor::row_bytes`] bytes each.
    pub bytes: Bytes,
}

impl HostTensor {
    /// Creates a tensor `[rows, cols]` of numbers of one type. `bytes` holds `rows * cols` of them.
    pub fn dense(dtype: DType, rows: usize, cols: usize, bytes: Bytes) -> Self {
        HostTensor { encoding: Encoding::Dense(dtype), rows, cols, bytes }
    }

    /// Returns the bytes from the start of one row to the start of the next.
    pub fn row_bytes(&self) -> usize {
        self.encoding.row_bytes(self.cols)
    }
}

/// A rectangle of a [`HostTensor`]: the share that one weight takes of one stored tensor.
///
/// A weight is a list of parts that are stacked along the output axis. A list of parts describes
/// separate and fused storage, any grouping of fused rows, and the slices of tensor-parallel ranks.
#[derive(Debug, Clone)]
pub struct Part {
    /// The stored tensor.
    pub tensor: HostTensor,
    /// Rows of the tensor that the part takes (output features).
    pub rows: Range<usize>,
    /// Columns of the tensor that the part takes (input features). They start and end at boundaries
    /// of the encoding's blocks.
    pub cols: Range<usize>,
}

impl Part {
    /// Creates a part that takes all of `tensor`.
    pub fn whole(tensor: HostTensor) -> Self {
        let (rows, cols) = (0..tensor.rows, 0..tensor.cols);
        Part { tensor, rows, cols }
    }

    /// Returns the number of elements in the part.
    pub fn elements(&self) -> usize {
        self.rows.len() * self.cols.len()
    }

    /// Returns the bytes that the part takes of its stored tensor.
    pub fn stored_bytes(&self) -> usize {
        self.rows.len() * self.tensor.encoding.row_bytes(self.cols.len())
    }

    /// Returns element (`row`, `col`) of the part as an f32.
    ///
    /// # Panics
    /// If the position is outside the tensor.
    pub fn get(&self, row: usize, col: usize) -> f32 {
        let Encoding::Dense(dtype) = self.tensor.encoding;
        let at = (self.rows.start + row) * self.tensor.cols + self.cols.start + col;
        let bytes = &self.tensor.bytes;
        match dtype {
            DType::F32 => {
                f32::from_le_bytes([bytes[4 * at], bytes[4 * at + 1], bytes[4 * at + 2], bytes[4 * at + 3]])
            }
            DType::F16 => half::f16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]).to_f32(),
            DType::BF16 => half::bf16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]).to_f32(),
        }
    }

    /// Writes the first `out.len()` elements of row `row` of the part to `out`, as f32.
    ///
    /// # Panics
    /// If the row is outside the tensor, or `out` is longer than the part is wide.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        assert!(out.len() <= self.cols.len(), "row of {} into {}", self.cols.len(), out.len());
        let Encoding::Dense(dtype) = self.tensor.encoding;
        let size = dtype.size();
        let at = ((self.rows.start + row) * self.tensor.cols + self.cols.start) * size;
        let bytes = &self.tensor.bytes[at..at + out.len() * size];
        match dtype {
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
        let HostTensor { encoding, rows, cols, bytes } = &self.tensor;
        // Saturated products cannot equal the length of a slice.
        if rows.saturating_mul(encoding.row_bytes(*cols)) != bytes.len() {
            return Err(Error::Shape(format!(
                "a {} tensor of {rows} x {cols} cannot have {} bytes",
                encoding.name(),
                bytes.len()
            )));
        }
        if self.rows.start > self.rows.end || self.cols.start > self.cols.end {
            return Err(Error::Shape(format!("rows {:?}, columns {:?} run backwards", self.rows, self.cols)));
        }
        if self.rows.end > *rows || self.cols.end > *cols {
            return Err(Error::Shape(format!(
                "rows {:?}, columns {:?} are outside a tensor of {rows} x {cols}",
                self.rows, self.cols
            )));
        }
        let block = encoding.block_cols();
        if !is_block_aligned(&self.cols, *cols, block) {
            return Err(Error::Shape(format!(
                "columns {:?} cut through blocks of {block} columns",
                self.cols
            )));
        }
        Ok(())
    }
}

/// Tells whether `cols` of a row of `len` columns starts and ends at a boundary of the row's blocks
/// of `block` columns. The end of the row is a boundary even if its last block is incomplete.
fn is_block_aligned(cols: &Range<usize>, len: usize, block: usize) -> bool {
    cols.start.is_multiple_of(block) && (cols.end.is_multiple_of(block) || cols.end == len)
}

/// Returns the rows and columns of the matrix that results from stacking `parts`.
///
/// # Errors
/// [`Error::Shape`] if there is no part, if a part reaches outside its tensor or cuts
/// through a block of its encoding, or if the widths of the parts differ.
pub fn stacked_shape<'a>(parts: impl IntoIterator<Item = &'a Part>) -> Result<(usize, usize)> {
    let mut parts = parts.into_iter().peekable();
    let Some(first) = parts.peek() else {
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

/// Returns all elements of `parts` as f32, one part after the other, each in row-major order.
///
/// # Errors
/// [`Error::Shape`] if a part reaches outside its tensor.
pub fn flatten<'a>(parts: impl IntoIterator<Item = &'a Part>) -> Result<Vec<f32>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_starts_and_ends_at_a_block_boundary() {
        // 70 columns in blocks of 32: the last block has 6 columns.
        for (cols, aligned) in
            [(0..70, true), (32..64, true), (64..70, true), (0..6, false), (16..64, false), (32..69, false)]
        {
            assert_eq!(is_block_aligned(&cols, 70, 32), aligned, "{cols:?}");
        }
        assert!(is_block_aligned(&(3..5), 70, 1));
    }

    #[test]
    fn a_tensor_keeps_its_bytes_alive() {
        let part = {
            let owner = vec![0, 0, 128, 63, 0, 0, 0, 64];
            Part::whole(HostTensor::dense(DType::F32, 1, 2, Bytes::from_owner(owner)))
        };
        assert_eq!(flatten(&[part]).unwrap(), [1.0, 2.0]);
    }
}
