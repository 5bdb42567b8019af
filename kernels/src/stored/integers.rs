//! Stored integers without rounding, in the form that devices multiply by.

use crate::encoding::{Integers, NumberType, Offsets};
use crate::quantize::{Group, StoredGroups};
use crate::tensor::part_of_row;
use crate::{DType, Encoding, IntFormat, Part};

/// Returns the format in which a device can keep `parts`, stacked, with the codes, scales and
/// offsets that are stored.
///
/// Groups of other sizes become several groups with equal scales, of 128, 64 or 32 columns. Codes
/// of 2 and 3 bits become codes of 4 bits, and scales that are not of type f16 become f32. There is
/// no such format if a part is not stored as integers, if a group (or a rank's share of it) is not
/// a multiple of 32 columns, or if columns are ordered by group and the orders of two parts differ.
pub fn exact_integers(parts: &[Part]) -> Option<IntFormat> {
    let shares = parts.iter().map(Share::of).collect::<Option<Vec<_>>>()?;
    let order = shares.first()?.order();
    if shares[1..].iter().any(|share| share.order() != order) {
        return None;
    }
    if shares.iter().all(Share::is_int8) {
        return Some(IntFormat::Int8);
    }
    let groups = shares.iter().map(Share::groups).collect::<Option<Vec<_>>>()?;
    groups.into_iter().reduce(StoredGroups::common).map(|groups| IntFormat::Stored(groups.simplified()))
}

/// The share of a part in a matrix of integers.
struct Share<'a> {
    integers: &'a Integers,
    part: &'a Part,
}

impl<'a> Share<'a> {
    fn of(part: &'a Part) -> Option<Share<'a>> {
        match &part.tensor.encoding {
            Encoding::Integers(integers) => Some(Share { integers, part }),
            _ => None,
        }
    }

    fn order(&self) -> Option<Vec<u32>> {
        self.integers.groups.order(self.part.cols.clone())
    }

    /// Tells whether the part has the format [`IntFormat::Int8`].
    fn is_int8(&self) -> bool {
        self.integers.codes.bits() == 8
            && self.integers.offsets == Offsets::Same(128)
            && self.integers.groups.is_one(&self.part.cols)
    }

    /// Returns the format of the part by itself.
    fn groups(&self) -> Option<StoredGroups> {
        let bits = if self.integers.codes.bits() <= 4 { 4 } else { 8 };
        let scales = &self.integers.scales;
        let is_half = scales.numbers.kind() == NumberType::Dense(DType::F16) && scales.divisor == 1.0;
        Some(StoredGroups {
            bits,
            cols: self.integers.groups.device_group(self.part.cols.clone())?,
            wide_scales: !is_half,
            has_offsets: self.integers.offsets != Offsets::Same(1 << (bits - 1)),
        })
    }
}

/// The rows of stacked parts, in the format that [`exact_integers`] has returned.
#[derive(Debug)]
pub struct IntegerRows<'a> {
    parts: &'a [Part],
    cols: usize,
    /// Columns of a group.
    group: usize,
    order: Option<Vec<u32>>,
}

impl<'a> IntegerRows<'a> {
    /// Creates the rows of `parts`, or returns `None` if their format is not `format`.
    pub fn new(parts: &'a [Part], format: IntFormat) -> Option<IntegerRows<'a>> {
        if exact_integers(parts)? != format {
            return None;
        }
        let cols = parts.first()?.cols.len();
        let order = Share::of(parts.first()?)?.order();
        Some(IntegerRows { parts, cols, group: format.group_cols(cols), order })
    }

    /// Returns the columns in the order in which [`IntegerRows::read`] returns them, if it is another
    /// order than that of the matrix.
    pub fn order(&self) -> Option<&[u32]> {
        self.order.as_deref()
    }

    /// Writes the codes of a row, and the scales and offsets of its groups.
    ///
    /// # Panics
    /// If there is no such row, or if the slices have other lengths.
    pub fn read(&self, row: usize, codes: &mut [u8], groups: &mut [Group]) {
        assert_eq!((codes.len(), groups.len()), (self.cols, self.cols.div_ceil(self.group.max(1))));
        let (part, row) = part_of_row(self.parts, row);
        let (row, first) = (part.rows.start + row, part.cols.start);
        let Some(Share { integers, .. }) = Share::of(part) else {
            unreachable!("a part of another encoding; this is a bug");
        };
        match &self.order {
            None => integers.codes.read_row(&part.tensor.bytes, row, part.cols.clone(), codes),
            Some(order) => {
                let mut stored = vec![0; self.cols];
                integers.codes.read_row(&part.tensor.bytes, row, part.cols.clone(), &mut stored);
                codes.iter_mut().zip(order).for_each(|(code, &col)| *code = stored[col as usize]);
            }
        }
        for (index, group) in groups.iter_mut().enumerate() {
            let at = index * self.group;
            let col = self.order.as_ref().map_or(at, |order| order[at] as usize);
            *group = integers.group(row, integers.groups.group(first + col));
        }
    }
}
