//! A weight in the kernels' layout, on the host.

use millrace_backend::{Error, Result};
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
    /// What codes of four bits stand for.
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

    /// A weight of zeros. `group` is rounded up to a power of two.
    pub(super) fn zeros(
        format: PackedFormat,
        outputs: usize,
        inputs: usize,
        depth: usize,
        group: usize,
    ) -> PackedWeight {
        let group = group.next_power_of_two();
        let padded = outputs.next_multiple_of(OUTPUTS);
        let data = vec![0; padded * depth * format.bits() / 8];
        let scales = vec![0; padded * depth.div_ceil(group)];
        let table = CodeTable::default();
        PackedWeight { format, outputs, inputs, depth, group, data, scales, columns: None, table }
    }

    /// The index of the scale of a group and an output.
    pub(super) fn scale_index(&self, group: usize, output: usize) -> usize {
        (output / OUTPUTS * self.depth.div_ceil(self.group) + group) * OUTPUTS + output % OUTPUTS
    }

    /// Appends the outputs of `next`, as parts of one weight: q, k and v, or the experts of a
    /// layer.
    ///
    /// # Errors
    /// [`Error::Shape`] if the weights differ in anything but their outputs, or the outputs of this
    /// one are not a multiple of 16.
    pub fn append(&mut self, next: &PackedWeight) -> Result<()> {
        let same = |a: &PackedWeight, b: &PackedWeight| {
            (a.format, a.inputs, a.depth, a.group) == (b.format, b.inputs, b.depth, b.group)
                && (&a.columns, a.table) == (&b.columns, b.table)
        };
        if !same(self, next) {
            return Err(Error::Shape("packed weights of different layouts cannot be stacked".to_owned()));
        }
        if !self.outputs.is_multiple_of(OUTPUTS) {
            return Err(Error::Shape(format!(
                "weights cannot be stacked below {} outputs: not a multiple of 16",
                self.outputs
            )));
        }
        self.outputs += next.outputs;
        self.data.extend_from_slice(&next.data);
        self.scales.extend_from_slice(&next.scales);
        Ok(())
    }
}

/// Checks the length of a tensor of a checkpoint.
pub(super) fn expect_len(what: &str, got: usize, want: usize) -> Result<()> {
    if got == want { Ok(()) } else { Err(Error::Shape(format!("{what} has {got} elements, not {want}"))) }
}

/// Returns an error if a scale is not finite.
pub(super) fn expect_finite(scales: &[f32]) -> Result<()> {
    match scales.iter().find(|s| !s.is_finite()) {
        Some(bad) => Err(Error::Unsupported(format!("a scale of {bad}"))),
        None => Ok(()),
    }
}
