//! The device's side of the steps: from a few words of the host to the lists that the kernels read.
//!
//! The device keeps the tokens and the blocks of every slot ([`SlotLists`]). The host uploads the
//! rows, the new blocks and the sampling choices of a step ([`StepUpload`]); kernels prepare
//! everything else, and append the sampled tokens to those of the slots.

use millrace_backend::sampling::MAX_BIASES;
use millrace_backend::{
    Result, SampleRow, SampledRows, SamplingParams, ScoreRow, Scored, SeqRow, StepInput, StepSize,
};

use super::decoding::DecodePlans;
use super::prepared::{PreparedLayout, StepBounds};
use super::sampler::Sampler;
use super::scorer::Scorer;
use super::slots::SlotLists;
use super::upload::{SlotList, StepCapacity, StepUpload};
use crate::ops::paged::SequenceBatch;
use crate::ops::step::{PreparedStep, StepRows, append, prepare, write_ranges};
use crate::{Device, DeviceEvent, Elem, Memory, Pinned, View};

/// Steps that may be finished and not collected: one that the device computes, and one that waits
/// for it.
pub(super) const STEPS_AHEAD: usize = 2;

/// The current step, and the results of those before it.
#[derive(Debug)]
pub struct Queue {
    max_tokens: usize,
    max_rows: usize,
    longest: usize,
    block_size: usize,
    table_stride: usize,
    upload: StepUpload,
    slots: SlotLists,
    sampler: Sampler,
    scorer: Scorer,
    pub(super) decoding: DecodePlans,
    /// The lists that the kernels read, and where each of them starts.
    memory: Memory,
    layout: PreparedLayout,
    bounds: StepBounds,
    /// The slots of the rows that are sampled after.
    sampling: Vec<usize>,
    /// Indices of the outputs in bytes, if they are not the last tokens of rows.
    other_outputs: Option<Vec<u8>>,
    results: ResultShape,
    /// Whether this rank samples tokens, and not another rank for it.
    samples: bool,
    /// Reached when the forward pass of a step that waits for its masks is done.
    forward_done: DeviceEvent,
    /// The host memory to which results are copied, used in rotation.
    buffers: Vec<ResultBuffer>,
    active_buffer: usize,
    /// Steps that were finished and not collected.
    uncollected: usize,
}

/// The results of a step that are copied back.
#[derive(Debug, Clone, Copy, Default)]
struct ResultShape {
    rows: usize,
    with_top: bool,
}

/// Host memory for the results of one step.
#[derive(Debug)]
struct ResultBuffer {
    results: Pinned,
    /// Reached when the results are there.
    copied: DeviceEvent,
}

/// A step whose results come back from the device.
#[derive(Debug)]
#[must_use = "a finished step is collected"]
pub struct FinishedStep {
    /// Index of the buffer for its results.
    buffer: usize,
    results: ResultShape,
}

/// Returns the capacity for the rows and prompts of a usual step. More is uploaded in several
/// pieces.
fn capacity(size: &StepSize<'_>) -> StepCapacity {
    let blocks = size.rows + size.tokens.div_ceil(size.block_size) + size.table_blocks();
    let lists = [blocks, size.tokens.max(1024), 2 * MAX_BIASES];
    StepCapacity { rows: size.rows, lists, mask_words: Sampler::mask_words(size) }
}

impl Queue {
    pub(super) fn new(device: &Device, size: &StepSize<'_>, activations: Elem) -> Result<Queue> {
        let (layout, sampler) = (PreparedLayout::of(size), Sampler::new(device, size)?);
        let buffer = || -> Result<ResultBuffer> {
            let results = device.pinned(sampler.results(true).bytes())?;
            Ok(ResultBuffer { results, copied: device.event()? })
        };
        Ok(Queue {
            max_tokens: size.tokens,
            max_rows: size.rows,
            longest: size.sequence_tokens,
            block_size: size.block_size,
            table_stride: size.table_blocks(),
            upload: StepUpload::new(device, &capacity(size))?,
            slots: SlotLists::new(device, size)?,
            scorer: Scorer::new(device, size)?,
            decoding: DecodePlans::new(device, size, activations)?,
            memory: device.allocate(Elem::I32, layout.end)?,
            layout,
            bounds: StepBounds::default(),
            sampling: Vec::with_capacity(size.rows),
            other_outputs: None,
            results: ResultShape::default(),
            samples: false,
            forward_done: device.event()?,
            buffers: (0..STEPS_AHEAD).map(|_| buffer()).collect::<Result<_>>()?,
            active_buffer: 0,
            sampler,
            uncollected: 0,
        })
    }

    /// Returns the bytes that a queue takes on the device.
    pub(super) fn bytes(size: &StepSize<'_>, activations: Elem) -> usize {
        let parts = [
            StepUpload::bytes(&capacity(size)),
            SlotLists::bytes(size),
            Sampler::bytes(size),
            Scorer::bytes(size),
            DecodePlans::bytes(size, activations),
            PreparedLayout::of(size).end.saturating_mul(Elem::I32.size()),
        ];
        parts.into_iter().fold(0, usize::saturating_add)
    }

    /// Gives `slot` to a new sequence.
    pub(super) fn admit(
        &mut self,
        device: &Device,
        slot: usize,
        tokens: &[u32],
        params: &SamplingParams,
    ) -> Result<()> {
        self.upload.open()?;
        self.slots.reset(slot);
        self.stage(device, SlotList::Histories, slot, 0, tokens)?;
        // A bias of minus infinity makes end tokens impossible for as long as they come too early.
        let ends = params.end_tokens.iter().map(|&token| (token, f32::NEG_INFINITY));
        let biases = ends.chain(params.logit_bias.iter().copied());
        let (ids, values): (Vec<u32>, Vec<u32>) = biases.map(|(token, bias)| (token, bias.to_bits())).unzip();
        self.stage(device, SlotList::Biases, slot, 0, &ids)?;
        self.stage(device, SlotList::Biases, slot, MAX_BIASES, &values)
    }

    /// Adds words for a slot's list to the upload of the next step. Words that do not fit are
    /// uploaded before.
    fn stage(
        &mut self,
        device: &Device,
        list: SlotList,
        slot: usize,
        mut at: usize,
        mut words: &[u32],
    ) -> Result<()> {
        loop {
            let staged = self.upload.stage(list, slot, at, words);
            (at, words) = (at + staged, &words[staged..]);
            if words.is_empty() {
                return Ok(());
            }
            self.upload.send_early(device, list)?;
            self.write(device, list)?;
            device.synchronize()?;
            self.upload.clear(list);
        }
    }

    /// Writes the uploaded words for a list into the slots.
    fn write(&self, device: &Device, list: SlotList) -> Result<()> {
        write_ranges(device, &self.slots.list(list), &self.upload.ranges(list, self.upload.count(list)))
    }

    /// Uploads the parts of the next step's input that the device does not have.
    pub(super) fn begin(&mut self, device: &Device, input: &StepInput<'_>) -> Result<()> {
        assert!(self.uncollected < STEPS_AHEAD, "a step more than may be finished and not collected");
        let StepInput { tokens, rows, outputs, samples, .. } = *input;
        assert!(tokens.len() <= self.max_tokens && rows.len() <= self.max_rows, "a step beyond its size");
        self.upload.open()?;
        self.set_rows(device, input)?;
        let decoding = rows.iter().take_while(|row| row.decodes());
        self.decoding.set(decoding.map(|row| row.start + row.count));
        assert!(
            samples.is_empty() || self.other_outputs.is_none(),
            "tokens are sampled after the last ones of rows"
        );
        let choices = self.sampling.iter().copied().zip(samples);
        let (masks, top) = self.sampler.choose(&mut self.upload, choices)?;
        self.results = ResultShape { rows: samples.len(), with_top: top > 0 };
        debug_assert_eq!(self.bounds.outputs, outputs.len());
        self.upload.send(device, masks)?;
        self.write(device, SlotList::Histories)?;
        self.write(device, SlotList::Biases)
    }

    /// Puts the rows and their new blocks into the upload, and sets the bounds of the step.
    fn set_rows(&mut self, device: &Device, input: &StepInput<'_>) -> Result<()> {
        let StepInput { tokens, rows, outputs, .. } = *input;
        let (tokens, outputs_len) = (tokens.len(), outputs.len());
        self.bounds = StepBounds { tokens, rows: rows.len(), outputs: outputs_len, ..StepBounds::default() };
        self.sampling.clear();
        let mut wanted = outputs.iter().map(|&t| t as usize).peekable();
        let mut end = 0;
        for (r, row) in rows.iter().enumerate() {
            let &SeqRow { slot, start, count, blocks, prefix, .. } = row;
            end += count;
            let samples = wanted.next_if_eq(&(end - 1)).is_some();
            if samples {
                self.sampling.push(slot);
            }
            self.upload.set_row(r, [slot, start, count, usize::from(samples)]);
            self.upload.set_prefix(r, prefix);
            let known = self.slots.mark_uploaded(slot, blocks.len());
            self.stage(device, SlotList::Tables, slot, known, blocks.get(known..).unwrap_or_default())?;
            self.bounds.max_queries = self.bounds.max_queries.max(count);
            self.bounds.max_context = self.bounds.max_context.max(start + count);
        }
        assert_eq!(end, tokens, "tokens of the rows and of the step");
        self.upload.set_row_count(rows.len());
        // Tests and tools ask for the logits of other tokens than the last ones of rows.
        self.other_outputs = wanted.peek().map(|_| outputs.iter().flat_map(|t| t.to_le_bytes()).collect());
        Ok(())
    }

    /// Widens a step of decode rows to `rows` rows. Returns false, and changes nothing, if a
    /// recorded graph cannot compute the step.
    pub(super) fn pad(&mut self, rows: usize) -> bool {
        let decodes = self.bounds.max_queries <= 1 && self.decoding.rows() == self.bounds.rows;
        let possible =
            decodes && rows >= self.bounds.rows && rows <= self.max_rows && self.decoding.is_single();
        if possible {
            let (max_queries, max_context) = (1, self.longest);
            self.bounds = StepBounds { tokens: rows, rows, outputs: rows, max_queries, max_context };
            self.decoding.pad(rows);
        }
        possible
    }

    /// Computes the lists that the kernels read.
    pub(super) fn prepare(&self, device: &Device) -> Result<()> {
        let StepBounds { rows, outputs, .. } = self.bounds;
        // A row of one token adds one block at most.
        let tables = rows.max(self.upload.count(SlotList::Tables));
        let ranges = self.upload.ranges(SlotList::Tables, tables);
        write_ranges(device, &self.slots.list(SlotList::Tables), &ranges)?;
        let upload = &self.upload;
        let (count, of_rows, prefixes) = (upload.row_count(), upload.rows(), upload.prefixes());
        let of_step = StepRows { most: rows, count, rows: of_rows, prefixes };
        prepare(device, &self.slots.lists(), &of_step, self.block_size, &self.prepared())?;
        if let Some(indices) = &self.other_outputs {
            device.write(self.list(self.layout.outputs, outputs), indices)?;
        }
        self.decoding.plan(device, &self.batch())
    }

    /// Marks the end of the forward pass.
    pub(super) fn mark_forward(&self) -> Result<()> {
        self.forward_done.record()
    }

    /// Tells whether the device has reached the mark.
    pub(super) fn is_forward_done(&self) -> Result<bool> {
        self.forward_done.reached()
    }

    /// Uploads the sampling choices and masks of the step again, because masks are known now that
    /// were not known when the step began.
    pub(super) fn set_masks(&mut self, device: &Device, samples: &[SampleRow<'_>]) -> Result<()> {
        self.upload.open()?;
        let choices = self.sampling.iter().copied().zip(samples);
        let (masks, _) = self.sampler.choose(&mut self.upload, choices)?;
        self.upload.send_choices(device, masks)
    }

    /// Samples a token for each output.
    pub(super) fn sample(&mut self, device: &Device, logits: View<'_>) -> Result<()> {
        self.samples = true;
        self.sampler.sample(device, (&self.upload, &self.slots), self.bounds.outputs, logits)
    }

    /// Scores one token for each row of logits.
    pub(super) fn score(
        &mut self,
        device: &Device,
        logits: View<'_>,
        rows: &[ScoreRow],
        scored: &mut Vec<Scored>,
    ) -> Result<()> {
        self.scorer.score(device, self.sampler.workspace(), logits, rows, scored)
    }

    /// Returns the sampled tokens, or the place for those of another rank: u32 `[outputs]`.
    pub(super) fn sampled(&self) -> View<'_> {
        self.sampler.tokens(Elem::U32).slice(0..self.bounds.outputs)
    }

    /// Appends the sampled tokens to those of their slots.
    pub(super) fn append(&self, device: &Device) -> Result<()> {
        let sampled = self.sampler.tokens(Elem::I32);
        append(device, &self.slots.lists(), &self.prepared(), self.bounds.rows, sampled)
    }

    /// Starts the copy of the step's results to the host.
    pub(super) fn finish(&mut self, device: &Device) -> Result<FinishedStep> {
        let buffer = self.active_buffer;
        let ResultBuffer { results: to, copied } = &mut self.buffers[buffer];
        let ResultShape { rows, with_top } = self.results;
        if rows > 0 {
            let from = self.sampler.results(with_top && self.samples);
            device.read_into(from, to, 0..from.bytes())?;
        }
        copied.record()?;
        self.active_buffer = (self.active_buffer + 1) % STEPS_AHEAD;
        self.uncollected += 1;
        Ok(FinishedStep { buffer, results: self.results })
    }

    /// Tells whether the results of a step are there.
    pub(super) fn is_done(&self, step: &FinishedStep) -> Result<bool> {
        self.buffers[step.buffer].copied.reached()
    }

    /// Waits for the results of a step and appends them to `sampled`.
    pub(super) fn collect(&mut self, step: FinishedStep, sampled: &mut SampledRows) -> Result<()> {
        let FinishedStep { buffer, results: ResultShape { rows, .. } } = step;
        let ResultBuffer { results, copied } = &self.buffers[buffer];
        copied.wait()?;
        self.uncollected -= 1;
        self.sampler.read(results, rows, !self.samples).for_each(|token| sampled.push_row([token]));
        Ok(())
    }

    /// Returns one of the prepared lists.
    fn list(&self, at: usize, len: usize) -> View<'_> {
        self.memory.view(Elem::I32).slice(at..at + len)
    }

    fn prepared(&self) -> PreparedStep<'_> {
        let (at, rows, max_tokens) = (&self.layout, self.max_rows, self.bounds.tokens);
        PreparedStep {
            max_tokens,
            query_start: self.list(at.query_start, rows + 1),
            context: self.list(at.context, rows),
            prefix: self.list(at.prefix, rows),
            tables: self.list(at.tables, rows * self.table_stride),
            tokens: self.list(at.tokens, max_tokens),
            positions: self.list(at.positions, max_tokens),
            axes: self.list(at.axes, 2 * max_tokens),
            slots: self.list(at.slots, max_tokens),
            outputs: self.list(at.outputs, rows),
            output_slots: self.list(at.output_slots, rows),
            output_at: self.list(at.output_at, rows),
            counts: self.list(at.counts, 2),
        }
    }

    /// Returns the number of tokens of the step.
    pub(super) fn tokens(&self) -> usize {
        self.bounds.tokens
    }

    /// Returns the number of tokens that are no padding, which only the device knows, `[1]`.
    pub(super) fn token_count(&self) -> View<'_> {
        self.list(self.layout.counts, 1)
    }

    /// Returns the number of tokens whose logits are wanted.
    pub(super) fn outputs(&self) -> usize {
        self.bounds.outputs
    }

    /// Returns the token ids, `[tokens]`.
    pub(super) fn ids(&self) -> View<'_> {
        self.prepared().tokens
    }

    /// Returns the positions of the tokens in their sequences, `[tokens]`.
    pub(super) fn positions(&self) -> View<'_> {
        self.prepared().positions
    }

    /// Returns the positions of the tokens on the two axes of a rotation, `[tokens]` each.
    pub(super) fn axes(&self) -> [View<'_>; 2] {
        let (all, tokens) = (self.prepared().axes, self.bounds.tokens);
        [all.slice(0..tokens), all.slice(tokens..2 * tokens)]
    }

    /// Returns the lengths of the prefixes of the rows, `[rows]`.
    pub(super) fn prefixes(&self) -> View<'_> {
        self.prepared().prefix
    }

    /// Returns the places of the tokens in the KV cache, `[tokens]`.
    pub(super) fn places(&self) -> View<'_> {
        self.prepared().slots
    }

    /// Returns the indices of the tokens whose logits are wanted, `[outputs]`.
    pub(super) fn output_index(&self) -> View<'_> {
        self.list(self.layout.outputs, self.bounds.outputs)
    }

    /// Returns the number of slots for sequences.
    pub(super) fn slot_count(&self) -> usize {
        self.slots.lists().slots
    }

    /// Returns the slot, the first position and the number of tokens of each row, i32 `[max_rows,
    /// 4]`. The records beyond the rows of the step are those of earlier steps.
    pub(super) fn row_records(&self) -> View<'_> {
        self.upload.rows()
    }

    /// Returns the rows in the terms of the attention kernels.
    pub(super) fn batch(&self) -> SequenceBatch<'_> {
        let StepBounds { tokens, rows, max_queries, max_context, .. } = self.bounds;
        let prepared = self.prepared();
        SequenceBatch {
            rows,
            tokens,
            query_start: prepared.query_start,
            context: prepared.context,
            tables: prepared.tables,
            table_stride: self.table_stride,
            max_queries,
            max_context,
        }
    }
}
