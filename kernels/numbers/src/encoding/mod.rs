//! The encodings of stored tensors: dense numbers, and five kinds of quantized weights.
//!
//! | encoding | weight | written by |
//! |---|---|---|
//! | [`Integers`] | `(code - offset) * scale`, with codes of 2, 3, 4 or 8 bits | GPTQ, AWQ, compressed-tensors, bitsandbytes (int8) |
//! | [`TableCodes`] | `table[code] * scale`, with codes of 4 bits | bitsandbytes (nf4, fp4) |
//! | [`Float8`] | an e4m3 number times a scale | fp8, compressed-tensors |
//! | [`Mxfp4`] | `e2m1 number * 2^scale`, with codes of 4 bits | gpt-oss |
//! | [`BlockType`] | by the type of the blocks | GGUF and its ancestors |
//!
//! A matrix `[rows, cols]` has one row per output feature, however its codes are laid out in the
//! file.

mod blocks;
mod code_layout;
mod codes;
mod expert_matrices;
mod float8;
mod grouping;
mod integers;
mod numbers;
mod table_codes;

use std::sync::Arc;

pub use blocks::BlockType;
pub(crate) use blocks::{SMALL_BLOCK, q3_k_code, q3_k_scale};
pub use code_layout::{CodeLayout, WordLayout};
pub(crate) use codes::{CodeRow, CodedWeights};
pub use codes::{CodeType, StoredCodes};
pub use expert_matrices::{ExpertColumns, ExpertRows, Mxfp4};
pub use float8::Float8;
pub(crate) use grouping::Arrangement;
pub use grouping::ColumnGroups;
pub use integers::{Integers, Offsets, ScaleGrid};
pub use numbers::{NumberType, Numbers};
pub use table_codes::{BlockScales, TableCodes};

use crate::{DType, Error, Result};

/// How the numbers of a stored tensor are encoded in its bytes.
///
/// An encoding whose numbers need further tensors (scales, zero points) carries them in its
/// variant, which is why this type is not `Copy`.
#[derive(Debug, Clone, PartialEq)]
pub enum Encoding {
    /// Little-endian numbers of this type, one after the other.
    Dense(DType),
    /// Integers in groups.
    Integers(Arc<Integers>),
    /// Codes of four bits that index a table.
    Table(Arc<TableCodes>),
    /// FP8 numbers with scales.
    Float8(Arc<Float8>),
    /// MXFP4 of the matrices of several experts.
    Mxfp4(Arc<Mxfp4>),
    /// Blocks of successive columns.
    Blocks(BlockType),
    /// Dense numbers of the matrices of several experts, by column.
    ExpertColumns(ExpertColumns),
}

impl Encoding {
    /// Returns the bytes of `cols` columns of a row, if the bytes of a row are next to each other.
    /// A block of which only some columns are wanted counts completely.
    pub fn row_bytes(&self, cols: usize) -> Option<usize> {
        match self {
            Encoding::Dense(dtype) => Some(cols.saturating_mul(dtype.size())),
            Encoding::Float8(_) => Some(cols),
            Encoding::Blocks(kind) => Some(cols.div_ceil(kind.cols()).saturating_mul(kind.bytes())),
            Encoding::Integers(_) | Encoding::Table(_) => None,
            // The rows of a rank are in all parts of the tensor.
            Encoding::Mxfp4(_) | Encoding::ExpertColumns(_) => None,
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
            Encoding::Mxfp4(mxfp4) => Some(&**mxfp4),
            Encoding::Blocks(kind) => kind.has_table().then_some(kind),
            Encoding::Table(codes) => Some(&**codes),
            Encoding::Float8(float8) => Some(&**float8),
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
            Encoding::Table(codes) => codes.check(rows, cols, bytes),
            Encoding::Float8(float8) => float8.check(rows, cols, bytes),
            Encoding::Mxfp4(mxfp4) => mxfp4.check(rows, cols, bytes),
            Encoding::Blocks(kind) => kind.check(rows, cols, bytes),
            Encoding::ExpertColumns(columns) => columns.check(rows, cols, bytes),
        }
    }
}
