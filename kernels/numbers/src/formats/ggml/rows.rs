//! Blocks of GGML without rounding, in the formats that devices multiply by.

use super::super_blocks::{q3_k_code, q3_k_scale};
use super::words::SMALL_BLOCK;
use super::{BlockType, KFormat, SUPER_BLOCK, SuperBlock};
use crate::codes::CodeRow;
use crate::integers::Group;
use crate::tensor::part_of_row;
use crate::{Encoding, Error, IntFormat, Part, Result, WeightFormat};

/// Returns the format in which a device can keep `parts`, stacked, with the numbers of their
/// blocks.
///
/// Codes of 5 bits become codes of 8 bits, and blocks of `Q3_K` become blocks of `Q6_K`. There is
/// no such format for blocks with minima other than those of `Q4_K` and `Q5_K`, if the parts need
/// different formats, or if the columns of a part begin or end within a block.
pub fn exact_blocks(parts: &[Part]) -> Option<WeightFormat> {
    let kinds: Vec<BlockType> = parts.iter().map(whole_blocks).collect::<Option<_>>()?;
    let all = |some: &[BlockType]| !kinds.is_empty() && kinds.iter().all(|kind| some.contains(kind));
    use BlockType::{IQ4_NL, Q3K, Q4_0, Q4K, Q5_0, Q5K, Q6K, Q8_0};
    if all(&[Q4_0]) {
        Some(WeightFormat::Int(IntFormat::Q4_0))
    } else if all(&[IQ4_NL]) {
        // Codes that index a table take half the memory.
        None
    } else if all(&[Q4_0, Q5_0, Q8_0, IQ4_NL]) {
        Some(WeightFormat::Int(IntFormat::Q8_0))
    } else if all(&[Q4K]) {
        Some(WeightFormat::K(KFormat::Q4K))
    } else if all(&[Q5K]) {
        Some(WeightFormat::K(KFormat::Q5K))
    } else if all(&[Q3K, Q6K]) {
        Some(WeightFormat::K(KFormat::Q6K))
    } else {
        None
    }
}

/// Returns the type of the blocks of a part, if it takes whole ones.
fn whole_blocks(part: &Part) -> Option<BlockType> {
    let Encoding::Blocks(kind) = part.tensor.encoding else { return None };
    let is_whole = [part.cols.start, part.cols.end].into_iter().all(|col| col.is_multiple_of(kind.cols()));
    is_whole.then_some(kind)
}

/// The rows of stacked parts, in the format that [`exact_blocks`] has returned.
#[derive(Debug)]
pub struct BlockRows<'a> {
    parts: &'a [Part],
    format: WeightFormat,
}

impl<'a> BlockRows<'a> {
    /// Creates the rows of `parts`, or returns `None` if their format is not `format`.
    pub fn new(parts: &'a [Part], format: impl Into<WeightFormat>) -> Option<BlockRows<'a>> {
        let format = format.into();
        (exact_blocks(parts)? == format).then_some(BlockRows { parts, format })
    }

    /// Writes the codes of a row, one per byte, and the scales and offsets of its groups, for a
    /// format of integers in groups.
    ///
    /// # Errors
    /// [`Error::StoredNumber`] if a scale is a NaN or an infinity.
    ///
    /// # Panics
    /// If there is no such row, or if the slices have other lengths.
    pub fn read_groups(&self, row: usize, codes: &mut [u8], groups: &mut [Group]) -> Result<()> {
        let offset: u8 = if self.format == WeightFormat::Int(IntFormat::Q4_0) { 8 } else { 128 };
        let (place, kind, first) = self.place(row);
        assert_eq!(codes.len(), groups.len() * SMALL_BLOCK);
        for (index, (codes, group)) in
            codes.as_chunks_mut::<SMALL_BLOCK>().0.iter_mut().zip(groups).enumerate()
        {
            let mut signed = [0; SMALL_BLOCK];
            let scale = kind.signed_codes(kind.block_of(place, first + index), &mut signed);
            if !scale.is_finite() {
                return Err(self.not_finite(row, index * SMALL_BLOCK));
            }
            *codes = signed.map(|code| code.cast_unsigned().wrapping_add(offset));
            *group = Group { scale, offset };
        }
        Ok(())
    }

    /// Writes the super-blocks of a row, for a format of super-blocks.
    ///
    /// # Errors
    /// [`Error::StoredNumber`] if a scale is a NaN or an infinity.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn read_super_blocks(&self, row: usize, blocks: &mut Vec<SuperBlock>) -> Result<()> {
        let (place, kind, first) = self.place(row);
        blocks.clear();
        let count = self.parts.first().map_or(0, |part| part.cols.len()) / SUPER_BLOCK;
        for index in 0..count {
            let bytes = kind.block_of(place, first + index);
            let block = match kind {
                BlockType::Q3K => widened(bytes),
                BlockType::Q4K => KFormat::Q4K.from_file(bytes),
                BlockType::Q5K => KFormat::Q5K.from_file(bytes),
                _ => KFormat::Q6K.from_file(bytes),
            };
            if !(block.scale.is_finite() && block.min.is_finite()) {
                return Err(self.not_finite(row, index * SUPER_BLOCK));
            }
            blocks.push(block);
        }
        Ok(())
    }

    /// Returns the place of a row in its tensor, the type of its blocks, and the first one.
    fn place(&self, row: usize) -> (CodeRow<'a>, BlockType, usize) {
        let (part, row) = part_of_row(self.parts, row);
        let Encoding::Blocks(kind) = part.tensor.encoding else {
            unreachable!("a part of another encoding; this is a bug");
        };
        let place =
            CodeRow { bytes: &part.tensor.bytes, stored: part.tensor.cols, row: part.rows.start + row };
        (place, kind, part.cols.start / kind.cols())
    }

    fn not_finite(&self, row: usize, col: usize) -> Error {
        let (part, row) = part_of_row(self.parts, row);
        let index = self.parts.iter().position(|other| std::ptr::eq(other, part)).unwrap_or_default();
        Error::StoredNumber { part: index, row: part.rows.start + row, col: part.cols.start + col }
    }
}

/// Returns a block of `Q3_K` as one of `Q6_K`, whose sub-blocks are the same.
fn widened(bytes: &[u8]) -> SuperBlock {
    let scale = half::f16::from_le_bytes([bytes[108], bytes[109]]).to_f32();
    let offset = KFormat::Q6K.offset().cast_signed();
    SuperBlock {
        scale,
        min: 0.0,
        scales: std::array::from_fn(|sub_block| q3_k_scale(bytes, sub_block)),
        mins: [0; 8],
        codes: std::array::from_fn(|col| (q3_k_code(bytes, col) + offset).cast_unsigned()),
    }
}
