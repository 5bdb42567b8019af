//! Integers in groups.

use std::ops::Range;

use bytes::Bytes;

use super::code_layout::CodeLayout;
use super::grouping::ColumnGroups;
use super::numbers::Numbers;
use crate::quantize::Group;
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

/// A number for each row and group. The number of row r and group g is at index `r * row_stride + g
/// * group_stride`.
#[derive(Debug, Clone, PartialEq)]
pub struct ScaleGrid {
    /// The numbers.
    pub numbers: Numbers,
    /// The distance of two rows. It is 0 if all rows share a number.
    pub row_stride: usize,
    /// The distance of two groups. It is 0 if all groups share a number.
    pub group_stride: usize,
    /// All numbers are divided by this.
    pub divisor: f32,
}

impl ScaleGrid {
    /// Creates a grid of one number, of a number for each of `rows` rows, `[rows, groups]` numbers,
    /// or `[groups, rows]` if `by_group`.
    ///
    /// # Errors
    /// [`Error::Shape`] if there is another number of numbers.
    pub fn new(numbers: Numbers, rows: usize, groups: usize, by_group: bool) -> Result<ScaleGrid> {
        let (row_stride, group_stride) = match numbers.len() {
            1 => (0, 0),
            n if n == rows && groups == 1 => (1, 0),
            n if n == rows.saturating_mul(groups) => {
                if by_group {
                    (1, rows)
                } else {
                    (groups, 1)
                }
            }
            n => return Err(Error::Shape(format!("{n} scales of {rows} rows with {groups} groups each"))),
        };
        Ok(ScaleGrid { numbers, row_stride, group_stride, divisor: 1.0 })
    }

    /// Returns the number of a row and a group.
    #[inline]
    pub fn get(&self, row: usize, group: usize) -> f32 {
        self.numbers.get(row * self.row_stride + group * self.group_stride) / self.divisor
    }

    /// Checks that there is a number for each of `rows` rows and `groups` groups.
    ///
    /// # Errors
    /// [`Error::Shape`] if there is not.
    pub(super) fn check(&self, rows: usize, groups: usize) -> Result<()> {
        let last_row = rows.saturating_sub(1).saturating_mul(self.row_stride);
        let last = last_row.saturating_add(groups.saturating_sub(1).saturating_mul(self.group_stride));
        if rows > 0 && groups > 0 && last >= self.numbers.len() {
            let found = self.numbers.len();
            return Err(Error::Shape(format!("{found} scales of {rows} rows with {groups} groups each")));
        }
        Ok(())
    }
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
    pub(crate) fn read_row(&self, bytes: &[u8], row: usize, cols: Range<usize>, out: &mut [f32]) {
        const RUN: usize = 256;
        let mut codes = [0; RUN];
        // The group of the last column, whose numbers are read once for successive columns.
        let mut last = None;
        let mut col = cols.start;
        for out in out.chunks_mut(RUN) {
            let codes = &mut codes[..out.len()];
            self.codes.read_row(bytes, row, col..col + codes.len(), codes);
            for (out, &code) in out.iter_mut().zip(&*codes) {
                let index = self.groups.group(col);
                let group = match last {
                    Some((known, group)) if known == index => group,
                    _ => self.group(row, index),
                };
                last = Some((index, group));
                *out = group.value(code);
                col += 1;
            }
        }
    }
}
