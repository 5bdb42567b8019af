//! Judging tokens that are there already: the host's `score` on the device.

use super::params::TOP_N;
use super::{COLUMNS, Places, Rows, check, finish_rows, greedy, scan_rows};
use crate::cuda::{Args, Cost, Device, Elem, Grid, View};
use crate::sampling::ScoreRow;
use crate::{Error, Result};

const THREADS: u32 = 256;

/// Fills `table`, u32 `[COLUMNS, rows]`, and behind it the tokens, for [`score`].
///
/// # Errors
/// [`Error::Shape`] for a token beyond the vocabulary, more than `most` top tokens, or a table of another length.
pub fn encode_given(rows: &[ScoreRow], vocab: usize, most: usize, table: &mut [u32]) -> Result<()> {
    let n = rows.len();
    if table.len() != (COLUMNS + 1) * n {
        return Err(Error::Shape(format!("a table of {} words for {n} tokens to judge", table.len())));
    }
    for (column, word) in greedy().into_iter().enumerate() {
        table[column * n..][..n].fill(word);
    }
    for (i, row) in rows.iter().enumerate() {
        if row.token as usize >= vocab || row.top_n as usize > most {
            return Err(Error::Shape(format!("{row:?} among {vocab} tokens, {most} of them at the top")));
        }
        table[TOP_N * n + i] = row.top_n;
        table[COLUMNS * n + i] = row.token;
    }
    Ok(())
}

/// For every row the rank of its token, u32, where [`super::sample`] puts a chosen one, its log-probability, and the most likely tokens, of which
/// there are none if `chosen.top_stride` is 0: then the counts are left as they were.
///
/// `rows.table` and `given`, u32 `[rows]`, were made by [`encode_given`]; the kernels trust them.
///
/// # Errors
/// As for [`super::sample`].
pub fn score(device: &Device, rows: &Rows<'_>, given: View<'_>) -> Result<()> {
    given.expect("given tokens", Elem::U32, rows.rows)?;
    if !check(rows)? {
        return Ok(());
    }
    let places = Places::of(rows.workspace, rows.rows, rows.vocab);
    scan_rows(device, rows, &places)?;
    if rows.chosen.top_stride > 0 {
        finish_rows(device, rows, &places)?;
    }
    let args = Args::new().with(rows.logits).with(places.seg_max).with(places.seen).with(given);
    let args = args.with(rows.chosen.tokens).with(rows.chosen.logprobs).with(rows.vocab);
    // SAFETY: the views were checked to be as long as the kernel's arrays, and the tokens to be within the vocabulary; the arguments are its own.
    unsafe { device.launch("sample", "sample_score", Grid::flat(rows.rows, THREADS), &args) }
}

/// What one row costs at least: its logits.
pub fn score_cost(vocab: usize) -> Cost {
    Cost { flops: (vocab * 8) as f64, ..Cost::moving(vocab * Elem::F32.size()) }
}
