//! Sampling of a step's rows on the device, and what comes back of it.

use super::slots::Slots;
use super::words::Words;
use super::{Device, Elem, Memory, View};
use crate::Result;
use crate::backend::StepSize;
use crate::cuda::ops::sample::{self, Bounds, COLUMNS, Choice, Chosen, Rows};
use crate::sampling::{MOST_BIASES, MOST_TOP, SampleRow, Sampled};

/// What the sampler needs beside the logits.
#[derive(Debug)]
pub(super) struct Sampler {
    rows: usize,
    vocab: usize,
    /// Tokens that a sequence may have.
    longest: usize,
    workspace: Memory,
    /// For every row its token, its log-probability, and how many top tokens there are; then these, then their log-probabilities.
    results: Memory,
    /// The table of choices as it is made, u32 `[COLUMNS, rows]`.
    table: Vec<u32>,
}

/// What there is of every row, however many top tokens it wants.
const PER_ROW: usize = 3;

impl Sampler {
    pub(super) fn new(device: &Device, size: &StepSize<'_>) -> Result<Sampler> {
        let &StepSize { rows, vocab, sequence_tokens: longest, .. } = size;
        let workspace = device.allocate(Elem::U8, sample::workspace(rows, vocab))?;
        let results = device.allocate(Elem::U32, rows * (PER_ROW + 2 * MOST_TOP))?;
        Ok(Sampler { rows, vocab, longest, workspace, results, table: vec![0; COLUMNS * rows] })
    }

    pub(super) fn bytes(size: &StepSize<'_>) -> usize {
        let results = size.rows.saturating_mul(PER_ROW + 2 * MOST_TOP).saturating_mul(Elem::U32.size());
        sample::workspace(size.rows, size.vocab).saturating_add(results)
    }

    /// Words of a row's mask.
    pub(super) fn mask_words(size: &StepSize<'_>) -> usize {
        size.vocab.div_ceil(32)
    }

    /// Puts the choices of rows, each in its slot, into `words`. Answers how many masks there are, and the most top tokens that a row wants.
    pub(super) fn choose<'a>(
        &mut self,
        words: &mut Words,
        rows: impl ExactSizeIterator<Item = (usize, &'a SampleRow<'a>)>,
    ) -> Result<(usize, usize)> {
        let (n, mut masks, mut top) = (rows.len(), 0, 0);
        let choices = rows.map(|(slot, row)| {
            let mask = row.allowed.map(|allowed| {
                words.set_mask(masks, allowed);
                masks += 1;
                masks - 1
            });
            top = top.max(row.params.top_n as usize);
            // A slot has its end tokens before its biases.
            let early = row.tokens.len() - row.prompt_len < row.params.min_new_tokens as usize;
            let (ends, biases) = (row.params.end_tokens.len(), row.params.logit_bias.len());
            let first = Slots::first_bias(slot);
            let biases = if early { (first, ends + biases) } else { (first + ends, biases) };
            Choice {
                params: row.params,
                tokens: row.tokens.len(),
                prompt_len: row.prompt_len,
                slot,
                mask,
                biases,
            }
        });
        let bounds = Bounds {
            history: (self.rows, self.longest),
            masks: self.rows,
            biases: self.rows * 2 * MOST_BIASES,
            top_n: MOST_TOP,
        };
        sample::encode(choices, &bounds, self.rows, &mut self.table)?;
        words.set_choices(n, &self.table);
        Ok((masks, top))
    }

    /// Chooses a token for each of the first `n` rows of `logits`.
    pub(super) fn sample(
        &self,
        device: &Device,
        (words, slots): (&Words, &Slots),
        n: usize,
        logits: View<'_>,
    ) -> Result<()> {
        let tops = PER_ROW * self.rows;
        let part = |elem, at: usize, len: usize| self.results.view(elem).slice(at..at + len);
        sample::sample(
            device,
            &Rows {
                rows: n,
                vocab: self.vocab,
                logits,
                table: words.choices(),
                table_stride: self.rows,
                history: Some(slots.history()),
                biases: Some(slots.biases()),
                masks: Some((words.masks(), self.vocab.div_ceil(32))),
                workspace: self.workspace(),
                chosen: Chosen {
                    tokens: self.tokens(Elem::U32),
                    logprobs: part(Elem::F32, self.rows, self.rows),
                    top_counts: part(Elem::U32, 2 * self.rows, self.rows),
                    top_ids: part(Elem::U32, tops, self.rows * MOST_TOP),
                    top_logprobs: part(Elem::F32, tops + self.rows * MOST_TOP, self.rows * MOST_TOP),
                    top_stride: MOST_TOP,
                },
            },
        )
    }

    /// Memory that sampling needs while it is under way.
    pub(super) fn workspace(&self) -> View<'_> {
        self.workspace.view(Elem::U8)
    }

    /// The chosen tokens, `[rows]`, as U32 or I32.
    pub(super) fn tokens(&self, elem: Elem) -> View<'_> {
        self.results.view(elem).slice(0..self.rows)
    }

    /// The results, with or without the top tokens.
    pub(super) fn results(&self, with_top: bool) -> View<'_> {
        let len = if with_top { PER_ROW + 2 * MOST_TOP } else { PER_ROW };
        self.results.view(Elem::U32).slice(0..len * self.rows)
    }

    /// The first `n` rows of the results as they have come back. Where another rank has chosen there are tokens alone.
    pub(super) fn read(&self, results: &[u8], n: usize, tokens_alone: bool) -> impl Iterator<Item = Sampled> {
        let rows = self.rows;
        let word =
            |at: usize| -> u32 { results[at * 4..][..4].iter().rev().fold(0, |w, b| w << 8 | u32::from(*b)) };
        let float = move |at: usize| f32::from_bits(word(at));
        (0..n).map(move |r| {
            if tokens_alone {
                return Sampled { token: word(r), logprob: 0.0, top: Vec::new() };
            }
            let top = PER_ROW * rows + r * MOST_TOP;
            let count = word(2 * rows + r) as usize;
            let top = (top..top + count).map(|at| (word(at), float(at + rows * MOST_TOP)));
            Sampled { token: word(r), logprob: float(rows + r), top: top.collect() }
        })
    }
}
