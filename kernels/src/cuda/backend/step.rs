//! A step in the device's memory: from a few words of the host to what the kernels read.
//!
//! The device knows the tokens and the blocks of every slot ([`Slots`]). The host says which rows there are, which blocks are new, and
//! how to choose ([`Words`]); kernels make the rest, and append what was chosen to the slots' tokens.

use std::collections::VecDeque;

use super::decoding::Decoding;
use super::sampler::Sampler;
use super::scorer::Scorer;
use super::slots::Slots;
use super::words::{List, Room, Words};
use super::{Device, Elem, Memory, View};
use crate::Result;
use crate::backend::{SeqRow, StepInput, StepSize};
use crate::cuda::ops::paged::Batch;
use crate::cuda::ops::step::{Prepared, Rows, append, prepare, write_ranges};
use crate::cuda::{Event, Pinned};
use crate::sampling::{MOST_BIASES, Sampled, SamplingParams, ScoreRow, Scored};

/// Steps that may be under way at once: one that the device computes, and one that waits for it.
pub(super) const STEPS_AHEAD: usize = 2;

/// The current step, and the results of those before it.
#[derive(Debug)]
pub struct Step {
    most_tokens: usize,
    most_rows: usize,
    longest: usize,
    block_size: usize,
    table_stride: usize,
    words: Words,
    slots: Slots,
    sampler: Sampler,
    scorer: Scorer,
    pub(super) decoding: Decoding,
    /// What the kernels read, and where in it.
    memory: Memory,
    at: Lists,
    /// What the operations work on.
    bounds: Bounds,
    /// The slots of the rows that sample.
    sampling: Vec<usize>,
    /// Outputs that are not what the rows sample.
    asked_for: Option<Vec<u8>>,
    chosen: Chosen,
    /// Whether this rank chooses tokens, and not another for it.
    chooses: bool,
    /// Where the results of the steps under way come back, and which is next.
    back: Vec<Back>,
    turn: usize,
    under_way: VecDeque<UnderWay>,
}

/// Where each list of what the kernels read begins, in words.
#[derive(Debug, Clone, Copy)]
struct Lists {
    query_start: usize,
    context: usize,
    tables: usize,
    tokens: usize,
    positions: usize,
    slots: usize,
    outputs: usize,
    output_slots: usize,
    output_at: usize,
    counts: usize,
    end: usize,
}

impl Lists {
    fn of(size: &StepSize<'_>) -> Lists {
        let &StepSize { tokens, rows, .. } = size;
        let mut end = 0;
        let mut list = |len: usize| {
            let at = end;
            end = usize::saturating_add(end, len);
            at
        };
        Lists {
            query_start: list(rows.saturating_add(1)),
            context: list(rows),
            tables: list(rows.saturating_mul(size.table_blocks())),
            tokens: list(tokens),
            positions: list(tokens),
            slots: list(tokens),
            outputs: list(tokens.max(rows)),
            output_slots: list(rows),
            output_at: list(rows),
            counts: list(2),
            end: list(0),
        }
    }
}

/// Upper bounds of a step; kernels find the numbers themselves on the device.
#[derive(Debug, Clone, Copy, Default)]
struct Bounds {
    tokens: usize,
    rows: usize,
    outputs: usize,
    most_queries: usize,
    most_context: usize,
}

/// What a step chooses.
#[derive(Debug, Clone, Copy, Default)]
struct Chosen {
    rows: usize,
    with_top: bool,
}

/// A step that was asked for.
#[derive(Debug)]
struct UnderWay {
    /// Whose results it has.
    turn: usize,
    chosen: Chosen,
}

/// Where results come back.
#[derive(Debug)]
struct Back {
    results: Pinned,
    done: Event,
}

fn room(size: &StepSize<'_>) -> Room {
    // Rows and prompts of a usual step; more goes in several pieces.
    let blocks = size.rows + size.tokens.div_ceil(size.block_size) + size.table_blocks();
    let lists = [blocks, size.tokens.max(1024), 2 * MOST_BIASES];
    Room { rows: size.rows, lists, mask_words: Sampler::mask_words(size) }
}

impl Step {
    pub(super) fn new(device: &Device, size: &StepSize<'_>, activations: Elem) -> Result<Step> {
        let (at, sampler) = (Lists::of(size), Sampler::new(device, size)?);
        let back = || -> Result<Back> {
            Ok(Back { results: device.pinned(sampler.results(true).bytes())?, done: device.event()? })
        };
        Ok(Step {
            most_tokens: size.tokens,
            most_rows: size.rows,
            longest: size.sequence_tokens,
            block_size: size.block_size,
            table_stride: size.table_blocks(),
            words: Words::new(device, &room(size))?,
            slots: Slots::new(device, size)?,
            scorer: Scorer::new(device, size)?,
            decoding: Decoding::new(device, size, activations)?,
            memory: device.allocate(Elem::I32, at.end)?,
            at,
            bounds: Bounds::default(),
            sampling: Vec::with_capacity(size.rows),
            asked_for: None,
            chosen: Chosen::default(),
            chooses: false,
            back: (0..STEPS_AHEAD).map(|_| back()).collect::<Result<_>>()?,
            turn: 0,
            sampler,
            under_way: VecDeque::with_capacity(STEPS_AHEAD),
        })
    }

    pub(super) fn bytes(size: &StepSize<'_>, activations: Elem) -> usize {
        let parts = [
            Words::bytes(&room(size)),
            Slots::bytes(size),
            Sampler::bytes(size),
            Scorer::bytes(size),
            Decoding::bytes(size, activations),
            Lists::of(size).end.saturating_mul(Elem::I32.size()),
        ];
        parts.into_iter().fold(0, usize::saturating_add)
    }

    /// Tells the device of a new sequence.
    pub(super) fn admit(
        &mut self,
        device: &Device,
        slot: usize,
        tokens: &[u32],
        params: &SamplingParams,
    ) -> Result<()> {
        self.words.open()?;
        self.slots.renew(slot);
        self.stage(device, List::Histories, slot, 0, tokens)?;
        // End tokens that come too early are impossible.
        let ends = params.end_tokens.iter().map(|&token| (token, f32::NEG_INFINITY));
        let biases = ends.chain(params.logit_bias.iter().copied());
        let (ids, values): (Vec<u32>, Vec<u32>) = biases.map(|(token, bias)| (token, bias.to_bits())).unzip();
        self.stage(device, List::Biases, slot, 0, &ids)?;
        self.stage(device, List::Biases, slot, MOST_BIASES, &values)
    }

    /// Adds words for a slot to those that go with the next step; what there is no room for goes before.
    fn stage(
        &mut self,
        device: &Device,
        list: List,
        slot: usize,
        mut at: usize,
        mut words: &[u32],
    ) -> Result<()> {
        loop {
            let staged = self.words.stage(list, slot, at, words);
            (at, words) = (at + staged, &words[staged..]);
            if words.is_empty() {
                return Ok(());
            }
            self.words.send_early(device, list)?;
            self.write(device, list)?;
            device.synchronize()?;
            self.words.clear(list);
        }
    }

    /// Writes what was sent for a list into the slots.
    fn write(&self, device: &Device, list: List) -> Result<()> {
        write_ranges(device, &self.slots.list(list), &self.words.ranges(list, self.words.count(list)))
    }

    /// Takes in the next step and sends what the device does not know.
    pub(super) fn set(&mut self, device: &Device, input: &StepInput<'_>) -> Result<()> {
        assert!(self.under_way.len() < STEPS_AHEAD, "a step more than may be under way");
        let StepInput { tokens, rows, outputs, samples } = *input;
        assert!(tokens.len() <= self.most_tokens && rows.len() <= self.most_rows, "a step beyond its size");
        self.words.open()?;
        self.bounds =
            Bounds { tokens: tokens.len(), rows: rows.len(), outputs: outputs.len(), ..Bounds::default() };
        self.sampling.clear();
        let mut wanted = outputs.iter().map(|&t| t as usize).peekable();
        let mut end = 0;
        for (r, row) in rows.iter().enumerate() {
            let &SeqRow { slot, start, count, blocks, .. } = row;
            end += count;
            let samples = wanted.next_if_eq(&(end - 1)).is_some();
            if samples {
                self.sampling.push(slot);
            }
            self.words.set_row(r, [slot, start, count, usize::from(samples)]);
            let known = self.slots.tell(slot, blocks.len());
            self.stage(device, List::Tables, slot, known, blocks.get(known..).unwrap_or_default())?;
            self.bounds.most_queries = self.bounds.most_queries.max(count);
            self.bounds.most_context = self.bounds.most_context.max(start + count);
        }
        assert_eq!(end, tokens.len(), "tokens of the rows and of the step");
        self.words.set_row_count(rows.len());
        let decoding = rows.iter().take_while(|row| row.decodes);
        self.decoding.set(decoding.map(|row| row.start + row.count));
        // Tools ask for other logits than those that are sampled from.
        self.asked_for = wanted.peek().map(|_| outputs.iter().flat_map(|t| t.to_le_bytes()).collect());
        assert!(
            samples.is_empty() || self.asked_for.is_none(),
            "tokens are sampled after the last ones of rows"
        );
        let choices = self.sampling.iter().copied().zip(samples);
        let (masks, top) = self.sampler.choose(&mut self.words, choices)?;
        self.chosen = Chosen { rows: samples.len(), with_top: top > 0 };
        self.words.send(device, masks)?;
        self.write(device, List::Histories)?;
        self.write(device, List::Biases)
    }

    /// Widens a step of rows that decode to so many rows, if it can be done by what was recorded.
    pub(super) fn pad(&mut self, rows: usize) -> bool {
        let decodes = self.bounds.most_queries <= 1 && self.decoding.rows() == self.bounds.rows;
        let possible =
            decodes && rows >= self.bounds.rows && rows <= self.most_rows && self.decoding.is_single();
        if possible {
            let (most_queries, most_context) = (1, self.longest);
            self.bounds = Bounds { tokens: rows, rows, outputs: rows, most_queries, most_context };
            self.decoding.pad(rows);
        }
        possible
    }

    /// Makes what the kernels read.
    pub(super) fn prepare(&self, device: &Device) -> Result<()> {
        let Bounds { rows, outputs, .. } = self.bounds;
        // A row of one token begins one block at most.
        let tables = rows.max(self.words.count(List::Tables));
        write_ranges(device, &self.slots.list(List::Tables), &self.words.ranges(List::Tables, tables))?;
        let of_step = Rows { most: rows, count: self.words.row_count(), rows: self.words.rows() };
        prepare(device, &self.slots.lists(), &of_step, self.block_size, &self.prepared())?;
        if let Some(asked_for) = &self.asked_for {
            device.write(self.list(self.at.outputs, outputs), asked_for)?;
        }
        self.decoding.plan(device, &self.batch())
    }

    /// Chooses a token for each output.
    pub(super) fn sample(&mut self, device: &Device, logits: View<'_>) -> Result<()> {
        self.chooses = true;
        self.sampler.sample(device, (&self.words, &self.slots), self.bounds.outputs, logits)
    }

    /// Judges tokens by rows of logits.
    pub(super) fn score(
        &mut self,
        device: &Device,
        logits: View<'_>,
        rows: &[ScoreRow],
        scored: &mut Vec<Scored>,
    ) -> Result<()> {
        self.scorer.score(device, self.sampler.workspace(), logits, rows, scored)
    }

    /// The tokens that were chosen, or will be on another rank: u32 `[outputs]`.
    pub(super) fn chosen(&self) -> View<'_> {
        self.sampler.tokens(Elem::U32).slice(0..self.bounds.outputs)
    }

    /// Appends what was chosen to the slots' tokens.
    pub(super) fn append(&self, device: &Device) -> Result<()> {
        let sampled = self.sampler.tokens(Elem::I32);
        append(device, &self.slots.lists(), &self.prepared(), self.bounds.rows, sampled)
    }

    /// The step has been asked for: what it chooses will come back.
    pub(super) fn finish(&mut self, device: &Device) -> Result<()> {
        let Back { results, done } = &mut self.back[self.turn];
        let Chosen { rows, with_top } = self.chosen;
        if rows > 0 {
            let from = self.sampler.results(with_top && self.chooses);
            device.read_into(from, results, 0..from.bytes())?;
        }
        done.record()?;
        self.under_way.push_back(UnderWay { turn: self.turn, chosen: self.chosen });
        self.turn = (self.turn + 1) % STEPS_AHEAD;
        Ok(())
    }

    /// Whether the oldest step under way is done.
    pub(super) fn is_done(&self) -> Result<bool> {
        self.under_way.front().map_or(Ok(true), |step| self.back[step.turn].done.reached())
    }

    /// Waits for the oldest step under way.
    pub(super) fn collect(&mut self, chosen: &mut Vec<Sampled>) -> Result<()> {
        let UnderWay { turn, chosen: of_step } = self.under_way.pop_front().expect("a step is under way");
        let Back { results, done } = &self.back[turn];
        done.wait()?;
        chosen.extend(self.sampler.read(results, of_step.rows, !self.chooses));
        Ok(())
    }

    /// A list of what was prepared.
    fn list(&self, at: usize, len: usize) -> View<'_> {
        self.memory.view(Elem::I32).slice(at..at + len)
    }

    fn prepared(&self) -> Prepared<'_> {
        let (at, rows, most_tokens) = (&self.at, self.most_rows, self.bounds.tokens);
        Prepared {
            most_tokens,
            query_start: self.list(at.query_start, rows + 1),
            context: self.list(at.context, rows),
            tables: self.list(at.tables, rows * self.table_stride),
            tokens: self.list(at.tokens, most_tokens),
            positions: self.list(at.positions, most_tokens),
            slots: self.list(at.slots, most_tokens),
            outputs: self.list(at.outputs, rows),
            output_slots: self.list(at.output_slots, rows),
            output_at: self.list(at.output_at, rows),
            counts: self.list(at.counts, 2),
        }
    }

    /// Tokens of the step.
    pub(super) fn tokens(&self) -> usize {
        self.bounds.tokens
    }

    /// Rows whose logits are wanted.
    pub(super) fn outputs(&self) -> usize {
        self.bounds.outputs
    }

    /// Token ids, `[tokens]`.
    pub(super) fn ids(&self) -> View<'_> {
        self.prepared().tokens
    }

    /// Positions in their sequences, `[tokens]`.
    pub(super) fn positions(&self) -> View<'_> {
        self.prepared().positions
    }

    /// Places in the cache, `[tokens]`.
    pub(super) fn places(&self) -> View<'_> {
        self.prepared().slots
    }

    /// Tokens whose logits are wanted, `[outputs]`.
    pub(super) fn output_index(&self) -> View<'_> {
        self.list(self.at.outputs, self.bounds.outputs)
    }

    /// The sequences.
    pub(super) fn batch(&self) -> Batch<'_> {
        let Bounds { tokens, rows, most_queries, most_context, .. } = self.bounds;
        let prepared = self.prepared();
        Batch {
            rows,
            tokens,
            query_start: prepared.query_start,
            context: prepared.context,
            tables: prepared.tables,
            table_stride: self.table_stride,
            most_queries,
            most_context,
        }
    }
}
