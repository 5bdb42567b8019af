//! Rows to sample from, and the workspace of sampling.

use millrace_backend::{Error, Result};

use crate::ops::shared::sample_row_h::{AdjustParams, CHUNK, COLUMNS, MAX_TOKENS, OutcomeParams, SEGMENT};
use crate::ops::shared::sample_scan_h::{ChunkRecord, SampleParams, SeenRecord};
use crate::ops::sizes::{MAX_BLOCKS, countable, int};
use crate::{Elem, View};

/// Rows of logits, the parameters of their sampling, and the memory for the results.
#[derive(Debug, Clone, Copy)]
pub struct SampleRows<'a> {
    /// Number of rows; 0 is allowed and does nothing.
    pub rows: usize,
    /// Logits of a row; at most [`MAX_TOKENS`].
    pub vocab: usize,
    /// f32 `[rows, vocab]`. The operations do not change them.
    pub logits: View<'a>,
    /// u32 `[COLUMNS, table_stride]`, written by [`super::encode`]. The device may have changed the
    /// positions since.
    pub table: View<'a>,
    /// Entries from one column of the table to the next, at least `rows`.
    pub table_stride: usize,
    /// The tokens of the sequences, u32 `[slots, stride]`, and the stride; needed if any row has a
    /// penalty.
    pub history: Option<(View<'a>, usize)>,
    /// The biases' tokens, u32, and the biases, f32; needed if any row has one.
    pub biases: Option<(View<'a>, View<'a>)>,
    /// Allowed tokens, u32 `[masks, stride]`, and the stride: bit `t % 32` of word `t / 32` stands
    /// for token t. Needed if any row has a mask; the stride is at least `vocab / 32`, rounded up,
    /// and the last word has no bit beyond the vocabulary.
    pub masks: Option<(View<'a>, usize)>,
    /// At least [`workspace`] bytes.
    pub workspace: View<'a>,
    /// The results.
    pub chosen: SampleOutputs<'a>,
}

/// The results of sampling.
#[derive(Debug, Clone, Copy)]
pub struct SampleOutputs<'a> {
    /// u32 `[rows]`: the tokens. A row with a logit that is NaN or plus infinity, or without a
    /// finite one, gets the first token that it allows.
    pub tokens: View<'a>,
    /// f32 `[rows]`: their log-probabilities, NaN for such rows.
    pub logprobs: View<'a>,
    /// u32 `[rows, top_stride]`: the most likely tokens, the most likely first.
    pub top_ids: View<'a>,
    /// f32 `[rows, top_stride]`: their log-probabilities.
    pub top_logprobs: View<'a>,
    /// u32 `[rows]`: how many of them there are. The rest of a row is left as it was.
    pub top_counts: View<'a>,
    /// Entries from one row to the next; no row gets more.
    pub top_stride: usize,
}

/// Bytes of workspace for this number of rows: a copy of the logits for rows that change them, and
/// the records of chunks.
pub fn workspace(rows: usize, vocab: usize) -> usize {
    let chunks = vocab.div_ceil(CHUNK) * (size_of::<SeenRecord>() + size_of::<ChunkRecord>());
    let segments = vocab.div_ceil(SEGMENT) * 2 * Elem::F32.size();
    // Each of the four parts begins at a multiple of 16.
    rows.saturating_mul(vocab * Elem::F32.size() + chunks + segments).saturating_add(4 * 16)
}

/// The parts of the workspace.
pub(super) struct WorkspaceParts<'a> {
    pub(super) adjusted: View<'a>,
    pub(super) seg_max: View<'a>,
    pub(super) seen: View<'a>,
    pub(super) chunks: View<'a>,
}

impl<'a> WorkspaceParts<'a> {
    pub(super) fn of(workspace: View<'a>, rows: usize, vocab: usize) -> WorkspaceParts<'a> {
        let mut at = workspace.address().next_multiple_of(16) as usize - workspace.address() as usize;
        let mut take = |bytes: usize| {
            let part = workspace.slice(at..at + bytes);
            at = (at + bytes).next_multiple_of(16);
            part
        };
        let chunks = rows * vocab.div_ceil(CHUNK);
        WorkspaceParts {
            adjusted: take(rows * vocab * Elem::F32.size()),
            seg_max: take(2 * rows * vocab.div_ceil(SEGMENT) * Elem::F32.size()),
            seen: take(chunks * size_of::<SeenRecord>()),
            chunks: take(chunks * size_of::<ChunkRecord>()),
        }
    }
}

impl SampleRows<'_> {
    /// The rows as kernels take them.
    pub(super) fn params(&self, parts: &WorkspaceParts<'_>) -> SampleParams {
        let (history, history_stride) = self.history.unzip();
        let (bias_ids, biases) = self.biases.unzip();
        let (masks, mask_stride) = self.masks.unzip();
        let chosen = &self.chosen;
        SampleParams {
            logits: self.logits.into(),
            adjusted: parts.adjusted.into(),
            seg_max: parts.seg_max.into(),
            seen: parts.seen.into(),
            chunks: parts.chunks.into(),
            table: self.table.into(),
            adjust: AdjustParams {
                history: history.into(),
                bias_ids: bias_ids.into(),
                biases: biases.into(),
                masks: masks.into(),
                history_stride: int(history_stride.unwrap_or(0)),
                mask_stride: int(mask_stride.unwrap_or(0)),
            },
            outcome: OutcomeParams {
                tokens: chosen.tokens.into(),
                logprobs: chosen.logprobs.into(),
                top_ids: chosen.top_ids.into(),
                top_logprobs: chosen.top_logprobs.into(),
                top_counts: chosen.top_counts.into(),
                top_stride: int(chosen.top_stride),
            },
            table_stride: int(self.table_stride),
            vocab: int(self.vocab),
        }
    }
}

/// Checks the views. Returns whether there is anything to do.
pub(super) fn check(rows: &SampleRows<'_>) -> Result<bool> {
    let &SampleRows {
        rows: n,
        vocab,
        logits,
        table,
        table_stride,
        history,
        biases,
        masks,
        workspace: space,
        chosen,
    } = rows;
    if vocab == 0 || vocab > MAX_TOKENS {
        return Err(Error::Shape(format!(
            "a vocabulary of {vocab} tokens: 1 to {MAX_TOKENS} can be sampled from"
        )));
    }
    // The rows are the second dimension of a grid.
    if n > MAX_BLOCKS || table_stride < n {
        return Err(Error::Shape(format!("{n} rows to sample, with a table for {table_stride}")));
    }
    countable(&[table_stride, chosen.top_stride])?;
    logits.expect("logits", Elem::F32, n * vocab)?;
    table.expect("table", Elem::U32, COLUMNS * table_stride)?;
    if let Some((tokens, stride)) = history {
        countable(&[stride])?;
        tokens.expect("history", Elem::U32, stride)?;
    }
    if let Some((ids, values)) = biases {
        ids.expect("tokens of biases", Elem::U32, 0)?;
        values.expect("biases", Elem::F32, ids.len())?;
    }
    if let Some((words, stride)) = masks {
        countable(&[stride])?;
        if stride < vocab.div_ceil(32) {
            return Err(Error::Shape(format!("masks of {stride} words for {vocab} tokens")));
        }
        words.expect("masks", Elem::U32, stride)?;
    }
    space.expect("workspace", Elem::U8, workspace(n, vocab))?;
    chosen.tokens.expect("tokens", Elem::U32, n)?;
    chosen.logprobs.expect("logprobs", Elem::F32, n)?;
    chosen.top_ids.expect("top_ids", Elem::U32, n * chosen.top_stride)?;
    chosen.top_logprobs.expect("top_logprobs", Elem::F32, n * chosen.top_stride)?;
    chosen.top_counts.expect("top_counts", Elem::U32, n)?;
    if !logits.is_vectorizable(0) {
        return Err(Error::Shape("logits must begin at a multiple of 16 bytes".to_owned()));
    }
    Ok(n > 0)
}
