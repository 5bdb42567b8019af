//! Weights as codes that stand for numbers, times the scale of their block: the arithmetic that
//! FP8 numbers and codes of four bits share.

mod rows;

use std::fmt::Debug;
use std::ops::Range;

pub use rows::{CodeRows, exact_codes};

use crate::Result;

/// The type of codes that stand for numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CodeType {
    /// FP8 numbers (e4m3).
    E4m3,
    /// Codes of four bits, whose values a table says.
    FourBits,
}

/// Codes that stand for numbers, in groups of columns with an f32 factor each, as a checkpoint
/// stores them. No weights are quantized to such a format: see [`exact_codes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoredCodes {
    /// The type of the codes.
    pub codes: CodeType,
    /// Columns of a group, a multiple of 8. The last group of a row may have fewer.
    pub cols: usize,
    /// Whether all groups of a row have the same factor.
    pub by_row: bool,
}

impl StoredCodes {
    /// Returns the bytes of a matrix `[out, cols]` without padding.
    pub const fn bytes(self, out: usize, cols: usize) -> usize {
        let codes = match self.codes {
            CodeType::E4m3 => cols,
            CodeType::FourBits => cols.div_ceil(2),
        };
        out.saturating_mul(codes + cols.div_ceil(self.cols) * size_of::<f32>())
    }
}

/// A row of a matrix `[rows, stored]`.
#[derive(Debug, Clone, Copy)]
pub struct CodeRow<'a> {
    /// The bytes of the whole matrix.
    pub bytes: &'a [u8],
    /// Columns of the matrix.
    pub stored: usize,
    /// Index of the row.
    pub row: usize,
}

/// An encoding of weights as codes that stand for numbers. A format of this kind implements it, and
/// nothing else.
pub trait CodedWeights: Debug + Send + Sync {
    /// Checks that a matrix `[rows, cols]` with `bytes` bytes of codes has all scales.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if it does not.
    fn check(&self, rows: usize, cols: usize, bytes: usize) -> Result<()>;

    /// Returns the bytes of `cols` columns of a row, if the bytes of a row are next to each other.
    fn row_bytes(&self, _cols: usize) -> Option<usize> {
        None
    }

    /// Returns the type of the codes.
    fn code_type(&self) -> CodeType;

    /// Returns the value of each code.
    fn values(&self) -> &[f32];

    /// Writes the codes of columns `cols` to `out`, which is as long.
    fn read_codes(&self, row: CodeRow<'_>, cols: Range<usize>, out: &mut [u8]);

    /// Returns the scale of the block that holds the weight in column `col`, and the column after
    /// the block's last one in this row, which may be outside the row.
    fn block(&self, row: CodeRow<'_>, col: usize) -> (f32, usize);

    /// Tells whether no block ends within a group, for groups of `group` columns from the first one
    /// of `cols` on, in every row of `stored` columns.
    fn has_groups_of(&self, group: usize, stored: usize, cols: &Range<usize>) -> bool;

    /// Writes the weights of columns `cols` to `out`, which is as long.
    fn read_row(&self, row: CodeRow<'_>, cols: Range<usize>, out: &mut [f32]) {
        const RUN: usize = 256;
        let (values, mut codes) = (self.values(), [0; RUN]);
        let (mut rest, mut col) = (out, cols.start);
        while col < cols.end {
            let (scale, end) = self.block(row, col);
            let run = end.min(cols.end).min(col + RUN) - col;
            self.read_codes(row, col..col + run, &mut codes[..run]);
            let (out, after) = rest.split_at_mut(run);
            for (out, code) in out.iter_mut().zip(&codes) {
                *out = values[usize::from(*code)] * scale;
            }
            (rest, col) = (after, col + run);
        }
    }
}
