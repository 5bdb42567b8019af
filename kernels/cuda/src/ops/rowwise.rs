//! The grid of the kernels that touch each element once (`rowwise.cuh`).

use super::shared::rowwise_h::{ROW_THREADS, UNROLL};
use crate::{Grid, View};

/// A grid with the rows along x and the pieces of a row of `units` vectors along y.
pub(super) fn grid(rows: usize, units: usize) -> Grid {
    let blocks = [rows as u32, units.div_ceil(ROW_THREADS * UNROLL) as u32, 1];
    Grid { blocks, threads: [ROW_THREADS as u32, 1, 1], shared: 0 }
}

/// Whether the rows of all views, of `cols` elements each, can be moved in pieces of 16 bytes.
pub(super) fn vectorizable(views: &[View<'_>], cols: usize) -> bool {
    views.iter().all(|view| view.is_vectorizable(cols))
}
