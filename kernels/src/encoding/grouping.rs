//! The groups that columns belong to.

use std::ops::Range;
use std::sync::Arc;

use crate::{Error, Result};

/// The sizes of groups that a device multiplies, largest first. All divide the next larger one.
const DEVICE_GROUPS: [usize; 3] = [128, 64, 32];

/// The group of each column of a matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ColumnGroups {
    /// Groups of this many successive columns. The last one may have fewer.
    Even(usize),
    /// The group of each column (GPTQ's `g_idx`): columns were quantized in the order of their
    /// activations ("desc_act").
    Indexed(Arc<[u32]>),
}

impl ColumnGroups {
    /// Creates groups from the list of each column's group in little-endian i32.
    ///
    /// # Errors
    /// [`Error::Shape`] if there are not `cols` numbers, or if one is not below `groups`.
    pub fn indexed(bytes: &[u8], cols: usize, groups: usize) -> Result<ColumnGroups> {
        if bytes.len() != 4 * cols {
            return Err(Error::Shape(format!("{} bytes for the groups of {cols} columns", bytes.len())));
        }
        let index = |bytes: &[u8]| i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let mut all = Vec::with_capacity(cols);
        for (col, group) in bytes.chunks_exact(4).map(index).enumerate() {
            match u32::try_from(group) {
                Ok(group) if (group as usize) < groups => all.push(group),
                _ => {
                    return Err(Error::Shape(format!("column {col} is in group {group} of {groups}")));
                }
            }
        }
        Ok(ColumnGroups::Indexed(all.into()))
    }

    /// Returns the same groups as [`ColumnGroups::Even`] if a list says nothing else.
    #[must_use]
    pub fn simplified(self, group_cols: usize) -> ColumnGroups {
        match self {
            ColumnGroups::Indexed(groups)
                if groups
                    .iter()
                    .enumerate()
                    .all(|(col, &group)| group as usize == col / group_cols.max(1)) =>
            {
                ColumnGroups::Even(group_cols)
            }
            other => other,
        }
    }

    /// Returns the group of a column.
    ///
    /// # Panics
    /// If a list has fewer columns.
    #[inline]
    pub fn group(&self, col: usize) -> usize {
        match self {
            ColumnGroups::Even(cols) => col / cols,
            ColumnGroups::Indexed(groups) => groups[col] as usize,
        }
    }

    /// Returns whether all columns of `cols` are in one group.
    pub(crate) fn is_one(&self, cols: &Range<usize>) -> bool {
        cols.clone().all(|col| self.group(col) == self.group(cols.start))
    }

    /// Returns the columns of `cols` in the order of their groups, or `None` if they have this
    /// order already.
    pub(crate) fn order(&self, cols: Range<usize>) -> Option<Vec<u32>> {
        let ColumnGroups::Indexed(groups) = self else { return None };
        let mut order: Vec<u32> = (0..cols.len() as u32).collect();
        order.sort_by_key(|&col| groups[cols.start + col as usize]);
        if order.is_sorted() { None } else { Some(order) }
    }

    /// Returns the largest size of groups that a device multiplies and that divides all groups of
    /// `cols`, whose columns are in order. Returns `None` if there is no such size.
    pub(crate) fn device_group(&self, cols: Range<usize>) -> Option<usize> {
        let fits = |size: &usize| {
            cols.len().is_multiple_of(*size)
                && match self {
                    _ if self.is_one(&cols) => true,
                    ColumnGroups::Even(group) => {
                        group.is_multiple_of(*size) && cols.start.is_multiple_of(*size)
                    }
                    ColumnGroups::Indexed(groups) => {
                        let mut sorted = groups[cols.clone()].to_vec();
                        sorted.sort_unstable();
                        sorted.chunk_by(|a, b| a == b).all(|run| run.len().is_multiple_of(*size))
                    }
                }
        };
        DEVICE_GROUPS.into_iter().find(fits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn indexed(groups: &[i32], count: usize) -> Result<ColumnGroups> {
        let bytes: Vec<u8> = groups.iter().flat_map(|group| group.to_le_bytes()).collect();
        ColumnGroups::indexed(&bytes, groups.len(), count)
    }

    #[test]
    fn groups_are_divided_into_sizes_that_a_device_multiplies() {
        let even = |group, cols| ColumnGroups::Even(group).device_group(cols);
        assert_eq!([even(128, 0..256), even(64, 0..256), even(32, 0..96)], [Some(128), Some(64), Some(32)]);
        // A larger group is several groups with one scale, and so is a whole row.
        assert_eq!([even(256, 0..512), even(96, 0..192), even(320, 0..320)], [Some(128), Some(32), Some(64)]);
        // The shares of two ranks.
        assert_eq!(
            [even(128, 192..384), even(128, 176..352), even(1000, 352..704)],
            [Some(64), None, Some(32)]
        );
        assert_eq!([even(48, 0..96), even(128, 0..200)], [None, None]);
    }

    #[test]
    fn columns_in_any_order_are_sorted_by_group() {
        let list: Vec<i32> = (0..128).map(|col| (col * 7 % 128) / 64).collect();
        let groups = indexed(&list, 2).unwrap();
        let order = groups.order(0..128).unwrap();
        let sorted: Vec<usize> = order.iter().map(|&col| groups.group(col as usize)).collect();
        assert!(sorted.is_sorted());
        assert_eq!(groups.device_group(0..128), Some(64));
        // Half of the columns have groups of any size.
        assert_eq!(groups.device_group(3..67), None);
        let trivial: Vec<i32> = (0..128).map(|col| col / 64).collect();
        let trivial = indexed(&trivial, 2).unwrap();
        assert!(trivial.order(0..128).is_none());
        assert_eq!(trivial.simplified(64), ColumnGroups::Even(64));
        assert_eq!(groups.clone().simplified(64), groups);
    }

    #[test]
    fn a_group_that_is_not_there_is_an_error() {
        for bad in [-1, 2, i32::MAX] {
            let error = indexed(&[0, 1, bad], 2).unwrap_err().to_string();
            assert!(error.contains(&format!("column 2 is in group {bad} of 2")), "{error}");
        }
        assert!(ColumnGroups::indexed(&[0; 10], 3, 1).is_err());
    }
}
