//! Scoring of given tokens on the device. Only the scores are copied back, not the logits.

use millrace_backend::sampling::MAX_TOP_N;
use millrace_backend::{Error, Result, ScoreRow, Scored, StepSize};

use crate::ops::sample::{COLUMNS, SampleOutputs, SampleRows, encode_given, score};
use crate::{Device, DeviceEvent, Elem, Memory, Pinned, View};

/// The requests to the device, followed by its results.
#[derive(Debug)]
pub(super) struct Scorer {
    rows: usize,
    vocab: usize,
    words: Memory,
    host: Pinned,
    /// Reached when the results are on the host.
    copied: DeviceEvent,
}

/// Words of a row's request.
const REQUEST: usize = COLUMNS + 1;
/// Words of a row's result without the top tokens: the token's rank and log-probability, and the
/// number of top tokens.
const PER_ROW: usize = 3;
const MAX_PER_ROW: usize = REQUEST + PER_ROW + 2 * MAX_TOP_N;

impl Scorer {
    pub(super) fn new(device: &Device, size: &StepSize<'_>) -> Result<Scorer> {
        let words = device.allocate(Elem::U32, size.rows * MAX_PER_ROW)?;
        let host = device.pinned(Scorer::bytes(size))?;
        Ok(Scorer { rows: size.rows, vocab: size.vocab, words, host, copied: device.event()? })
    }

    pub(super) fn bytes(size: &StepSize<'_>) -> usize {
        size.rows.saturating_mul(MAX_PER_ROW).saturating_mul(Elem::U32.size())
    }

    /// Waits for the device and appends the scores of the rows' tokens by `logits`, `[rows,
    /// vocab]`, to `scored`. `workspace` is the sampler's.
    pub(super) fn score(
        &mut self,
        device: &Device,
        workspace: View<'_>,
        logits: View<'_>,
        rows: &[ScoreRow],
        scored: &mut Vec<Scored>,
    ) -> Result<()> {
        if rows.len() > self.rows {
            return Err(Error::Shape(format!("{} rows to score, of {} at most", rows.len(), self.rows)));
        }
        self.launch(device, workspace, logits, rows)?;
        self.copied.wait()?;
        self.read(rows, scored);
        Ok(())
    }

    /// Uploads the requests, launches the kernel, and starts the copy of its results.
    fn launch(
        &mut self,
        device: &Device,
        workspace: View<'_>,
        logits: View<'_>,
        rows: &[ScoreRow],
    ) -> Result<()> {
        let (n, top_stride) = (rows.len(), max_top(rows));
        let mut table = vec![0; REQUEST * n];
        encode_given(rows, self.vocab, MAX_TOP_N.min(self.vocab), &mut table)?;
        for (bytes, word) in self.host.chunks_exact_mut(4).zip(&table) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let part = |elem, at: usize, len: usize| self.words.view(elem).slice(at..at + len);
        device.write_from(part(Elem::U32, 0, REQUEST * n), &self.host, 0..REQUEST * n * 4)?;
        let results = REQUEST * n;
        let (ids, logprobs) = (results + PER_ROW * n, results + (PER_ROW + top_stride) * n);
        let rows = SampleRows {
            rows: n,
            vocab: self.vocab,
            logits,
            table: part(Elem::U32, 0, COLUMNS * n),
            table_stride: n,
            history: None,
            biases: None,
            masks: None,
            workspace,
            chosen: SampleOutputs {
                tokens: part(Elem::U32, results, n),
                logprobs: part(Elem::F32, results + n, n),
                top_counts: part(Elem::U32, results + 2 * n, n),
                top_ids: part(Elem::U32, ids, n * top_stride),
                top_logprobs: part(Elem::F32, logprobs, n * top_stride),
                top_stride,
            },
        };
        score(device, &rows, part(Elem::U32, COLUMNS * n, n))?;
        let end = results + (PER_ROW + 2 * top_stride) * n;
        device.read_into(part(Elem::U32, results, end - results), &mut self.host, results * 4..end * 4)?;
        self.copied.record()
    }

    /// Reads the results of these rows from host memory.
    fn read(&self, rows: &[ScoreRow], scored: &mut Vec<Scored>) {
        let (n, top_stride, results) = (rows.len(), max_top(rows), REQUEST * rows.len());
        let word = |at: usize| -> u32 {
            self.host[(results + at) * 4..][..4].iter().rev().fold(0, |w, b| w << 8 | u32::from(*b))
        };
        let float = |at: usize| f32::from_bits(word(at));
        scored.extend((0..n).map(|r| {
            let (top, count) =
                (PER_ROW * n + r * top_stride, if top_stride > 0 { word(2 * n + r) } else { 0 });
            let top = (top..top + count as usize).map(|at| (word(at), float(at + n * top_stride)));
            Scored { rank: word(r), logprob: float(n + r), top: top.collect() }
        }));
    }
}

/// Returns the largest number of top tokens that a row wants.
fn max_top(rows: &[ScoreRow]) -> usize {
    rows.iter().map(|row| row.top_n as usize).max().unwrap_or(0)
}
