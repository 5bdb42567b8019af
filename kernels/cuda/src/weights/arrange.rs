//! The order in which the columns of a weight are packed, so that all groups of columns have the
//! same size.

use millrace_backend::{Error, Result};

use super::format::{DEPTH, GROUP};

/// An order of columns.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Arrangement {
    /// The checkpoint's column at each packed position; `None` is padding.
    pub(super) columns: Vec<Option<usize>>,
    /// The number of packed columns that share a scale: a power of two.
    pub(super) group: usize,
    /// The checkpoint's group for each packed group.
    pub(super) groups: Vec<usize>,
}

impl Arrangement {
    /// Whether each of the first `inputs` columns is at its own position.
    pub(super) fn is_identity(&self, inputs: usize) -> bool {
        self.columns.iter().enumerate().all(|(k, c)| *c == (k < inputs).then_some(k))
    }
}

/// Brings the columns of each group together; `group_of` names each column's group.
///
/// Groups of equal length stay whole if that length is a power of two. Other groups (for example
/// those of a slice of a weight in activation order) are cut into groups of 32, which are filled
/// with padding.
///
/// # Errors
/// [`Error::Shape`] for a group that is not below `groups`.
pub(super) fn arrange(groups: usize, group_of: &[usize]) -> Result<Arrangement> {
    let mut members = vec![Vec::new(); groups];
    for (column, &group) in group_of.iter().enumerate() {
        match members.get_mut(group) {
            Some(all) => all.push(column),
            None => return Err(Error::Shape(format!("column {column} is in group {group} of {groups}"))),
        }
    }
    let used: Vec<usize> = (0..groups).filter(|&g| !members[g].is_empty()).collect();
    let first = used.first().map_or(0, |&g| members[g].len());
    let equal = used.split_last().is_none_or(|(&last, rest)| {
        members[last].len() <= first && rest.iter().all(|&g| members[g].len() == first)
    });
    let mut arranged = Arrangement { columns: Vec::new(), group: GROUP, groups: Vec::new() };
    if equal && (used.len() <= 1 || first >= GROUP && first.is_power_of_two()) {
        arranged.columns = used.iter().flat_map(|&g| &members[g]).map(|&c| Some(c)).collect();
        arranged.groups.clone_from(&used);
        // A single group takes in the padding.
        let all = arranged.columns.len().next_multiple_of(DEPTH).next_power_of_two();
        arranged.group = if used.len() <= 1 { all } else { first };
    } else {
        for &g in &used {
            for piece in members[g].chunks(GROUP) {
                arranged.columns.extend(piece.iter().map(|&c| Some(c)));
                arranged.columns.resize(arranged.columns.len().next_multiple_of(GROUP), None);
                arranged.groups.push(g);
            }
        }
    }
    arranged.columns.resize(arranged.columns.len().next_multiple_of(DEPTH), None);
    Ok(arranged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_groups_stay_whole() {
        let natural: Vec<usize> = (0..256).map(|k| k / 64).collect();
        let a = arrange(4, &natural).unwrap();
        assert!(a.is_identity(256));
        assert_eq!((a.group, a.groups), (64, vec![0, 1, 2, 3]));
        let mixed: Vec<usize> = (0..256).map(|k| k % 4).collect();
        let a = arrange(4, &mixed).unwrap();
        assert_eq!((a.group, a.columns[0], a.columns[1], a.columns[64]), (64, Some(0), Some(4), Some(1)));
        assert!(!a.is_identity(256));
    }

    #[test]
    fn one_group_is_as_large_as_all() {
        let a = arrange(1, &[0; 200]).unwrap();
        assert_eq!((a.group, a.columns.len()), (256, 256));
        assert!(a.is_identity(200));
    }

    #[test]
    fn unequal_groups_are_cut_and_padded() {
        let groups: Vec<usize> = (0..100).map(|k| usize::from(k >= 40) * 2).collect();
        let a = arrange(3, &groups).unwrap();
        assert_eq!((a.group, a.groups.as_slice()), (32, &[0, 0, 2, 2][..]));
        assert_eq!(a.columns[39], Some(39));
        assert_eq!(a.columns[40..64], [None; 24]);
        assert_eq!(a.columns[64], Some(40));
        assert_eq!(a.columns.len(), 128);
    }

    #[test]
    fn a_group_beyond_the_last_is_an_error() {
        assert!(arrange(2, &[0, 2]).unwrap_err().to_string().contains("column 1 is in group 2 of 2"));
    }
}
