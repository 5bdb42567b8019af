//! Sampling of a step's rows on the device, and the results that are copied back.

use millrace_backend::sampling::{MAX_BIASES, MAX_TOP_N};
use millrace_backend::{Result, SampleRow, Sampled, StepSize};

use super::slots::SlotLists;
use super::upload::StepUpload;
use crate::ops::sample::{self, COLUMNS, RowSampling, SampleBounds, SampleOutputs, SampleRows};
use crate::{Device, Elem, Memory, View};

/// The memory of the sampler beside the logits.
#[derive(Debug)]
pub(super) struct Sampler {
    rows: usize,
    vocab: usize,
    /// Tokens of the longest sequence.
    longest: usize,
    workspace: Memory,
    /// For every row its token, its log-probability and the number of its top tokens; then the top
    /// tokens of all rows; then their log-probabilities.
    results: Memory,
    /// The table of choices on the host, u32 `[COLUMNS, rows]`.
    table: Vec<u32>,
}

/// Words of every row's results without the top tokens.
const PER_ROW: usize = 3;

impl Sampler {
    pub(super) fn new(device: &Device, size: &StepSize<'_>) -> Result<Sampler> {
        let &StepSize { rows, vocab, sequence_tokens: longest, .. } = size;
        let workspace = device.allocate(Elem::U8, sample::workspace(rows, vocab))?;
        let results = device.allocate(Elem::U32, rows * (PER_ROW + 2 * MAX_TOP_N))?;
        Ok(Sampler { rows, vocab, longest, workspace, results, table: vec![0; COLUMNS * rows] })
    }

    pub(super) fn bytes(size: &StepSize<'_>) -> usize {
        let results = size.rows.saturating_mul(PER_ROW + 2 * MAX_TOP_N).saturating_mul(Elem::U32.size());
        sample::workspace(size.rows, size.vocab).saturating_add(results)
    }

    /// Returns the words of a row's mask of allowed tokens.
    pub(super) fn mask_words(size: &StepSize<'_>) -> usize {
        size.vocab.div_ceil(32)
    }

    /// Puts the choices of rows, each with its slot, into the upload. Returns the number of masks
    /// and the largest number of top tokens that a row wants.
    pub(super) fn choose<'a>(
        &mut self,
        upload: &mut StepUpload,
        rows: impl ExactSizeIterator<Item = (usize, &'a SampleRow<'a>)>,
    ) -> Result<(usize, usize)> {
        let (n, mut masks, mut top) = (rows.len(), 0, 0);
        let choices = rows.map(|(slot, row)| {
            let mask = row.allowed.map(|allowed| {
                upload.set_mask(masks, allowed);
                masks += 1;
                masks - 1
            });
            top = top.max(row.params.top_n as usize);
            // A slot's list has its end tokens before its biases.
            let early = row.tokens.len() - row.prompt_len < row.params.min_new_tokens as usize;
            let (ends, biases) = (row.params.end_tokens.len(), row.params.logit_bias.len());
            let first = SlotLists::first_bias(slot);
            let biases = if early { (first, ends + biases) } else { (first + ends, biases) };
            RowSampling {
                params: row.params,
                tokens: row.tokens.len(),
                prompt_len: row.prompt_len,
                slot,
                mask,
                biases,
            }
        });
        let bounds = SampleBounds {
            history: (self.rows, self.longest),
            masks: self.rows,
            biases: self.rows * 2 * MAX_BIASES,
            top_n: MAX_TOP_N,
        };
        sample::encode(choices, &bounds, self.rows, &mut self.table)?;
        upload.set_choices(n, &self.table);
        Ok((masks, top))
    }

    /// Samples a token from each of the first `n` rows of `logits`.
    pub(super) fn sample(
        &self,
        device: &Device,
        (upload, slots): (&StepUpload, &SlotLists),
        n: usize,
        logits: View<'_>,
    ) -> Result<()> {
        let tops = PER_ROW * self.rows;
        let part = |elem, at: usize, len: usize| self.results.view(elem).slice(at..at + len);
        sample::sample(
            device,
            &SampleRows {
                rows: n,
                vocab: self.vocab,
                logits,
                table: upload.choices(),
                table_stride: self.rows,
                history: Some(slots.history()),
                biases: Some(slots.biases()),
                masks: Some((upload.masks(), self.vocab.div_ceil(32))),
                workspace: self.workspace(),
                chosen: SampleOutputs {
                    tokens: self.tokens(Elem::U32),
                    logprobs: part(Elem::F32, self.rows, self.rows),
                    top_counts: part(Elem::U32, 2 * self.rows, self.rows),
                    top_ids: part(Elem::U32, tops, self.rows * MAX_TOP_N),
                    top_logprobs: part(Elem::F32, tops + self.rows * MAX_TOP_N, self.rows * MAX_TOP_N),
                    top_stride: MAX_TOP_N,
                },
            },
        )
    }

    /// Returns the memory that the kernels work in.
    pub(super) fn workspace(&self) -> View<'_> {
        self.workspace.view(Elem::U8)
    }

    /// Returns the sampled tokens, `[rows]`, as U32 or I32.
    pub(super) fn tokens(&self, elem: Elem) -> View<'_> {
        self.results.view(elem).slice(0..self.rows)
    }

    /// Returns the results on the device, with or without the top tokens.
    pub(super) fn results(&self, with_top: bool) -> View<'_> {
        let len = if with_top { PER_ROW + 2 * MAX_TOP_N } else { PER_ROW };
        self.results.view(Elem::U32).slice(0..len * self.rows)
    }

    /// Reads the first `n` rows of the results that were copied back. With `tokens_alone`, another
    /// rank has sampled and only its tokens are there.
    pub(super) fn read(&self, results: &[u8], n: usize, tokens_alone: bool) -> impl Iterator<Item = Sampled> {
        let rows = self.rows;
        let word =
            |at: usize| -> u32 { results[at * 4..][..4].iter().rev().fold(0, |w, b| w << 8 | u32::from(*b)) };
        let float = move |at: usize| f32::from_bits(word(at));
        (0..n).map(move |r| {
            if tokens_alone {
                return Sampled { token: word(r), logprob: 0.0, top: Vec::new() };
            }
            let top = PER_ROW * rows + r * MAX_TOP_N;
            let count = word(2 * rows + r) as usize;
            let top = (top..top + count).map(|at| (word(at), float(at + rows * MAX_TOP_N)));
            Sampled { token: word(r), logprob: float(rows + r), top: top.collect() }
        })
    }
}
