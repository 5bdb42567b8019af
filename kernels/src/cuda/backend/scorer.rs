//! Tokens that are there already, judged on the device: only what is asked for comes back, not the logits.

use super::{Device, Elem, Memory, View};
use crate::backend::StepSize;
use crate::cuda::ops::sample::{COLUMNS, Chosen, Rows, encode_given, score};
use crate::cuda::{Event, Pinned};
use crate::sampling::{MOST_TOP, ScoreRow, Scored};
use crate::{Error, Result};

/// What goes to the device, then what it answers.
#[derive(Debug)]
pub(super) struct Scorer {
    rows: usize,
    vocab: usize,
    words: Memory,
    host: Pinned,
    done: Event,
}

/// Words that go to the device for every row.
const ASKED: usize = COLUMNS + 1;
/// Words that come back of every row, however many top tokens it wants: its token's rank and log-probability, and how many top tokens there are.
const PER_ROW: usize = 3;
const MOST_PER_ROW: usize = ASKED + PER_ROW + 2 * MOST_TOP;

impl Scorer {
    pub(super) fn new(device: &Device, size: &StepSize<'_>) -> Result<Scorer> {
        let words = device.allocate(Elem::U32, size.rows * MOST_PER_ROW)?;
        let host = device.pinned(Scorer::bytes(size))?;
        Ok(Scorer { rows: size.rows, vocab: size.vocab, words, host, done: device.event()? })
    }

    pub(super) fn bytes(size: &StepSize<'_>) -> usize {
        size.rows.saturating_mul(MOST_PER_ROW).saturating_mul(Elem::U32.size())
    }

    /// Appends to `scored` what `logits`, `[rows, vocab]`, make of the rows' tokens. `workspace` is the sampler's. Waits for the device.
    pub(super) fn score(
        &mut self,
        device: &Device,
        workspace: View<'_>,
        logits: View<'_>,
        rows: &[ScoreRow],
        scored: &mut Vec<Scored>,
    ) -> Result<()> {
        if rows.len() > self.rows {
            return Err(Error::Shape(format!("{} rows to judge, of {} at most", rows.len(), self.rows)));
        }
        self.ask(device, workspace, logits, rows)?;
        self.done.wait()?;
        self.read(rows, scored);
        Ok(())
    }

    fn ask(
        &mut self,
        device: &Device,
        workspace: View<'_>,
        logits: View<'_>,
        rows: &[ScoreRow],
    ) -> Result<()> {
        let (n, top_stride) = (rows.len(), most_top(rows));
        let mut table = vec![0; ASKED * n];
        encode_given(rows, self.vocab, MOST_TOP.min(self.vocab), &mut table)?;
        for (bytes, word) in self.host.chunks_exact_mut(4).zip(&table) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let part = |elem, at: usize, len: usize| self.words.view(elem).slice(at..at + len);
        device.write_from(part(Elem::U32, 0, ASKED * n), &self.host, 0..ASKED * n * 4)?;
        let answers = ASKED * n;
        let (ids, logprobs) = (answers + PER_ROW * n, answers + (PER_ROW + top_stride) * n);
        let rows = Rows {
            rows: n,
            vocab: self.vocab,
            logits,
            table: part(Elem::U32, 0, COLUMNS * n),
            table_stride: n,
            history: None,
            biases: None,
            masks: None,
            workspace,
            chosen: Chosen {
                tokens: part(Elem::U32, answers, n),
                logprobs: part(Elem::F32, answers + n, n),
                top_counts: part(Elem::U32, answers + 2 * n, n),
                top_ids: part(Elem::U32, ids, n * top_stride),
                top_logprobs: part(Elem::F32, logprobs, n * top_stride),
                top_stride,
            },
        };
        score(device, &rows, part(Elem::U32, COLUMNS * n, n))?;
        let end = answers + (PER_ROW + 2 * top_stride) * n;
        device.read_into(part(Elem::U32, answers, end - answers), &mut self.host, answers * 4..end * 4)?;
        self.done.record()
    }

    /// What has come back for these rows.
    fn read(&self, rows: &[ScoreRow], scored: &mut Vec<Scored>) {
        let (n, top_stride, answers) = (rows.len(), most_top(rows), ASKED * rows.len());
        let word = |at: usize| -> u32 {
            self.host[(answers + at) * 4..][..4].iter().rev().fold(0, |w, b| w << 8 | u32::from(*b))
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

/// The most top tokens that any row wants.
fn most_top(rows: &[ScoreRow]) -> usize {
    rows.iter().map(|row| row.top_n as usize).max().unwrap_or(0)
}
