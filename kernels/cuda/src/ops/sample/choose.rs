//! The choice of a token for each row.

use millrace_backend::Result;

use super::rows::{SampleRows, WorkspaceParts, check};
use crate::ops::select::kernel;
use crate::ops::shared::sample_plain_h::PLAIN_THREADS;
use crate::ops::shared::sample_row_h::CHUNK;
use crate::ops::shared::sample_scan_h::{SCAN_THREADS, SampleParams};
use crate::ops::shared::sample_search_h::FINISH_THREADS;
use crate::{Device, Grid};

/// Chooses a token for every row.
///
/// [`super::encode`] has checked the contents of the table; the kernels trust them.
///
/// # Errors
/// [`millrace_backend::Error::Shape`] for views that are too short or of another type, or an error
/// of a launch.
pub fn sample(device: &Device, rows: &SampleRows<'_>) -> Result<()> {
    if !check(rows)? {
        return Ok(());
    }
    let parts = WorkspaceParts::of(rows.workspace, rows.rows, rows.vocab);
    scan_rows(device, rows, &parts)?;
    let kernel = kernel!(SampleParams, "sample", "sample_draw");
    // SAFETY: the views were checked to be as long as the kernel's arrays, which the table's rows
    // stay within.
    unsafe { device.launch(kernel, by_chunk(rows), &rows.params(&parts))? };
    finish_rows(device, rows, &parts)
}

/// A grid of a block per chunk of the vocabulary and row.
fn by_chunk(rows: &SampleRows<'_>) -> Grid {
    let blocks = [rows.vocab.div_ceil(CHUNK) as u32, rows.rows as u32, 1];
    Grid { blocks, ..Grid::flat(1, SCAN_THREADS as u32) }
}

/// Adjusts and measures the logits.
pub(super) fn scan_rows(device: &Device, rows: &SampleRows<'_>, parts: &WorkspaceParts<'_>) -> Result<()> {
    let kernel = kernel!(SampleParams, "sample", "sample_scan");
    // SAFETY: the views were checked to be as long as the kernel's arrays, which the table's rows
    // stay within.
    unsafe { device.launch(kernel, by_chunk(rows), &rows.params(parts)) }
}

/// Applies the filters, draws where that is still to be done, and writes the results.
pub(super) fn finish_rows(device: &Device, rows: &SampleRows<'_>, parts: &WorkspaceParts<'_>) -> Result<()> {
    let kernel = kernel!(SampleParams, "sample", "sample_finish");
    let grid = Grid::flat(rows.rows, FINISH_THREADS as u32);
    // SAFETY: the views were checked to be as long as the kernel's arrays, which the table's rows
    // stay within.
    unsafe { device.launch(kernel, grid, &rows.params(parts)) }
}

/// Does the same by the plain kernel, which is the reference of the fast ones.
///
/// # Errors
/// As for [`sample`].
pub fn sample_plain(device: &Device, rows: &SampleRows<'_>) -> Result<()> {
    if !check(rows)? {
        return Ok(());
    }
    let parts = WorkspaceParts::of(rows.workspace, rows.rows, rows.vocab);
    let kernel = kernel!(SampleParams, "sample", "sample_plain_rows");
    let grid = Grid::flat(rows.rows, PLAIN_THREADS as u32);
    // SAFETY: the views were checked to be as long as the kernel's arrays, which the table's rows
    // stay within.
    unsafe { device.launch(kernel, grid, &rows.params(&parts)) }
}
