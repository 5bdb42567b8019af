//! The grid of the kernels that touch each element once (`rowwise.cuh`).

use crate::cuda::{Grid, View};

/// Threads of a block, and the vectors that each takes.
const THREADS: u32 = 256;
const PER_BLOCK: usize = 2 * THREADS as usize;

/// Rows along x, pieces of `units` vectors along y.
pub(super) fn grid(rows: usize, units: usize) -> Grid {
    Grid { blocks: [rows as u32, units.div_ceil(PER_BLOCK) as u32, 1], threads: [THREADS, 1, 1], shared: 0 }
}

/// Whether all views' rows of `cols` elements can be moved in pieces of 16 bytes.
pub(super) fn vectorisable(views: &[Option<View<'_>>], cols: usize) -> bool {
    views.iter().flatten().all(|view| view.is_vectorisable(cols))
}
