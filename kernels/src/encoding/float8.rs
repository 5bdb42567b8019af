//! FP8 numbers with scales.

use std::ops::Range;
use std::sync::LazyLock;

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

    /// Writes the weights of columns `cols` of a row of `stored` numbers to `out`, which is as
    /// long.
    pub(crate) fn read_row(
        &self,
        bytes: &[u8],
        stored: usize,
        row: usize,
        cols: Range<usize>,
        out: &mut [f32],
    ) {
        let values: &[f32; 256] = &VALUES;
        let bytes = &bytes[row * stored + cols.start..row * stored + cols.end];
        let (mut rest, mut col) = (out.iter_mut().zip(bytes), cols.start);
        while col < cols.end {
            let end = (col / self.block[1] + 1).saturating_mul(self.block[1]).min(cols.end);
            let scale = self.scale(row, col);
            rest.by_ref().take(end - col).for_each(|(out, &byte)| *out = values[byte as usize] * scale);
            col = end;
        }
    }
}
