//! The codes of four bits of bitsandbytes, nf4 and fp4 (Dettmers et al., "QLoRA"). Its integers of
//! eight bits (Dettmers et al., "LLM.int8()") are signed bytes as those of
//! [`super::compressed_tensors`].

use std::ops::Range;

use bytes::Bytes;

use crate::codes::{CodeRow, CodeType, CodedWeights};
use crate::scales::Numbers;
use crate::{Error, Result};

/// Weights as codes of four bits that index a table, times the scale of their block. The weights of
/// all rows are one sequence, in which a block may span rows. Two codes are a byte of the [`HostTensor`](crate::HostTensor), the first one in the higher
/// half.
#[derive(Debug, Clone, PartialEq)]
pub struct TableCodes {
    /// The value of each code.
    pub table: [f32; 16],
    /// Weights of a block.
    pub block: usize,
    /// The scale of each block.
    pub scales: BlockScales,
}

/// The scales of blocks.
#[derive(Debug, Clone, PartialEq)]
pub enum BlockScales {
    /// A number for each block.
    Numbers(Numbers),
    /// The scales are quantized themselves ("nested" or double quantization). A scale is
    /// `table[code] * scale + offset`.
    Nested {
        /// The code of each block's scale.
        codes: Bytes,
        /// The value of each code.
        table: Numbers,
        /// Codes that share a scale.
        block: usize,
        /// The scales of the scales.
        scales: Numbers,
        /// The mean of the scales.
        offset: f32,
    },
}

impl BlockScales {
    /// Returns the scale of a block.
    pub fn get(&self, index: usize) -> f32 {
        match self {
            BlockScales::Numbers(numbers) => numbers.get(index),
            BlockScales::Nested { codes, table, block, scales, offset } => {
                table.get(usize::from(codes[index])) * scales.get(index / block) + offset
            }
        }
    }

    fn hold(&self, blocks: usize) -> bool {
        match self {
            BlockScales::Numbers(numbers) => numbers.len() == blocks,
            BlockScales::Nested { codes, table, block, scales, .. } => {
                let needed = if *block == 0 { usize::MAX } else { blocks.div_ceil(*block) };
                codes.len() == blocks && table.len() == 256 && scales.len() == needed
            }
        }
    }
}

impl CodedWeights for TableCodes {
    fn check(&self, rows: usize, cols: usize, bytes: usize) -> Result<()> {
        let all = rows.saturating_mul(cols);
        if bytes != all.div_ceil(2) || self.block == 0 || !self.scales.hold(all.div_ceil(self.block)) {
            return Err(Error::Shape(format!(
                "codes and scales of a matrix of {rows} x {cols} in blocks of {} have other lengths",
                self.block
            )));
        }
        Ok(())
    }

    fn code_type(&self) -> CodeType {
        CodeType::FourBits
    }

    fn values(&self) -> &[f32] {
        &self.table
    }

    fn read_codes(&self, row: CodeRow<'_>, cols: Range<usize>, out: &mut [u8]) {
        let first = row.row * row.stored;
        for (index, code) in (first + cols.start..first + cols.end).zip(out) {
            let byte = row.bytes[index / 2];
            *code = if index.is_multiple_of(2) { byte >> 4 } else { byte & 15 };
        }
    }

    fn block(&self, row: CodeRow<'_>, col: usize) -> (f32, usize) {
        let first = row.row * row.stored;
        let index = (first + col) / self.block;
        (self.scales.get(index), (index + 1).saturating_mul(self.block) - first)
    }

    fn has_groups_of(&self, group: usize, stored: usize, cols: &Range<usize>) -> bool {
        // Blocks are cut from the sequence of all rows.
        [self.block, stored, cols.start].into_iter().all(|size| size.is_multiple_of(group))
    }
}
