//! Tensors in host memory, as a checkpoint stores them.

use std::ops::Range;

use bytes::Bytes;

use crate::codes::CodeRow;
use crate::{DType, Encoding, Error, Result};

/// A tensor of one or two axes in host memory, usually in a mapped file. A dense one is row-major.
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
    /// The numbers, or their codes.
    pub bytes: Bytes,
}

impl HostTensor {
    /// Creates a tensor `[rows, cols]` of numbers of one type. `bytes` holds `rows * cols` of them.
    pub fn dense(dtype: DType, rows: usize, cols: usize, bytes: Bytes) -> Self {
        HostTensor { encoding: Encoding::Dense(dtype), rows, cols, bytes }
    }

    /// Creates a tensor `[rows, cols]` whose numbers `bytes` encode.
    ///
    /// # Errors
    /// [`Error::Shape`] if the bytes, or what the encoding has besides, are of another matrix.
    pub fn new(encoding: Encoding, rows: usize, cols: usize, bytes: Bytes) -> Result<Self> {
        encoding.check(rows, cols, bytes.len())?;
        Ok(HostTensor { encoding, rows, cols, bytes })
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
    /// Columns of the tensor that the part takes (input features).
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

    /// Returns the bytes that the part takes of its stored tensor. Scales are not counted.
    pub fn stored_bytes(&self) -> usize {
        let all = self.tensor.rows.saturating_mul(self.tensor.cols).max(1);
        // The product of two sizes may exceed 64 bits.
        (self.tensor.bytes.len() as u128 * self.elements() as u128 / all as u128) as usize
    }

    /// Returns element (`row`, `col`) of the part as an f32.
    ///
    /// # Panics
    /// If the position is outside the tensor.
    pub fn get(&self, row: usize, col: usize) -> f32 {
        let mut value = [0.0];
        self.read(row, col, &mut value);
        value[0]
    }

    /// Writes the first `out.len()` elements of row `row` of the part to `out`, as f32.
    ///
    /// # Panics
    /// If the row is outside the tensor, or `out` is longer than the part is wide.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        self.read(row, 0, out);
    }

    /// Writes the elements of row `row` of the part from column `col` on to `out`, as f32.
    ///
    /// # Panics
    /// If the row is outside the tensor, or `out` is longer than the rest of the row.
    pub fn read(&self, row: usize, col: usize, out: &mut [f32]) {
        assert!(col + out.len() <= self.cols.len(), "{col} + {} of {}", out.len(), self.cols.len());
        let (row, first) = (self.rows.start + row, self.cols.start + col);
        let row = CodeRow { bytes: &self.tensor.bytes, stored: self.tensor.cols, row };
        self.tensor.encoding.read_row(row, first..first + out.len(), out);
    }

    fn check(&self) -> Result<()> {
        let HostTensor { encoding, rows, cols, bytes } = &self.tensor;
        encoding.check(*rows, *cols, bytes.len())?;
        if self.rows.start > self.rows.end || self.cols.start > self.cols.end {
            return Err(Error::Shape(format!("rows {:?}, columns {:?} run backwards", self.rows, self.cols)));
        }
        if self.rows.end > *rows || self.cols.end > *cols {
            return Err(Error::Shape(format!(
                "rows {:?}, columns {:?} are outside a tensor of {rows} x {cols}",
                self.rows, self.cols
            )));
        }
        Ok(())
    }
}

/// Returns the rows and columns of the matrix that results from stacking `parts`.
///
/// # Errors
/// [`Error::Shape`] if there is no part, if a part reaches outside its tensor, if a tensor has not
/// the bytes of its encoding, or if the widths of the parts differ.
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

/// Returns the part that holds row `row` of the stack, and the row's index within the part. `row`
/// is inside the stack.
pub fn part_of_row(parts: &[Part], mut row: usize) -> (&Part, usize) {
    for part in parts {
        if row < part.rows.len() {
            return (part, row);
        }
        row -= part.rows.len();
    }
    unreachable!("a row outside the stack; this is a bug")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_keeps_its_bytes_alive() {
        let part = {
            let owner = vec![0, 0, 128, 63, 0, 0, 0, 64];
            Part::whole(HostTensor::dense(DType::F32, 1, 2, Bytes::from_owner(owner)))
        };
        assert_eq!(flatten(&[part]).unwrap(), [1.0, 2.0]);
    }
}
