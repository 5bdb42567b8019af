//! The encodings of stored tensors: what their bytes mean, whatever the format that wrote them.

use std::ops::Range;
use std::sync::Arc;

use crate::codes::{CodeRow, CodedWeights};
use crate::experts::ExpertColumns;
use crate::formats::ggml::BlockType;
use crate::integers::Integers;
use crate::{DType, Error, Result};

/// How the numbers of a stored tensor are encoded in its bytes.
///
/// The variants are kinds of arithmetic. The formats in [`crate::formats`] differ in where codes
/// and scales are stored, and several of them share a variant. An encoding whose numbers need
/// further tensors (scales, zero points) carries them in its variant, which is why this type is not
/// `Copy`.
///
/// A matrix `[rows, cols]` has one row per output feature, however its codes are laid out in the
/// file.
#[derive(Debug, Clone)]
pub enum Encoding {
    /// Little-endian numbers of this type, one after the other.
    Dense(DType),
    /// `(code - offset) * scale`, with codes of 2, 3, 4 or 8 bits.
    Integers(Arc<Integers>),
    /// `table[code] * scale`, with codes of 4 or 8 bits.
    Codes(Arc<dyn CodedWeights>),
    /// Blocks of successive columns, each with its scales. The type of the blocks is the formula.
    Blocks(BlockType),
    /// Dense numbers of the matrices of several experts, by column.
    ExpertColumns(ExpertColumns),
}

impl Encoding {
    /// Creates the encoding of weights as codes that stand for numbers.
    pub fn codes(codes: impl CodedWeights + 'static) -> Self {
        Encoding::Codes(Arc::new(codes))
    }

    /// Returns the bytes of `cols` columns of a row, if the bytes of a row are next to each other.
    /// A block of which only some columns are wanted counts completely.
    pub fn row_bytes(&self, cols: usize) -> Option<usize> {
        match self {
            Encoding::Dense(dtype) => Some(cols.saturating_mul(dtype.size())),
            Encoding::Codes(codes) => codes.row_bytes(cols),
            Encoding::Blocks(kind) => Some(cols.div_ceil(kind.cols()).saturating_mul(kind.bytes())),
            // The rows of a rank are in all parts of the tensor.
            Encoding::Integers(_) | Encoding::ExpertColumns(_) => None,
        }
    }

    /// Returns whether the numbers are quantized.
    pub const fn is_quantized(&self) -> bool {
        !matches!(self, Encoding::Dense(_) | Encoding::ExpertColumns(_))
    }

    /// Returns the element type of a dense, row-major tensor.
    pub const fn dense(&self) -> Option<DType> {
        match self {
            Encoding::Dense(dtype) => Some(*dtype),
            _ => None,
        }
    }

    /// Returns the weights as codes that stand for numbers, if they are.
    pub(crate) fn coded(&self) -> Option<&dyn CodedWeights> {
        match self {
            Encoding::Dense(_) | Encoding::ExpertColumns(_) | Encoding::Integers(_) => None,
            Encoding::Codes(codes) => Some(&**codes),
            Encoding::Blocks(kind) => kind.has_table().then_some(kind),
        }
    }

    /// Writes the weights of columns `cols` of a row to `out`, which is as long.
    pub(crate) fn read_row(&self, row: CodeRow<'_>, cols: Range<usize>, out: &mut [f32]) {
        match self {
            Encoding::Dense(dtype) => {
                let (first, size) = (row.row * row.stored, dtype.size());
                dtype.read_row(&row.bytes[(first + cols.start) * size..(first + cols.end) * size], out);
            }
            Encoding::Integers(integers) => integers.read_row(row, cols, out),
            Encoding::Codes(codes) => codes.read_row(row, cols, out),
            Encoding::Blocks(kind) => kind.read_weights(row, cols, out),
            Encoding::ExpertColumns(columns) => columns.read_row(row, cols, out),
        }
    }

    /// Checks that a tensor `[rows, cols]` in this encoding has `bytes` bytes.
    ///
    /// # Errors
    /// [`Error::Shape`] if it has not, or if scales or zero points are missing.
    pub(crate) fn check(&self, rows: usize, cols: usize, bytes: usize) -> Result<()> {
        match self {
            // Saturated products cannot equal the length of a slice.
            Encoding::Dense(dtype) if rows.saturating_mul(cols).saturating_mul(dtype.size()) != bytes => {
                let name = dtype.name();
                Err(Error::Shape(format!("a {name} tensor of {rows} x {cols} cannot have {bytes} bytes")))
            }
            Encoding::Dense(_) => Ok(()),
            Encoding::Integers(integers) => integers.check(rows, cols, bytes),
            Encoding::Codes(codes) => codes.check(rows, cols, bytes),
            Encoding::Blocks(kind) => kind.check(rows, cols, bytes),
            Encoding::ExpertColumns(columns) => columns.check(rows, cols, bytes),
        }
    }
}
