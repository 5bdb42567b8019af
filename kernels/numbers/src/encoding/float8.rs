//! FP8 numbers with scales.

use std::ops::Range;
use std::sync::LazyLock;

use super::codes::{CodeRow, CodeType, CodedWeights};
use super::integers::ScaleGrid;
use crate::{Error, Result, fp8};

/// Weights as e4m3 numbers times the scale of their block. The numbers `[rows, cols]`, one byte
/// each, are the bytes of the [`HostTensor`](crate::HostTensor).
#[derive(Debug, Clone, PartialEq)]
pub struct Float8 {
    /// Rows and columns of a block. One scale for the whole matrix is a block of all rows and
    /// columns, and one for each row is a block of one row and all columns.
    pub block: [usize; 2],
    /// The scale of each block: a "row" is a row of blocks, and a "group" a block in it.
    pub scales: ScaleGrid,
}

static VALUES: LazyLock<[f32; 256]> = LazyLock::new(|| std::array::from_fn(|byte| fp8::widen(byte as u8)));

impl Float8 {
    pub(crate) fn check(&self, rows: usize, cols: usize, bytes: usize) -> Result<()> {
        let [block_rows, block_cols] = self.block;
        if rows.saturating_mul(cols) != bytes || block_rows == 0 || block_cols == 0 {
            return Err(Error::Shape(format!(
                "an fp8 matrix of {rows} x {cols} in blocks of {block_rows} x {block_cols} with {bytes} bytes"
            )));
        }
        self.scales.check(rows.div_ceil(block_rows), cols.div_ceil(block_cols))
    }

    /// Returns the scale of the block that holds the weight at `row` and `col`.
    pub fn scale(&self, row: usize, col: usize) -> f32 {
        self.scales.get(row / self.block[0], col / self.block[1])
    }
}

impl CodedWeights for Float8 {
    fn code_type(&self) -> CodeType {
        CodeType::E4m3
    }

    fn values(&self) -> &[f32] {
        &*VALUES
    }

    fn read_codes(&self, row: CodeRow<'_>, cols: Range<usize>, out: &mut [u8]) {
        let first = row.row * row.stored;
        out.copy_from_slice(&row.bytes[first + cols.start..first + cols.end]);
    }

    fn block(&self, row: CodeRow<'_>, col: usize) -> (f32, usize) {
        let end = (col / self.block[1] + 1).saturating_mul(self.block[1]);
        (self.scale(row.row, col), end)
    }

    fn has_groups_of(&self, group: usize, _stored: usize, cols: &Range<usize>) -> bool {
        let block = self.block[1];
        let is_one = cols.is_empty() || cols.start / block == (cols.end - 1) / block;
        is_one || block.is_multiple_of(group) && cols.start.is_multiple_of(group)
    }
}
