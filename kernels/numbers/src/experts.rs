//! The matrices of all experts in the order of gpt-oss: the rows of gate and up take turns, and
//! dense numbers are stored by column.

use std::ops::Range;

use crate::codes::CodeRow;
use crate::{DType, Error, Result};

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
    pub(crate) fn divide(&self, rows: usize) -> bool {
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
