//! Sampling: the host's sampler (`crate::sample`) on the device, with the same tokens for the same seeds.
//!
//! Penalties are counted anew in every step from the tokens that lie on the device: each chunk of the vocabulary looks through the sequence's
//! history for its own tokens. That costs reading the history once per 4096 tokens of vocabulary, from the L2 cache, and only for rows with
//! penalties; all histories together are no longer than the cache of keys and values has room for. A table of counts per
//! sequence would cost two bytes per token of the vocabulary in memory and in bandwidth, and would have to be set
//! right whenever a sequence comes, goes, or is computed again.

mod params;
mod score;

pub use params::{Bounds, COLUMNS, Choice, ELEM, MOST_TOKENS, encode, greedy};
pub use score::{encode_given, score, score_cost};

use super::countable;
use crate::cuda::{Args, Cost, Device, Elem, Grid, View};
use crate::sampling::SamplingParams;
use crate::{Error, Result};

/// Tokens of a block of the kernels that share a row among blocks, and of one warp of it.
const CHUNK: usize = 4096;
const SEGMENT: usize = 512;
const SCAN_THREADS: u32 = 256;
const FINISH_THREADS: u32 = 512;
const PLAIN_THREADS: u32 = 256;
/// Bytes that a chunk leaves for the last step: what `sample_scan` and what `sample_draw` saw.
const SEEN: usize = 24;
const CHUNK_RECORD: usize = 24;

/// Logits to choose from, and what choosing depends on.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// Number of rows; 0 is allowed and does nothing.
    pub rows: usize,
    /// Logits of a row; at most [`MOST_TOKENS`].
    pub vocab: usize,
    /// f32 `[rows, vocab]`. They are left as they are.
    pub logits: View<'a>,
    /// u32 `[COLUMNS, table_stride]`, made by [`encode`]. Positions may have been changed since.
    pub table: View<'a>,
    /// Entries from one column of the table to the next, at least `rows`.
    pub table_stride: usize,
    /// The tokens of the sequences, u32 `[slots, stride]`, and the stride; needed if any row has a penalty.
    pub history: Option<(View<'a>, usize)>,
    /// The biases' tokens, u32, and the biases, f32; needed if any row has one.
    pub biases: Option<(View<'a>, View<'a>)>,
    /// Allowed tokens, u32 `[masks, stride]`, and the stride: bit `t % 32` of word `t / 32` stands for token t. Needed if any row
    /// has a mask; the stride is at least `vocab / 32`, rounded up, and the last word has no bit beyond the vocabulary.
    pub masks: Option<(View<'a>, usize)>,
    /// At least [`workspace`] bytes.
    pub workspace: View<'a>,
    /// The results.
    pub chosen: Chosen<'a>,
}

/// Where the results go.
#[derive(Debug, Clone, Copy)]
pub struct Chosen<'a> {
    /// u32 `[rows]`: the tokens. A row with a logit that is NaN or plus infinity, or without a finite one, gets the first token that it allows.
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

/// Chooses a token for every row.
///
/// What the table holds was checked by [`encode`]; the kernels trust it.
///
/// # Errors
/// [`Error::Shape`] for views that are too short or of another type, or what a launch fails with.
pub fn sample(device: &Device, rows: &Rows<'_>) -> Result<()> {
    if !check(rows)? {
        return Ok(());
    }
    let places = Places::of(rows.workspace, rows.rows, rows.vocab);
    scan_rows(device, rows, &places)?;
    let draw = Args::new().with(rows.logits).with(places.adjusted).with(places.seen).with(places.chunks);
    let draw = draw.with(rows.table).with(rows.table_stride).with(rows.vocab);
    // SAFETY: as in `scan_rows`.
    unsafe { device.launch("sample", "sample_draw", by_chunk(rows), &draw)? };
    finish_rows(device, rows, &places)
}

fn by_chunk(rows: &Rows<'_>) -> Grid {
    let blocks = [rows.vocab.div_ceil(CHUNK) as u32, rows.rows as u32, 1];
    Grid { blocks, ..Grid::flat(1, SCAN_THREADS) }
}

fn scan_rows(device: &Device, rows: &Rows<'_>, places: &Places<'_>) -> Result<()> {
    let (history, history_stride) = rows.history.map_or((None, 0), |(view, stride)| (Some(view), stride));
    let (masks, mask_stride) = rows.masks.map_or((None, 0), |(view, stride)| (Some(view), stride));
    let scan = Args::new().with(rows.logits).with(places.adjusted).with(places.seg_max).with(places.seen);
    let scan = scan.with(rows.table).with(rows.table_stride).with(history).with(history_stride);
    let scan = scan.with(rows.biases.map(|b| b.0)).with(rows.biases.map(|b| b.1));
    let scan = scan.with(masks).with(mask_stride).with(rows.vocab);
    // SAFETY: the views were checked to be as long as the kernel's arrays, which the table's rows stay within; the arguments are its own.
    unsafe { device.launch("sample", "sample_scan", by_chunk(rows), &scan) }
}

fn finish_rows(device: &Device, rows: &Rows<'_>, places: &Places<'_>) -> Result<()> {
    let (masks, mask_stride) = rows.masks.map_or((None, 0), |(view, stride)| (Some(view), stride));
    let finish = Args::new().with(rows.logits).with(places.adjusted).with(places.seg_max);
    let finish = finish.with(places.seen).with(places.chunks).with(rows.table).with(rows.table_stride);
    let finish = with_chosen(finish.with(masks).with(mask_stride), &rows.chosen).with(rows.vocab);
    // SAFETY: as above.
    unsafe { device.launch("sample", "sample_finish", Grid::flat(rows.rows, FINISH_THREADS), &finish) }
}

/// The same by the obvious kernel: what the fast ones are compared with.
///
/// # Errors
/// As for [`sample`].
pub fn sample_plain(device: &Device, rows: &Rows<'_>) -> Result<()> {
    if !check(rows)? {
        return Ok(());
    }
    let places = Places::of(rows.workspace, rows.rows, rows.vocab);
    let (history, history_stride) = rows.history.map_or((None, 0), |(view, stride)| (Some(view), stride));
    let (masks, mask_stride) = rows.masks.map_or((None, 0), |(view, stride)| (Some(view), stride));
    let args = Args::new().with(rows.logits).with(places.adjusted).with(rows.table).with(rows.table_stride);
    let args = args.with(history).with(history_stride);
    let args =
        args.with(rows.biases.map(|b| b.0)).with(rows.biases.map(|b| b.1)).with(masks).with(mask_stride);
    let args = with_chosen(args, &rows.chosen).with(rows.vocab);
    // SAFETY: as in `sample`.
    unsafe { device.launch("sample", "sample_plain_rows", Grid::flat(rows.rows, PLAIN_THREADS), &args) }
}

/// Bytes of workspace for so many rows: a copy of the logits for rows that change them, and records of the chunks.
pub fn workspace(rows: usize, vocab: usize) -> usize {
    let chunks = vocab.div_ceil(CHUNK) * (SEEN + CHUNK_RECORD);
    let segments = vocab.div_ceil(SEGMENT) * 2 * Elem::F32.size();
    // Each of the four parts begins at a multiple of 16.
    rows.saturating_mul(vocab * Elem::F32.size() + chunks + segments).saturating_add(4 * 16)
}

/// What one row costs at least: its logits, once more if it draws from all tokens or changes them.
pub fn cost(params: &SamplingParams, vocab: usize, tokens: usize, mask: bool) -> Cost {
    let logits = vocab * Elem::F32.size();
    let penalised =
        params.repetition_penalty != 1.0 || params.frequency_penalty != 0.0 || params.presence_penalty != 0.0;
    let adjusted = penalised || mask || !params.logit_bias.is_empty();
    let again = params.do_sample && params.top_k == 0;
    let mut bytes = logits * (1 + usize::from(adjusted) + usize::from(again));
    bytes += if penalised { tokens * Elem::U32.size() } else { 0 };
    bytes += if mask { vocab.div_ceil(8) } else { 0 };
    // An exponential or so per token and pass.
    Cost { flops: (vocab * 8 * (1 + usize::from(again))) as f64, ..Cost::moving(bytes) }
}

/// The parts of the workspace.
struct Places<'a> {
    adjusted: View<'a>,
    seg_max: View<'a>,
    seen: View<'a>,
    chunks: View<'a>,
}

impl<'a> Places<'a> {
    fn of(workspace: View<'a>, rows: usize, vocab: usize) -> Places<'a> {
        let mut at = workspace.address().next_multiple_of(16) as usize - workspace.address() as usize;
        let mut take = |bytes: usize| {
            let part = workspace.slice(at..at + bytes);
            at = (at + bytes).next_multiple_of(16);
            part
        };
        let chunks = rows * vocab.div_ceil(CHUNK);
        Places {
            adjusted: take(rows * vocab * Elem::F32.size()),
            seg_max: take(2 * rows * vocab.div_ceil(SEGMENT) * Elem::F32.size()),
            seen: take(chunks * SEEN),
            chunks: take(chunks * CHUNK_RECORD),
        }
    }
}

fn with_chosen(args: Args, chosen: &Chosen<'_>) -> Args {
    let args = args.with(chosen.tokens).with(chosen.logprobs).with(chosen.top_ids);
    args.with(chosen.top_logprobs).with(chosen.top_counts).with(chosen.top_stride)
}

/// Whether there is anything to do.
fn check(rows: &Rows<'_>) -> Result<bool> {
    let &Rows {
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
    if vocab == 0 || vocab > MOST_TOKENS {
        return Err(Error::Shape(format!(
            "a vocabulary of {vocab} tokens: 1 to {MOST_TOKENS} can be sampled from"
        )));
    }
    // The rows are the second dimension of a grid.
    if n > 65535 || table_stride < n {
        return Err(Error::Shape(format!("{n} rows to sample, with a table for {table_stride}")));
    }
    countable(&[table_stride, chosen.top_stride])?;
    logits.expect("logits", Elem::F32, n * vocab)?;
    table.expect("table", ELEM, COLUMNS * table_stride)?;
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
    if !logits.is_vectorisable(0) {
        return Err(Error::Shape("logits must begin at a multiple of 16 bytes".to_owned()));
    }
    Ok(n > 0)
}
