//! The ranks' columns of a matrix side by side.

use super::countable;
use crate::cuda::{Args, Cost, Device, Elem, Grid, View};
use crate::{Error, Result};

/// Threads of a block.
const THREADS: u32 = 256;
/// The most rows of a grid.
const MOST_ROWS: usize = 65535;

/// Columns of all ranks, one rank after the other.
#[derive(Debug, Clone, Copy)]
pub struct Columns<'a> {
    /// Rows; 0 is allowed and does nothing.
    pub rows: usize,
    /// Columns of each rank.
    pub part_cols: usize,
    /// Columns of the whole, at most those of all ranks: what the last ones have beyond is padding.
    pub whole_cols: usize,
    /// f32 `[ranks, rows, part_cols]`.
    pub parts: View<'a>,
    /// f32 `[rows, whole_cols]`.
    pub whole: View<'a>,
}

/// `whole[row, rank * part_cols + c] = parts[rank, row, c]`.
///
/// # Errors
/// [`Error::Shape`] for views that are too short or of another type, or what the launch fails with.
pub fn place_columns(device: &Device, c: &Columns<'_>) -> Result<()> {
    let &Columns { rows, part_cols, whole_cols, parts, whole } = c;
    countable(&[rows, part_cols, whole_cols])?;
    if part_cols == 0 || rows > MOST_ROWS {
        return Err(Error::Shape(format!("{rows} rows of parts of {part_cols} columns")));
    }
    parts.expect("parts", Elem::F32, whole_cols.div_ceil(part_cols) * rows * part_cols)?;
    whole.expect("whole", Elem::F32, rows * whole_cols)?;
    if rows == 0 || whole_cols == 0 {
        return Ok(());
    }
    let blocks = [whole_cols.div_ceil(THREADS as usize) as u32, rows as u32, 1];
    let grid = Grid { blocks, threads: [THREADS, 1, 1], shared: 0 };
    let args = Args::new().with(whole).with(parts).with(rows).with(part_cols).with(whole_cols);
    // SAFETY: the views were checked to be as long as the kernel takes them to be.
    unsafe { device.launch("columns", "place_columns", grid, &args) }
}

/// What it costs.
pub fn cost(rows: usize, whole_cols: usize) -> Cost {
    Cost::moving(2 * rows * whole_cols * Elem::F32.size())
}
