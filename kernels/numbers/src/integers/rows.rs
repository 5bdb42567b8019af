//! Stored integers without rounding, in the form that devices multiply by.

use std::ops::Range;

use super::column_groups::Arrangement;
use super::{Group, IntFormat, Integers, Offsets, StoredGroups};
use crate::scales::NumberType;
use crate::tensor::part_of_row;
use crate::{DType, Encoding, Part};

/// The most bits that a weight may take with its share of the padding. With more, a matrix of 16
/// bits is multiplied faster.
const MOST_BITS: usize = 11;

/// Returns the format in which a device can keep `parts`, stacked, with the codes, scales and
/// offsets that are stored.
///
/// Groups of other sizes become several groups with equal scales, of 128, 64 or 32 columns, or are
/// padded to a multiple of 32 columns. Codes of 2 and 3 bits become codes of 4 bits, and scales
/// that are not of type f16 become f32. There is no such format if a part is not stored as
/// integers, if padding would take too much memory, or if columns are ordered by group and the
/// orders of two parts differ.
pub fn exact_integers(parts: &[Part]) -> Option<IntFormat> {
    let integers = parts.iter().map(integers).collect::<Option<Vec<_>>>()?;
    if !parts.is_empty() && integers.iter().zip(parts).all(|(integers, part)| is_int8(integers, &part.cols)) {
        return Some(IntFormat::Int8);
    }
    let mut groups: Option<StoredGroups> = None;
    let mut first_order = None;
    for (integers, part) in integers.into_iter().zip(parts) {
        let Arrangement { group, order } = integers.groups.arrangement(part.cols.clone());
        let of_part =
            of_part(integers, group, order.as_ref().map_or(0, |order| order.len() - part.cols.len()));
        groups = match groups {
            None => {
                first_order = order;
                Some(of_part)
            }
            Some(_) if order != first_order => return None,
            Some(others) => Some(others.common(of_part)),
        };
    }
    let (groups, cols) = (groups?.simplified(), parts.first()?.cols.len());
    let fits = (cols + groups.padding).saturating_mul(groups.bits) <= cols.saturating_mul(MOST_BITS);
    fits.then_some(IntFormat::Stored(groups))
}

fn integers(part: &Part) -> Option<&Integers> {
    match &part.tensor.encoding {
        Encoding::Integers(integers) => Some(integers),
        _ => None,
    }
}

/// Tells whether columns `cols` have the format [`IntFormat::Int8`].
fn is_int8(integers: &Integers, cols: &Range<usize>) -> bool {
    integers.codes.bits() == 8 && integers.offsets == Offsets::Same(128) && integers.groups.is_one(cols)
}

/// Returns the format of a part by itself, in groups of `cols` columns.
fn of_part(integers: &Integers, cols: usize, padding: usize) -> StoredGroups {
    let bits = if integers.codes.bits() <= 4 { 4 } else { 8 };
    let scales = &integers.scales;
    let is_half = scales.numbers.kind() == NumberType::Dense(DType::F16) && scales.divisor == 1.0;
    let has_offsets = integers.offsets != Offsets::Same(1 << (bits - 1));
    StoredGroups { bits, cols, wide_scales: !is_half, has_offsets, padding }
}

/// The rows of stacked parts, in the format that [`exact_integers`] has returned.
#[derive(Debug)]
pub struct IntegerRows<'a> {
    parts: &'a [Part],
    /// Columns of a row, with its padding.
    cols: usize,
    /// Columns of a group.
    group: usize,
    order: Option<Vec<u32>>,
    /// The places of padding in `order`.
    padding: Vec<usize>,
}

impl<'a> IntegerRows<'a> {
    /// Creates the rows of `parts`, or returns `None` if their format is not `format`.
    pub fn new(parts: &'a [Part], format: IntFormat) -> Option<IntegerRows<'a>> {
        if exact_integers(parts)? != format {
            return None;
        }
        let first = parts.first()?;
        let cols = format.packed_cols(first.cols.len());
        let order = match format {
            // The groups of bytes with scales of rows are those of the activations.
            IntFormat::Int8 => None,
            _ => integers(first)?.groups.arrangement(first.cols.clone()).order,
        };
        let mut seen = vec![false; first.cols.len()];
        let is_repeated = |col: &u32| std::mem::replace(&mut seen[*col as usize], true);
        let repeated: Vec<bool> = order.iter().flatten().map(is_repeated).collect();
        let padding = (0..repeated.len()).filter(|&at| repeated[at]).collect();
        Some(IntegerRows { parts, cols, group: format.group_cols(cols), order, padding })
    }

    /// Returns the columns in the order in which [`IntegerRows::read`] returns them, if it is
    /// another order than that of the matrix. Padding has a column of its group again.
    pub fn order(&self) -> Option<&[u32]> {
        self.order.as_deref()
    }

    /// Writes the codes of a row, and the scales and offsets of its groups. The codes of padding
    /// stand for 0.
    ///
    /// # Panics
    /// If there is no such row, or if the slices have other lengths.
    pub fn read(&self, row: usize, codes: &mut [u8], groups: &mut [Group]) {
        assert_eq!((codes.len(), groups.len()), (self.cols, self.cols.div_ceil(self.group.max(1))));
        let (part, row) = part_of_row(self.parts, row);
        let (row, first) = (part.rows.start + row, part.cols.start);
        let Some(integers) = integers(part) else {
            unreachable!("a part of another encoding; this is a bug");
        };
        match &self.order {
            None => integers.codes.read_row(&part.tensor.bytes, row, part.cols.clone(), codes),
            Some(order) => {
                let mut stored = vec![0; part.cols.len()];
                integers.codes.read_row(&part.tensor.bytes, row, part.cols.clone(), &mut stored);
                codes.iter_mut().zip(order).for_each(|(code, &col)| *code = stored[col as usize]);
            }
        }
        for (index, group) in groups.iter_mut().enumerate() {
            let at = index * self.group;
            let col = self.order.as_ref().map_or(at, |order| order[at] as usize);
            *group = integers.group(row, integers.groups.group(first + col));
        }
        for &at in &self.padding {
            codes[at] = groups[at / self.group].offset;
        }
    }
}
