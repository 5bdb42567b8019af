//! A weight in the kernels' layout, on the host.

use millrace_backend::Result;
use millrace_numbers::tensor::stacked_shape;
use millrace_numbers::{Part, WeightFormat};

use super::format::{CodeTable, OUTPUTS, PackedFormat};
use super::groups::GroupBlocks;

/// A weight in the kernels' layout, on the host.
#[derive(Debug, Clone, PartialEq)]
pub struct PackedWeight {
    /// The format of the numbers.
    pub format: PackedFormat,
    /// Output features.
    pub outputs: usize,
    /// Input features.
    pub inputs: usize,
    /// Columns, including padding.
    pub depth: usize,
    /// The number of columns that share a scale: a power of two.
    pub group: usize,
    /// Integers: `[outputs / 16][depth / 64]` tiles of 512 bytes (4 bits) or 1024 bytes (8 bits).
    /// FP8: `[outputs rounded up to 16][depth]`.
    pub data: Vec<u8>,
    /// `[outputs / 16][groups][16]`: the bits of each scale; for int4 the lowest five bits are the
    /// zero point.
    pub scales: Vec<u32>,
    /// `[depth]`: the input feature of each column, -1 for padding. `None` if the columns are in
    /// order.
    pub columns: Option<Vec<i32>>,
    /// The numbers of codes of four bits.
    pub table: CodeTable,
}

impl PackedWeight {
    /// Packs the stacked `parts` of `count` matrices of the same size in `format`. Each matrix is
    /// padded to a multiple of 16 outputs.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the kernels cannot multiply by the format, or if it is one of
    /// stored numbers and the parts are stored otherwise.
    pub fn pack(parts: &[Part], count: usize, format: WeightFormat) -> Result<PackedWeight> {
        let (rows, inputs) = stacked_shape(parts)?;
        let blocks = GroupBlocks::new(parts, count, format)?;
        let layout = blocks.layout();
        let (bytes, words) = (layout.block_bytes(), layout.block_scales());
        let mut data = vec![0; layout.blocks() * bytes];
        let mut scales = vec![0; layout.blocks() * words];
        let to = data.chunks_exact_mut(bytes).zip(scales.chunks_exact_mut(words));
        for (index, (data, scales)) in to.enumerate() {
            blocks.pack(index, data, scales)?;
        }
        let (format, depth, group) = (layout.format, layout.depth, layout.group);
        let outputs = if count == 1 { rows } else { layout.blocks() * OUTPUTS };
        let (columns, table) = (blocks.columns(), blocks.table());
        Ok(PackedWeight { format, outputs, inputs, depth, group, data, scales, columns, table })
    }
}
