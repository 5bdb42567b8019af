//! Scoring of given tokens: the host's `score` on the device.

use millrace_backend::{Error, Result, ScoreRow};

use super::choose::{finish_rows, scan_rows};
use super::rows::{SampleRows, WorkspaceParts, check};
use super::table::greedy;
use crate::ops::select::kernel;
use crate::ops::shared::sample_row_h::{COLUMNS, SampleColumn};
use crate::ops::shared::sample_score_h::{SCORE_THREADS, SampleScoreParams};
use crate::ops::sizes::int;
use crate::{Device, Elem, Grid, View};

/// Fills `table`, u32 `[COLUMNS, rows]`, and behind it the tokens, for [`score`].
///
/// # Errors
/// [`Error::Shape`] for a token beyond the vocabulary, more than `most` top tokens, or a
/// table of another length.
pub fn encode_given(rows: &[ScoreRow], vocab: usize, most: usize, table: &mut [u32]) -> Result<()> {
    let n = rows.len();
    if table.len() != (COLUMNS + 1) * n {
        return Err(Error::Shape(format!("a table of {} words for {n} tokens to score", table.len())));
    }
    for (column, word) in greedy().into_iter().enumerate() {
        table[column * n..][..n].fill(word);
    }
    for (i, row) in rows.iter().enumerate() {
        if row.token as usize >= vocab || row.top_n as usize > most {
            return Err(Error::Shape(format!("{row:?} among {vocab} tokens, {most} of them at the top")));
        }
        table[SampleColumn::TopN as usize * n + i] = row.top_n;
        table[COLUMNS * n + i] = row.token;
    }
    Ok(())
}

/// Computes the rank of each row's given token, u32, which takes the place of a sampled token; its
/// log-probability; and the most likely tokens. If `rows.chosen.top_stride` is 0 there are none of
/// these, and their counts are not written.
///
/// `rows.table` and `given`, u32 `[rows]`, were written by [`encode_given`]; the kernels trust
/// them.
///
/// # Errors
/// As for [`super::sample`].
pub fn score(device: &Device, rows: &SampleRows<'_>, given: View<'_>) -> Result<()> {
    given.expect("given tokens", Elem::U32, rows.rows)?;
    if !check(rows)? {
        return Ok(());
    }
    let parts = WorkspaceParts::of(rows.workspace, rows.rows, rows.vocab);
    scan_rows(device, rows, &parts)?;
    if rows.chosen.top_stride > 0 {
        finish_rows(device, rows, &parts)?;
    }
    let params = SampleScoreParams {
        logits: rows.logits.into(),
        seg_max: parts.seg_max.into(),
        seen: parts.seen.into(),
        given: given.into(),
        ranks: rows.chosen.tokens.into(),
        logprobs: rows.chosen.logprobs.into(),
        vocab: int(rows.vocab),
    };
    let kernel = kernel!(SampleScoreParams, "sample", "sample_score");
    let grid = Grid::flat(rows.rows, SCORE_THREADS as u32);
    // SAFETY: the views were checked to be as long as the kernel's arrays, and the tokens to be
    // within the vocabulary.
    unsafe { device.launch(kernel, grid, &params) }
}
