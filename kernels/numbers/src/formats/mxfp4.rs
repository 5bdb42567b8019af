//! MXFP4 as gpt-oss stores it (Open Compute Project, "Microscaling Formats"): the matrices of all
//! experts in one tensor. Blocks of the same numbers in GGUF files are a type of [`super::ggml`].

use std::ops::Range;

use bytes::Bytes;

use crate::codes::{CodeRow, CodeType, CodedWeights};
use crate::experts::ExpertRows;
use crate::scales::{NumberType, Numbers};
use crate::{Encoding, Error, HostTensor, Result};

/// Columns of a block.
pub const BLOCK: usize = 32;

/// The e2m1 numbers.
static E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Creates the matrices of several experts, `[rows, cols]` together: `blocks` `[rows, cols / 32, 16]`
/// with two codes a byte, and `scales` `[rows, cols / 32]`.
///
/// # Errors
/// [`Error::Shape`] if a tensor has another length, or a row is not whole blocks.
pub fn matrix(
    rows: usize,
    cols: usize,
    order: ExpertRows,
    blocks: Bytes,
    scales: Bytes,
) -> Result<HostTensor> {
    let mxfp4 = Mxfp4 { rows: order, scales: Numbers::new(NumberType::PowerOfTwo, scales)? };
    HostTensor::new(Encoding::codes(mxfp4), rows, cols, blocks)
}

/// Codes of e2m1 numbers, times a power of two for each 32 columns of a row. Two codes are a byte
/// of the [`HostTensor`], the first one in the lower half.
#[derive(Debug)]
struct Mxfp4 {
    /// The order of the rows, of codes and scales alike.
    rows: ExpertRows,
    /// The powers of two, `[rows, cols / 32]`.
    scales: Numbers,
}

impl CodedWeights for Mxfp4 {
    fn check(&self, rows: usize, cols: usize, bytes: usize) -> Result<()> {
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
