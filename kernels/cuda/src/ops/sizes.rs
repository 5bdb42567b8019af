//! The limits of the sizes that kernels take, and the grids of those that touch each element once
//! (`rowwise.cuh`).

use millrace_backend::{Error, Result};

use super::shared::rowwise_h::{ROW_THREADS, UNROLL};
use crate::{Grid, View};

/// The most blocks of a grid along y, and along z.
pub(super) const MAX_BLOCKS: usize = 65535;

/// Refuses sizes that the kernels cannot count in `int`.
///
/// # Errors
/// [`Error::Shape`] for a size above `i32::MAX`.
pub(super) fn countable(sizes: &[usize]) -> Result<()> {
    match sizes.iter().find(|&&n| i32::try_from(n).is_err()) {
        Some(n) => Err(Error::Shape(format!("{n} is more than a kernel can count"))),
        None => Ok(()),
    }
}

/// A size as kernels take it.
///
/// # Panics
/// If [`countable`] refuses the size, which every operation asks before.
pub(super) fn int(size: usize) -> i32 {
    i32::try_from(size).expect("the operations refuse sizes beyond i32")
}

/// A grid with the rows along x and the pieces of a row of `units` vectors along y.
pub(super) fn rowwise_grid(rows: usize, units: usize) -> Grid {
    let blocks = [rows as u32, units.div_ceil(ROW_THREADS * UNROLL) as u32, 1];
    Grid { blocks, threads: [ROW_THREADS as u32, 1, 1], shared: 0 }
}

/// Whether the rows of all views, of `cols` elements each, can be moved in pieces of 16 bytes.
pub(super) fn vectorizable(views: &[View<'_>], cols: usize) -> bool {
    views.iter().all(|view| view.is_vectorizable(cols))
}
