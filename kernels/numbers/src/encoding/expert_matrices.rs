//! The matrices of all experts in the layouts of gpt-oss: the rows of gate and up take turns, and
//! numbers are stored by column, or as four bits with a power of two for each 32 columns.

use std::ops::Range;

use super::codes::{CodeRow, CodeType, CodedWeights};
use super::numbers::{NumberType, Numbers};
use crate::{DType, Error, Result};

/// Columns of a block of MXFP4.
const BLOCK: usize = 32;

/// The e2m1 numbers.
static E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The order in which the rows of the matrices of several experts are stored, one expert after the
/// other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertRows {
    /// Rows of one expert.
    pub rows: usize,
    /// Whether the rows of gate and up take turns: the first row of gate, the first of up, the
    /// second of gate. Otherwise, and in the matrix that is read, the rows of gate come first.
    pub paired: bool,
}

impl ExpertRows {
    /// Returns the place at which row `row` is stored, both counted through all experts.
    pub fn stored(&self, row: usize) -> usize {
        if !self.paired {
            return row;
        }
        let (expert, row, half) = (row / self.rows, row % self.rows, self.rows / 2);
        expert * self.rows + 2 * (row % half) + row / half
    }

    /// Tells whether `rows` rows are those of whole experts, and pairs if they are paired.
    fn divide(&self, rows: usize) -> bool {
        self.rows > 0 && rows.is_multiple_of(self.rows) && (!self.paired || self.rows.is_multiple_of(2))
    }
}

/// Dense numbers of the matrices of several experts. Each matrix is stored as `[cols, rows]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertColumns {
    /// The type of the numbers.
    pub dtype: DType,
    /// The order of the rows.
    pub rows: ExpertRows,
}

impl ExpertColumns {
    pub(crate) fn check(&self, rows: usize, cols: usize, bytes: usize) -> Result<()> {
        // Saturated products cannot equal the length of a slice.
        if rows.saturating_mul(cols).saturating_mul(self.dtype.size()) != bytes || !self.rows.divide(rows) {
            let name = self.dtype.name();
            return Err(Error::Shape(format!(
                "{rows} x {cols} {name} numbers of experts with {} rows each cannot have {bytes} bytes",
                self.rows.rows
            )));
        }
        Ok(())
    }

    /// Writes the weights of columns `cols` to `out`, which is as long.
    pub(crate) fn read_row(&self, row: CodeRow<'_>, cols: Range<usize>, out: &mut [f32]) {
        let stored = self.rows.stored(row.row);
        let (expert, own, size) = (stored / self.rows.rows, stored % self.rows.rows, self.dtype.size());
        for (col, out) in cols.zip(out) {
            let at = ((expert * row.stored + col) * self.rows.rows + own) * size;
            *out = self.dtype.read(&row.bytes[at..at + size]);
        }
    }
}

/// MXFP4 as gpt-oss stores it (Open Compute Project, "Microscaling Formats"): codes of e2m1
/// numbers, times a power of two for each 32 columns of a row. Two codes are a byte of the
/// [`HostTensor`](crate::HostTensor), the first one in the lower half.
#[derive(Debug, Clone, PartialEq)]
pub struct Mxfp4 {
    /// The order of the rows, of codes and scales alike.
    pub rows: ExpertRows,
    /// The powers of two, `[rows, cols / 32]`.
    pub scales: Numbers,
}

impl Mxfp4 {
    pub(crate) fn check(&self, rows: usize, cols: usize, bytes: usize) -> Result<()> {
        let blocks = rows.saturating_mul(cols / BLOCK);
        if !cols.is_multiple_of(BLOCK)
            || bytes != blocks.saturating_mul(BLOCK / 2)
            || self.scales.kind() != NumberType::PowerOfTwo
            || self.scales.len() != blocks
            || !self.rows.divide(rows)
        {
            return Err(Error::Shape(format!(
                "MXFP4 matrices of {rows} x {cols}, experts of {} rows, cannot have {bytes} bytes and {} scales",
                self.rows.rows,
                self.scales.len()
            )));
        }
        Ok(())
    }
}

impl CodedWeights for Mxfp4 {
    fn code_type(&self) -> CodeType {
        CodeType::FourBits
    }

    fn values(&self) -> &[f32] {
        &E2M1
    }

    fn read_codes(&self, row: CodeRow<'_>, cols: Range<usize>, out: &mut [u8]) {
        let first = self.rows.stored(row.row) * row.stored;
        for (index, code) in (first + cols.start..first + cols.end).zip(out) {
            let byte = row.bytes[index / 2];
            *code = if index.is_multiple_of(2) { byte & 15 } else { byte >> 4 };
        }
    }

    fn block(&self, row: CodeRow<'_>, col: usize) -> (f32, usize) {
        let first = self.rows.stored(row.row) * (row.stored / BLOCK);
        (self.scales.get(first + col / BLOCK), (col / BLOCK + 1) * BLOCK)
    }

    fn has_groups_of(&self, group: usize, _stored: usize, cols: &Range<usize>) -> bool {
        BLOCK.is_multiple_of(group) && cols.start.is_multiple_of(group)
    }
}
