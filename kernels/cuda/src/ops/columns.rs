//! Places the columns that each rank computed next to each other in one matrix.

use millrace_backend::{Error, Result};

use super::select::kernel;
use super::shared::columns::{COLUMN_THREADS, PlaceColumnsParams};
use super::sizes::{MAX_BLOCKS, countable, int};
use crate::{Device, Elem, Grid, View};

/// The columns of all ranks, one rank after the other.
#[derive(Debug, Clone, Copy)]
pub struct RankColumns<'a> {
    /// Rows; 0 is allowed and does nothing.
    pub rows: usize,
    /// Columns of each rank.
    pub part_cols: usize,
    /// Columns of the whole matrix, at most those of all ranks together. Columns beyond them are
    /// padding.
    pub whole_cols: usize,
    /// f32 `[ranks, rows, part_cols]`.
    pub parts: View<'a>,
    /// f32 `[rows, whole_cols]`.
    pub whole: View<'a>,
}

/// Computes `whole[row, rank * part_cols + c] = parts[rank, row, c]`.
///
/// # Errors
/// [`Error::Shape`] for views that are too short or of another type, or an error of the launch.
pub fn place_columns(device: &Device, c: &RankColumns<'_>) -> Result<()> {
    let &RankColumns { rows, part_cols, whole_cols, parts, whole } = c;
    countable(&[rows, part_cols, whole_cols])?;
    if part_cols == 0 || rows > MAX_BLOCKS {
        return Err(Error::Shape(format!("{rows} rows of parts of {part_cols} columns")));
    }
    parts.expect("parts", Elem::F32, whole_cols.div_ceil(part_cols) * rows * part_cols)?;
    whole.expect("whole", Elem::F32, rows * whole_cols)?;
    if rows == 0 || whole_cols == 0 {
        return Ok(());
    }
    let blocks = [whole_cols.div_ceil(COLUMN_THREADS) as u32, rows as u32, 1];
    let grid = Grid { blocks, threads: [COLUMN_THREADS as u32, 1, 1], shared: 0 };
    let params = PlaceColumnsParams {
        whole: whole.into(),
        parts: parts.into(),
        rows: int(rows),
        part_cols: int(part_cols),
        whole_cols: int(whole_cols),
    };
    let kernel = kernel!(PlaceColumnsParams, "columns", "place_columns");
    // SAFETY: the views were checked to be as long as the kernel takes them to be.
    unsafe { device.launch(kernel, grid, &params) }
}
