//! The groups that columns belong to.

use std::ops::Range;
use std::sync::Arc;

use crate::{Error, Result};

/// The sizes of groups that a device multiplies, largest first. All divide the next larger one.
const DEVICE_GROUPS: [usize; 3] = [128, 64, 32];

/// The order in which a device multiplies columns: groups of one size, each with one scale.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Arrangement {
    /// Columns of a group.
    pub(crate) group: usize,
    /// The columns in the order of their groups, if it is another order than theirs. A column that
    /// is there again fills the rest of its group: its weight is 0 there.
    pub(crate) order: Option<Vec<u32>>,
}

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
    /// Returns the number of groups of `group_cols` columns in a row of `cols`.
    ///
    /// # Errors
    /// [`Error::Shape`] for groups of no columns.
    pub fn count(cols: usize, group_cols: usize) -> Result<usize> {
        match group_cols {
            0 => Err(Error::Shape("groups of no columns".to_owned())),
            group => Ok(cols.div_ceil(group)),
        }
    }

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

    /// Returns the arrangement of `cols`, a share of the columns, in groups that a device
    /// multiplies. Where no size divides all groups, as in a rank's share of columns that were
    /// ordered by their activations, each group is filled to a multiple of the smallest size.
    pub(crate) fn arrangement(&self, cols: Range<usize>) -> Arrangement {
        let order = self.sorted(cols.clone());
        if let Some(group) = self.device_group(cols.clone()) {
            return Arrangement { group, order: (!order.is_sorted()).then_some(order) };
        }
        let group = DEVICE_GROUPS[DEVICE_GROUPS.len() - 1];
        let group_of = |col: &u32| self.group(cols.start + *col as usize);
        let mut filled = Vec::with_capacity(2 * order.len());
        for run in order.chunk_by(|a, b| group_of(a) == group_of(b)) {
            for columns in run.chunks(group) {
                filled.extend_from_slice(columns);
                // A column of the same group does not change the largest activation.
                filled.resize(filled.len().next_multiple_of(group), columns[0]);
            }
        }
        Arrangement { group, order: Some(filled) }
    }

    /// Returns the columns of `cols`, counted from the first one, in the order of their groups.
    fn sorted(&self, cols: Range<usize>) -> Vec<u32> {
        let mut order: Vec<u32> = (0..cols.len() as u32).collect();
        order.sort_by_key(|&col| self.group(cols.start + col as usize));
        order
    }

    /// Returns the largest size of groups that a device multiplies and that divides all groups of
    /// `cols`, whose columns are in order. Returns `None` if there is no such size.
    fn device_group(&self, cols: Range<usize>) -> Option<usize> {
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
        let order = groups.arrangement(0..128).order.unwrap();
        let sorted: Vec<usize> = order.iter().map(|&col| groups.group(col as usize)).collect();
        assert!(sorted.is_sorted());
        assert_eq!(groups.device_group(0..128), Some(64));
        // Half of the columns have groups of any size.
        assert_eq!(groups.device_group(3..67), None);
        let trivial: Vec<i32> = (0..128).map(|col| col / 64).collect();
        let trivial = indexed(&trivial, 2).unwrap();
        assert_eq!(trivial.arrangement(0..128), Arrangement { group: 64, order: None });
        assert_eq!(trivial.simplified(64), ColumnGroups::Even(64));
        assert_eq!(groups.clone().simplified(64), groups);
    }

    #[test]
    fn groups_of_any_size_are_filled_with_their_first_column() {
        let list: Vec<i32> = (0..100).map(|col| i32::from(col % 3 == 0)).collect();
        let groups = indexed(&list, 2).unwrap();
        let Arrangement { group, order } = groups.arrangement(1..99);
        let order = order.unwrap();
        // 66 columns are in group 0 and 32 in group 1.
        assert_eq!((group, order.len()), (32, 96 + 32));
        assert!(order[66..96].iter().all(|&col| col == order[64]));
        let in_place = order.iter().enumerate();
        assert!(in_place.clone().all(|(at, &col)| groups.group(1 + col as usize) == at / 96));
        let mut columns = order.clone();
        columns.sort_unstable();
        columns.dedup();
        assert_eq!(columns, (0..98).collect::<Vec<u32>>());
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
