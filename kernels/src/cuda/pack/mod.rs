//! Weights of 4 and 8 bits, from the layouts of checkpoints to the one that the kernels read.
//!
//! The layout is described in `cuda/include/weights.cuh`: for 4 bits tiles of 16 outputs in which 16 bytes are what one lane multiplies with, for 8 bits rows as the device's library
//! takes them too, and a word per group of columns and output. Everything that differs between checkpoints (order of nibbles, zero points, order of columns) ends here.

mod arrange;
mod bytes;
mod int4;

pub use bytes::{Scales, e4m3, int8};
pub use int4::{Awq, Gptq, awq, gptq};

use super::ops::quant::Weight;
use super::{Device, Elem, Memory};
use crate::{Error, Result};

/// Outputs of a tile.
pub(crate) const OUTPUTS: usize = 16;
/// Columns of the smallest group of 4 bits.
const GROUP: usize = 32;
/// The number of columns is padded to a multiple of this.
pub(crate) const DEPTH: usize = 64;
/// Bytes of a tile of 4 bits.
const TILE_BYTES: usize = 512;

/// How a number is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `scale * (q - zero)`, q and zero in 0 … 15 (zero up to 16).
    Int4,
    /// `scale * q`, q signed.
    Int8,
    /// `scale * q`, q in FP8 with four bits of exponent.
    E4M3,
}

impl Format {
    /// Bits per number.
    pub const fn bits(self) -> usize {
        match self {
            Format::Int4 => 4,
            Format::Int8 | Format::E4M3 => 8,
        }
    }

    /// Columns of the smallest group.
    pub(crate) const fn least_group(self) -> usize {
        match self {
            Format::Int4 => GROUP,
            Format::Int8 | Format::E4M3 => 64,
        }
    }
}

/// A weight in the kernels' layout, on the host.
#[derive(Debug, Clone, PartialEq)]
pub struct Packed {
    /// How a number is stored.
    pub format: Format,
    /// Features of a result.
    pub outputs: usize,
    /// Features of x.
    pub inputs: usize,
    /// Columns, padding included.
    pub depth: usize,
    /// Columns that share a scale: a power of two.
    pub group: usize,
    /// `[outputs / 16][depth / 64]` tiles of 512 bytes for 4 bits, `[outputs rounded up to 16][depth]` for 8.
    pub data: Vec<u8>,
    /// `[outputs / 16][groups][16]`: a scale's bits, for int4 with the zero point in the low five.
    pub scales: Vec<u32>,
    /// `[depth]`: the feature of x that each column meets, -1 for padding. Absent if they are in order.
    pub columns: Option<Vec<i32>>,
}

impl Packed {
    /// A weight of zeros. `group` is rounded up to a power of two.
    fn zeros(format: Format, outputs: usize, inputs: usize, depth: usize, group: usize) -> Packed {
        let group = group.next_power_of_two();
        let padded = outputs.next_multiple_of(OUTPUTS);
        let data = vec![0; padded * depth * format.bits() / 8];
        let scales = vec![0; padded * depth.div_ceil(group)];
        Packed { format, outputs, inputs, depth, group, data, scales, columns: None }
    }

    /// Index of the word for a group and an output.
    fn word(&self, group: usize, output: usize) -> usize {
        (output / OUTPUTS * self.depth.div_ceil(self.group) + group) * OUTPUTS + output % OUTPUTS
    }

    /// Stacks `next` below, as the parts of one weight: q, k and v, or the experts of a layer.
    ///
    /// # Errors
    /// [`Error::Shape`] if they differ in anything but their outputs, or this one's are not a multiple of 16.
    pub fn append(&mut self, next: &Packed) -> Result<()> {
        let same = |a: &Packed, b: &Packed| {
            (a.format, a.inputs, a.depth, a.group) == (b.format, b.inputs, b.depth, b.group)
                && a.columns == b.columns
        };
        if !same(self, next) {
            return Err(Error::Shape("packed weights of different layouts cannot be stacked".to_owned()));
        }
        if !self.outputs.is_multiple_of(OUTPUTS) {
            return Err(Error::Shape(format!("nothing can be stacked below {} outputs", self.outputs)));
        }
        self.outputs += next.outputs;
        self.data.extend_from_slice(&next.data);
        self.scales.extend_from_slice(&next.scales);
        Ok(())
    }

    /// Copies the weight to a device.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or what the copy fails with.
    pub fn upload(&self, device: &Device) -> Result<Loaded> {
        let words = |all: &mut dyn Iterator<Item = u32>| all.flat_map(u32::to_le_bytes).collect::<Vec<u8>>();
        let columns = self.columns.as_ref().map(|all| words(&mut all.iter().map(|&c| c as u32)));
        Ok(Loaded {
            format: self.format,
            depth: self.depth,
            group: self.group,
            data: device.upload(&self.data)?,
            scales: device.upload(&words(&mut self.scales.iter().copied()))?,
            columns: columns.map(|bytes| device.upload(&bytes)).transpose()?,
        })
    }
}

/// A weight in the kernels' layout, on a device.
#[derive(Debug)]
pub struct Loaded {
    format: Format,
    depth: usize,
    group: usize,
    data: Memory,
    scales: Memory,
    columns: Option<Memory>,
}

impl Loaded {
    /// FP8 in rows of `depth` columns with a factor each.
    pub(crate) fn fp8(depth: usize, data: Memory, scales: Memory) -> Loaded {
        Loaded { format: Format::E4M3, depth, group: depth.next_power_of_two(), data, scales, columns: None }
    }

    /// What the operations take.
    pub fn weight(&self) -> Weight<'_> {
        Weight {
            format: self.format,
            depth: self.depth,
            group: self.group,
            data: self.data.view(Elem::U8),
            scales: self.scales.view(Elem::U32),
            columns: self.columns.as_ref().map(|c| c.view(Elem::I32)),
        }
    }
}

/// Checks the length of a part of a checkpoint.
fn expect_len(what: &str, got: usize, want: usize) -> Result<()> {
    if got == want { Ok(()) } else { Err(Error::Shape(format!("{what} has {got} elements, not {want}"))) }
}

/// Refuses scales that are not numbers.
fn expect_finite(scales: &[f32]) -> Result<()> {
    match scales.iter().find(|s| !s.is_finite()) {
        Some(bad) => Err(Error::Unsupported(format!("a scale of {bad}"))),
        None => Ok(()),
    }
}
