//! MXFP4 as gpt-oss stores it (Open Compute Project, "Microscaling Formats"): the matrices of all
//! experts in one tensor. Blocks of the same numbers in GGUF files are a type of [`super::ggml`].

use std::ops::Range;

use bytes::Bytes;

use super::module::{Element, ModuleError, StoredModule};
use super::written::WrittenTensor;
use crate::codes::{CodeRow, CodeType, CodedWeights};
use crate::experts::ExpertRows;
use crate::scales::{NumberType, Numbers};
use crate::{Encoding, Error, HostTensor, Result};

/// Columns of a block.
const BLOCK: usize = 32;

/// The e2m1 numbers.
static E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The ends of the names of the tensors of a weight of experts: codes and scales.
pub const EXPERT_TENSORS: [&str; 2] = ["_blocks", "_scales"];

/// Modules are dense.
pub(super) const TENSORS: &[&str] = &[];

/// A checkpoint whose experts are in MXFP4. Its other weights are dense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mxfp4;

impl Mxfp4 {
    pub(super) fn name(&self) -> &'static str {
        "mxfp4"
    }

    /// Modules are dense.
    pub(super) fn layout(&self, _rows: usize, _cols: usize) -> Vec<WrittenTensor> {
        Vec::new()
    }

    /// Returns the tensors of the matrices `[rows, cols]` of all experts, whose rows are stored in
    /// `order`.
    pub(super) fn expert_layout(&self, rows: usize, cols: usize, order: ExpertRows) -> Vec<WrittenTensor> {
        let [blocks, scales] = EXPERT_TENSORS;
        let shape = [rows / order.rows.max(1), order.rows, cols / BLOCK, BLOCK / 2];
        vec![
            WrittenTensor::of_rows(blocks, Element::U8, &shape),
            WrittenTensor::of_rows(scales, Element::U8, &shape[..3]),
        ]
    }

    pub(super) fn read(&self, _module: &StoredModule<'_>) -> Result<Option<HostTensor>, ModuleError> {
        Ok(None)
    }

    /// Returns the matrices `[rows, cols]` of all experts, or `None` if they are stored in another
    /// way. Codes are `[experts, rows of an expert, cols / 32, 16]`, and scales `[experts, rows of
    /// an expert, cols / 32]`.
    pub(super) fn read_experts(
        &self,
        experts: &StoredModule<'_>,
        order: ExpertRows,
    ) -> Result<Option<HostTensor>, ModuleError> {
        let [blocks, scales] = EXPERT_TENSORS;
        if !experts.has(blocks) {
            return Ok(None);
        }
        let (rows, cols) = (experts.rows, experts.cols);
        if !cols.is_multiple_of(BLOCK) {
            let reason = format!("cannot be used: {cols} input features are not a multiple of {BLOCK}");
            return Err(ModuleError::Content { tensor: blocks, reason });
        }
        let shape = [rows / order.rows.max(1), order.rows, cols / BLOCK, BLOCK / 2];
        let codes = experts.bytes(blocks, &shape, Element::U8)?;
        let powers = experts.bytes(scales, &shape[..3], Element::U8)?;
        experts.built(blocks, matrix(rows, cols, order, codes, powers)).map(Some)
    }
}

/// Creates the matrices of several experts, `[rows, cols]` together: `blocks`
/// `[rows, cols / 32, 16]` with two codes a byte, and `scales` `[rows, cols / 32]`.
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
    let codes = Codes { rows: order, scales: Numbers::new(NumberType::PowerOfTwo, scales)? };
    HostTensor::new(Encoding::codes(codes), rows, cols, blocks)
}

/// Codes of e2m1 numbers, times a power of two for each 32 columns of a row. Two codes are a byte
/// of the [`HostTensor`], the first one in the lower half.
#[derive(Debug)]
struct Codes {
    /// The order of the rows, of codes and scales alike.
    rows: ExpertRows,
    /// The powers of two, `[rows, cols / 32]`.
    scales: Numbers,
}

impl CodedWeights for Codes {
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
