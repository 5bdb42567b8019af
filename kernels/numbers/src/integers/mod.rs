//! Weights as integers in groups: the arithmetic that checkpoints, all devices and the reference
//! share.
//!
//! The columns of each row are cut into groups. A group has a scale and an offset, and its weights
//! are unsigned integers ("codes"): `weight = (code - offset) * scale`.
//!
//! [`Integers`] are what a checkpoint has, in any [`CodeLayout`]. An [`IntFormat`] is what a device
//! keeps: weights are quantized to it, or [`IntegerRows`] reads the integers of a checkpoint for
//! it.

mod code_layout;
mod column_groups;
mod group;
mod int_format;
mod rows;

use std::ops::Range;

use bytes::Bytes;

pub(crate) use code_layout::words;
pub use code_layout::{CodeLayout, WordLayout};
pub use column_groups::ColumnGroups;
pub use group::Group;
pub use int_format::{IntFormat, StoredGroups};
pub use rows::{IntegerRows, exact_integers};

use crate::codes::CodeRow;
use crate::scales::ScaleGrid;
use crate::{Error, Result};

/// Weights as unsigned integers in groups of columns, `(code - offset) * scale`. The codes are the
/// bytes of the [`HostTensor`](crate::HostTensor).
#[derive(Debug, Clone, PartialEq)]
pub struct Integers {
    /// The places of the codes.
    pub codes: CodeLayout,
    /// The scale of each row and group.
    pub scales: ScaleGrid,
    /// The code of the weight 0 for each row and group.
    pub offsets: Offsets,
    /// The group of each column.
    pub groups: ColumnGroups,
}

/// The offsets of the groups.
#[derive(Debug, Clone, PartialEq)]
pub enum Offsets {
    /// All groups have this one.
    Same(u8),
    /// Zero points `[rows, groups]`.
    Stored {
        /// The places of the zero points.
        layout: CodeLayout,
        /// The zero points.
        bytes: Bytes,
        /// Whether 1 is added to a zero point, modulo the number of codes: the first format of GPTQ
        /// stores one less.
        plus_one: bool,
    },
}

impl Integers {
    /// Checks that a matrix `[rows, cols]` with `bytes` bytes of codes has all scales and offsets.
    ///
    /// # Errors
    /// [`Error::Shape`] if it does not.
    pub(crate) fn check(&self, rows: usize, cols: usize, bytes: usize) -> Result<()> {
        let wrong =
            |what: &str| Err(Error::Shape(format!("{what} of a quantized matrix of {rows} x {cols}")));
        let groups = match &self.groups {
            ColumnGroups::Even(0) => return wrong("groups of no columns"),
            ColumnGroups::Even(group) => cols.div_ceil(*group),
            ColumnGroups::Indexed(list) if list.len() != cols => return wrong("groups of other columns"),
            ColumnGroups::Indexed(list) => list.iter().max().map_or(0, |&last| last as usize + 1),
        };
        if !self.codes.fits(rows, cols, bytes) {
            return wrong("another number of codes than those");
        }
        self.scales.check(rows, groups)?;
        match &self.offsets {
            Offsets::Stored { layout, bytes, .. } if !layout.fits(rows, groups, bytes.len()) => {
                wrong("another number of zero points than those")
            }
            _ => Ok(()),
        }
    }

    /// Returns the scale and the offset of a row and a group.
    #[inline]
    pub fn group(&self, row: usize, group: usize) -> Group {
        let offset = match &self.offsets {
            Offsets::Same(offset) => *offset,
            Offsets::Stored { layout, bytes, plus_one } => {
                let largest = ((1u16 << layout.bits()) - 1) as u8;
                layout.get(bytes, row, group).wrapping_add(u8::from(*plus_one)) & largest
            }
        };
        Group { scale: self.scales.get(row, group), offset }
    }

    /// Writes the weights of columns `cols` of a row to `out`, which is as long.
    pub(crate) fn read_row(&self, row: CodeRow<'_>, cols: Range<usize>, out: &mut [f32]) {
        const RUN: usize = 256;
        let mut codes = [0; RUN];
        // The group of the last column, whose numbers are read once for successive columns.
        let mut last = None;
        let mut col = cols.start;
        for out in out.chunks_mut(RUN) {
            let codes = &mut codes[..out.len()];
            self.codes.read_row(row.bytes, row.row, col..col + codes.len(), codes);
            for (out, &code) in out.iter_mut().zip(&*codes) {
                let index = self.groups.group(col);
                let group = match last {
                    Some((known, group)) if known == index => group,
                    _ => self.group(row.row, index),
                };
                last = Some((index, group));
                *out = group.value(code);
                col += 1;
            }
        }
    }
}
