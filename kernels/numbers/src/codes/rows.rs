//! Stored codes without rounding, in the form that devices multiply by.

use super::{CodeRow, CodeType, CodedWeights, StoredCodes};
use crate::tensor::part_of_row;
use crate::{Error, Part, Result};

/// Columns of the largest group. A longer block becomes several groups with equal factors, which
/// costs less than 1% of the memory, so that a group with its activations fits the caches.
const LARGEST_GROUP: usize = 512;
/// Columns of the smallest group. Smaller ones would cost too much memory.
const SMALLEST_GROUP: usize = 16;
/// Groups are a multiple of this many columns.
const STEP: usize = 8;

/// Returns the format in which a device can keep `parts`, stacked, with the codes and scales that
/// are stored.
///
/// There is no such format if a part is not stored as codes that stand for numbers, if the codes of
/// two parts stand for different numbers, or if blocks and the columns of the parts have no common
/// divisor that is a multiple of 8 and at least 16.
pub fn exact_codes(parts: &[Part]) -> Option<StoredCodes> {
    let weights = parts.iter().map(coded).collect::<Option<Vec<_>>>()?;
    let (first, rest) = weights.split_first()?;
    let is_same = |other: &&dyn CodedWeights| {
        other.code_type() == first.code_type() && same_values(other.values(), first.values())
    };
    let fits = |group: &usize| {
        let mut parts = weights.iter().zip(parts);
        parts.all(|(weights, part)| weights.has_groups_of(*group, part.tensor.cols, &part.cols))
    };
    if !rest.iter().all(is_same) {
        return None;
    }
    let cols = (SMALLEST_GROUP..=LARGEST_GROUP).rev().step_by(STEP).find(fits)?;
    // Only a block that has the whole row has no end within a group of any size.
    Some(StoredCodes { codes: first.code_type(), cols, by_row: fits(&usize::MAX) })
}

fn coded(part: &Part) -> Option<&dyn CodedWeights> {
    part.tensor.encoding.coded()
}

/// Compares bits: a NaN is the same as itself.
fn same_values(a: &[f32], b: &[f32]) -> bool {
    a.iter().map(|x| x.to_bits()).eq(b.iter().map(|x| x.to_bits()))
}

/// The rows of stacked parts, in the format that [`exact_codes`] has returned.
#[derive(Debug)]
pub struct CodeRows<'a> {
    parts: &'a [Part],
    format: StoredCodes,
}

impl<'a> CodeRows<'a> {
    /// Creates the rows of `parts`, or returns `None` if their format is not `format`.
    pub fn new(parts: &'a [Part], format: StoredCodes) -> Option<CodeRows<'a>> {
        (exact_codes(parts)? == format).then_some(CodeRows { parts, format })
    }

    /// Returns the values of codes of four bits.
    pub fn table(&self) -> Option<[f32; 16]> {
        let weights = coded(self.parts.first()?)?;
        match weights.code_type() {
            CodeType::FourBits => weights.values().try_into().ok(),
            CodeType::E4m3 => None,
        }
    }

    /// Writes the codes of a row, one per byte, and the factors of its groups.
    ///
    /// # Errors
    /// [`Error::StoredNumber`] if a code stands for a NaN or an infinity, or if a factor is one.
    ///
    /// # Panics
    /// If there is no such row, or if the slices have other lengths.
    pub fn read(&self, row: usize, codes: &mut [u8], factors: &mut [f32]) -> Result<()> {
        let (part, row) = part_of_row(self.parts, row);
        let group = self.format.cols;
        assert_eq!((codes.len(), factors.len()), (part.cols.len(), part.cols.len().div_ceil(group)));
        let Some(weights) = coded(part) else {
            unreachable!("a part of another encoding; this is a bug");
        };
        let place =
            CodeRow { bytes: &part.tensor.bytes, stored: part.tensor.cols, row: part.rows.start + row };
        weights.read_codes(place, part.cols.clone(), codes);
        for (factor, col) in factors.iter_mut().zip(part.cols.clone().step_by(group)) {
            *factor = weights.block(place, col).0;
        }
        let values = weights.values();
        let is_lost = |(col, code): &(usize, &u8)| {
            !(values[usize::from(**code)].is_finite() && factors[col / group].is_finite())
        };
        match codes.iter().enumerate().find(is_lost).map(|(col, _)| col) {
            None => Ok(()),
            Some(col) => {
                let index = self.parts.iter().position(|other| std::ptr::eq(other, part)).unwrap_or_default();
                Err(Error::StoredNumber { part: index, row: place.row, col: part.cols.start + col })
            }
        }
    }
}
