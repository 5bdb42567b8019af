//! A weight in the kernels' layout, on a device.

use millrace_backend::{Error, Result};

use super::format::{CodeTable, DEPTH, OUTPUTS, PackedFormat, WeightLayout};
use super::groups::{GroupBlocks, GroupLayout};
use super::packed::PackedWeight;
use crate::{Device, Elem, Memory, View};

/// A borrowed view of a packed weight in device memory, in the layout of
/// [`super::packed::PackedWeight`].
#[derive(Debug, Clone, Copy)]
pub struct QuantizedWeight<'a> {
    /// The format of the numbers.
    pub format: PackedFormat,
    /// Columns, including padding: a multiple of 64.
    pub depth: usize,
    /// The number of columns that share a scale: a power of two, at least 32 (integers) or 64
    /// (FP8); 32 for K-quants.
    pub group: usize,
    /// u8. Integers: `[outputs / 16][depth / 64]` tiles of 512 bytes (4 bits) or 1024 bytes (8
    /// bits). FP8: `[outputs rounded up to 16][depth]`.
    pub data: View<'a>,
    /// u32, `[outputs / 16][groups][16]`.
    pub scales: View<'a>,
    /// i32 `[depth]`: the input feature of each column, negative for padding. Without it the
    /// columns are in order.
    pub columns: Option<View<'a>>,
    /// The numbers of codes of four bits.
    pub table: CodeTable,
}

impl QuantizedWeight<'_> {
    /// Checks types and lengths for a weight of `experts` times `outputs` outputs.
    pub(crate) fn check(&self, experts: usize, inputs: usize, outputs: usize) -> Result<()> {
        let &QuantizedWeight { format, depth, group, data, scales, columns, .. } = self;
        if !depth.is_multiple_of(DEPTH) || depth == 0 {
            return Err(Error::Shape(format!("{depth} columns are not a multiple of 64")));
        }
        let (least, largest) = (format.least_group(), format.largest_group());
        if !group.is_power_of_two() || !(least..=largest).contains(&group) {
            return Err(Error::Shape(format!(
                "groups of {group} columns: not a power of two from {least} to {largest}"
            )));
        }
        check_countable(&[depth, outputs.next_multiple_of(OUTPUTS) * depth.div_ceil(group), experts])?;
        let outputs = outputs.next_multiple_of(OUTPUTS) * experts;
        data.expect("weight", Elem::U8, outputs * depth * format.bits() / 8)?;
        scales.expect("scales", Elem::U32, outputs * depth.div_ceil(group))?;
        match columns {
            Some(columns) => columns.expect("columns", Elem::I32, depth),
            None if inputs > depth => Err(Error::Shape(format!("{inputs} inputs for {depth} columns"))),
            None => Ok(()),
        }
    }

    /// Returns how the weight lies in device memory.
    pub(crate) fn layout(&self) -> WeightLayout {
        WeightLayout::packed(self.format, self.depth, self.group)
    }

    pub(crate) fn group_bits(&self) -> u32 {
        self.group.trailing_zeros()
    }
}

/// A packed weight in device memory, in the layout of [`PackedWeight`].
#[derive(Debug)]
pub struct UploadedWeight {
    format: PackedFormat,
    depth: usize,
    group: usize,
    data: Memory,
    scales: Memory,
    columns: Option<Memory>,
    table: CodeTable,
}

impl UploadedWeight {
    /// An FP8 weight in rows of `depth` columns with one scale each.
    pub(crate) fn fp8(depth: usize, data: Memory, scales: Memory) -> UploadedWeight {
        UploadedWeight {
            format: PackedFormat::Fp8,
            depth,
            group: depth.next_power_of_two(),
            data,
            scales,
            columns: None,
            table: CodeTable::default(),
        }
    }

    /// A matrix of codes in this layout.
    pub(crate) fn groups(
        blocks: &GroupBlocks<'_>,
        data: Memory,
        scales: Memory,
        columns: Option<Memory>,
    ) -> UploadedWeight {
        let &GroupLayout { format, depth, group, .. } = blocks.layout();
        UploadedWeight { format, depth, group, data, scales, columns, table: blocks.table() }
    }

    /// Whether the device's library multiplies by the weight.
    pub(crate) fn is_fp8_by_row(&self) -> bool {
        self.weight().layout() == WeightLayout::FP8_ROWS
    }

    /// Whether the columns have an order of their own.
    pub(crate) fn has_ordered_columns(&self) -> bool {
        self.columns.is_some()
    }

    /// The view that operations take.
    pub fn weight(&self) -> QuantizedWeight<'_> {
        QuantizedWeight {
            format: self.format,
            depth: self.depth,
            group: self.group,
            data: self.data.view(Elem::U8),
            scales: self.scales.view(Elem::U32),
            columns: self.columns.as_ref().map(|c| c.view(Elem::I32)),
            table: self.table,
        }
    }
}

impl PackedWeight {
    /// Copies the weight to a device.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or the error of the copy.
    pub fn upload(&self, device: &Device) -> Result<UploadedWeight> {
        let words = |all: &mut dyn Iterator<Item = u32>| all.flat_map(u32::to_le_bytes).collect::<Vec<u8>>();
        let columns = self.columns.as_ref().map(|all| words(&mut all.iter().map(|&c| c as u32)));
        Ok(UploadedWeight {
            format: self.format,
            depth: self.depth,
            group: self.group,
            data: device.upload(&self.data)?,
            scales: device.upload(&words(&mut self.scales.iter().copied()))?,
            columns: columns.map(|bytes| device.upload(&bytes)).transpose()?,
            table: self.table,
        })
    }
}

/// Returns an error for sizes that kernels cannot count in an `int`.
fn check_countable(sizes: &[usize]) -> Result<()> {
    match sizes.iter().find(|&&n| i32::try_from(n).is_err()) {
        Some(n) => Err(Error::Shape(format!("{n} is more than a kernel can count"))),
        None => Ok(()),
    }
}
