//! Codes of four bits that index a table.

use std::ops::Range;

use bytes::Bytes;

use super::numbers::Numbers;
use crate::{Error, Result};

/// Weights as codes of four bits that index a table, times the scale of their block: nf4 and fp4
/// (Dettmers et al., "QLoRA"). The weights of all rows are one sequence, in which a block may span
/// rows. Two codes are a byte of the [`HostTensor`](crate::HostTensor), the first one in the higher
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

impl TableCodes {
    pub(crate) fn check(&self, rows: usize, cols: usize, bytes: usize) -> Result<()> {
        let all = rows.saturating_mul(cols);
        if bytes != all.div_ceil(2) || self.block == 0 || !self.scales.hold(all.div_ceil(self.block)) {
            return Err(Error::Shape(format!(
                "codes and scales of a matrix of {rows} x {cols} in blocks of {} have other lengths",
                self.block
            )));
        }
        Ok(())
    }

    /// Returns the code of weight `index`, counted over all rows.
    #[inline]
    pub fn code(&self, bytes: &[u8], index: usize) -> u8 {
        let byte = bytes[index / 2];
        if index.is_multiple_of(2) { byte >> 4 } else { byte & 15 }
    }

    /// Writes the weights of columns `cols` of a row of `stored` weights to `out`, which is as
    /// long.
    pub(crate) fn read_row(
        &self,
        bytes: &[u8],
        stored: usize,
        row: usize,
        cols: Range<usize>,
        out: &mut [f32],
    ) {
        let first = row * stored + cols.start;
        let mut block = (usize::MAX, 0.0);
        for (index, out) in (first..).zip(out) {
            if block.0 != index / self.block {
                block = (index / self.block, self.scales.get(index / self.block));
            }
            *out = self.table[usize::from(self.code(bytes, index))] * block.1;
        }
    }
}
