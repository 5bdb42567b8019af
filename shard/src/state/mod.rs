//! The slot table: tokens, block table and sampling parameters of every admitted sequence.
//!
//! The router is trusted to schedule well, not to be free of bugs: every number of a step is checked before it is used.
//!
//! A device that runs ahead is asked for a step before the host knows what the one before it has sampled. Such a token has its place here
//! ([`SlotTable::expect`]) until its value comes ([`SlotTable::fill`]); steps are checked by how many tokens there are, and need not know them.
//!
//! A sequence whose content is wrong is refused: it keeps its slot until it is released, and none of its rows is computed. Steps that were
//! sent before the router knew may still name the slot. All ranks decide this from the steps alone, so their tables stay equal.

mod batch;
mod error;
mod sampling;

use std::ops::Range;

use millrace_kernels::{SampleRow, Sampled, SamplingParams, SeqRow};
use millrace_proto::rules::{MAX_TOP_N, is_mask, mask_words};
use millrace_proto::{Admission, Pooling, Row, Step};

use crate::Limits;
pub use batch::Batch;
use batch::{BatchRow, Expected};
pub use error::StepError;

/// Every sequence that the router has admitted, by slot.
pub struct SlotTable {
    limits: Limits,
    vocab: usize,
    slots: Vec<Slot>,
    /// Steps applied so far; tells whether a slot has a row in this one.
    steps: u64,
}

/// Stands for a token that only the device knows yet.
const UNKNOWN: u32 = u32::MAX;

struct Slot {
    taken: bool,
    /// How many sequences the slot has had.
    sequences: u64,
    /// Prompt and generated tokens. Room for one more than can be computed: the last token is only reported.
    tokens: Vec<u32>,
    prompt_len: usize,
    /// Block b holds positions `[b * block_size, (b + 1) * block_size)`.
    blocks: Vec<u32>,
    sampling: SamplingParams,
    pooling: Pooling,
    /// The tokens that the row of this step may sample, as in [`SampleRow::allowed`]; empty for all.
    allowed: Vec<u32>,
    /// The last step in which the slot had a row.
    last_row: u64,
    /// Set if the sequence is refused: no row of it is computed any more.
    refused: Option<StepError>,
}

/// Tokens of a prompt that are to be scored after a step.
#[derive(Debug, Clone)]
pub struct Scoring<'a> {
    /// Whose.
    pub slot: usize,
    /// The places among the step's tokens of those before them.
    pub states: Range<usize>,
    /// The tokens.
    pub tokens: &'a [u32],
    /// Alternatives to report at each of them.
    pub top_n: u32,
}

/// A row of a sequence that is pooled.
#[derive(Debug, Clone)]
pub struct Pooled {
    /// Whose.
    pub slot: usize,
    /// Whether it is the first row of the sequence.
    pub begins: bool,
    /// The places among the step's tokens of the states that are added to its sum.
    pub states: Range<usize>,
    /// How many states the sum has now, if it is complete.
    pub complete: Option<usize>,
}

impl SlotTable {
    /// An empty table with room for everything it may ever hold, for token ids below `vocab`.
    pub fn new(limits: Limits, vocab: usize) -> Self {
        let slot = || Slot {
            taken: false,
            sequences: 0,
            tokens: Vec::with_capacity(limits.max_sequence_tokens + 1),
            prompt_len: 0,
            blocks: Vec::with_capacity(limits.table_blocks()),
            sampling: SamplingParams::default(),
            pooling: Pooling::None,
            allowed: Vec::with_capacity(mask_words(vocab)),
            last_row: 0,
            refused: None,
        };
        let slots = (0..limits.max_sequences).map(|_| slot()).collect();
        SlotTable { limits, vocab, slots, steps: 0 }
    }

    /// Bytes that a table for `limits` and token ids below `vocab` takes.
    pub fn bytes(limits: &Limits, vocab: usize) -> usize {
        let table = limits.table_blocks().saturating_add(mask_words(vocab));
        let per_slot = limits.max_sequence_tokens.saturating_add(table).saturating_add(1);
        limits.max_sequences.saturating_mul(per_slot).saturating_mul(size_of::<u32>())
    }

    /// Applies a step's releases, admissions and rows, in this order, and puts what is to be computed into `batch`, and which rows are not
    /// because their sequences are refused.
    ///
    /// # Errors
    /// If the step contradicts the table or the limits in a way that no sequence alone is to blame for. The table is then of no further use.
    pub fn apply(&mut self, step: &Step, batch: &mut Batch) -> Result<(), StepError> {
        self.steps += 1;
        batch.clear();
        for &slot in &step.release {
            self.taken(slot)?.taken = false;
        }
        for admission in &step.admit {
            let admitted = self.admit(admission);
            self.unless_refused(admission.slot, admitted)?;
        }
        for row in &step.rows {
            let accepted = self.row(row, batch);
            self.unless_refused(row.slot, accepted)?;
            let slot = row.slot as usize;
            if let Some(error) = &self.slots[slot].refused {
                batch.refused.push((slot, error.clone()));
            }
        }
        Ok(())
    }

    /// Turns an error that is one sequence's own into the refusal of the sequence in `slot`.
    fn unless_refused(&mut self, slot: u32, result: Result<(), StepError>) -> Result<(), StepError> {
        match result {
            Err(error) if error.is_refusal() => {
                self.slot(slot)?.refused = Some(error);
                Ok(())
            }
            other => other,
        }
    }

    /// Whether the sequence in this slot is refused.
    pub fn is_refused(&self, slot: usize) -> bool {
        self.slots[slot].refused.is_some()
    }

    /// The rows of `batch` as the device reads them, with block tables just long enough.
    pub fn seq_rows<'a>(&'a self, batch: &'a Batch) -> impl Iterator<Item = SeqRow<'a>> {
        batch.rows.iter().map(|row| {
            let blocks = (row.start + row.count).div_ceil(self.limits.block_size);
            let &BatchRow { slot, start, count, decodes, .. } = row;
            SeqRow { slot, start, count, decodes, blocks: &self.slots[slot].blocks[..blocks] }
        })
    }

    /// What is to be sampled after `batch`, in the order of its outputs.
    pub fn sample_rows<'a>(&'a self, batch: &'a Batch) -> impl Iterator<Item = SampleRow<'a>> {
        batch.sampling_slots().map(|slot| {
            let slot = &self.slots[slot];
            SampleRow {
                params: &slot.sampling,
                tokens: &slot.tokens,
                prompt_len: slot.prompt_len,
                allowed: (!slot.allowed.is_empty()).then_some(&slot.allowed),
            }
        })
    }

    /// What is to be scored after `batch`, in the order of its rows.
    pub fn scorings<'a>(&'a self, batch: &'a Batch) -> impl Iterator<Item = Scoring<'a>> {
        batch.rows().filter(|(_, row)| row.scored > 0).map(|(at, row)| {
            let BatchRow { slot, start, scored, top_n, .. } = *row;
            let tokens = &self.slots[slot].tokens[start + 1..][..scored];
            Scoring { slot, states: at..at + scored, tokens, top_n }
        })
    }

    /// What of `batch` belongs to sequences that are pooled, in the order of its rows.
    pub fn pooled<'a>(&'a self, batch: &'a Batch) -> impl Iterator<Item = Pooled> + 'a {
        batch.rows().filter_map(|(at, row)| {
            let slot = &self.slots[row.slot];
            let (end, is_last) = (at + row.count, row.start + row.count == slot.prompt_len);
            let (states, count) = match slot.pooling {
                Pooling::None => return None,
                Pooling::Last if is_last => (end - 1..end, 1),
                Pooling::Last => (end..end, 0),
                Pooling::Mean => (at..end, slot.prompt_len),
            };
            let complete = is_last.then_some(count);
            // Of a sequence whose last state is wanted nothing is kept between rows.
            let begins = row.start == 0 || slot.pooling == Pooling::Last;
            Some(Pooled { slot: row.slot, begins, states, complete })
        })
    }

    /// A sequence as it was admitted: its tokens, and how the next ones are chosen.
    pub fn sequence(&self, slot: usize) -> (&[u32], &SamplingParams) {
        (&self.slots[slot].tokens, &self.slots[slot].sampling)
    }

    /// Makes places for the tokens that `batch` samples.
    pub fn expect(&mut self, batch: &mut Batch) {
        for row in batch.rows.iter().filter(|row| row.sample) {
            let slot = &mut self.slots[row.slot];
            let (sequence, position) = (slot.sequences, slot.tokens.len());
            batch.expected.push(Expected { slot: row.slot, sequence, position });
            slot.tokens.push(UNKNOWN);
        }
    }

    /// Fills these places with what was sampled, where the sequence is still there.
    pub fn fill(&mut self, batch: &Batch, chosen: &[Sampled]) {
        for (place, sampled) in batch.expected.iter().zip(chosen) {
            let slot = &mut self.slots[place.slot];
            if slot.sequences == place.sequence {
                slot.tokens[place.position] = sampled.token;
            }
        }
    }

    fn slot(&mut self, slot: u32) -> Result<&mut Slot, StepError> {
        let slots = self.slots.len();
        self.slots.get_mut(slot as usize).ok_or(StepError::UnknownSlot { slot, slots })
    }

    fn taken(&mut self, slot: u32) -> Result<&mut Slot, StepError> {
        let place = self.slot(slot)?;
        if place.taken { Ok(place) } else { Err(StepError::FreeSlot { slot }) }
    }

    fn admit(&mut self, admission: &Admission) -> Result<(), StepError> {
        let Admission { slot, ref tokens, prompt_len, ref sampling, pooling } = *admission;
        let (limits, vocab) = (self.limits, self.vocab);
        let place = self.slot(slot)?;
        if place.taken {
            return Err(StepError::TakenSlot { slot });
        }
        // The sequence has the slot even if it is refused below, with nothing in it.
        place.taken = true;
        place.sequences += 1;
        place.tokens.clear();
        place.blocks.clear();
        place.refused = None;
        if tokens.is_empty() || tokens.len() > limits.max_sequence_tokens {
            let (tokens, limit) = (tokens.len(), limits.max_sequence_tokens);
            return Err(StepError::SequenceLength { slot, tokens, limit });
        }
        if let Some(&token) = tokens.iter().find(|token| **token as usize >= vocab) {
            return Err(StepError::UnknownToken { slot, token, vocab });
        }
        if prompt_len == 0 || prompt_len as usize > tokens.len() {
            return Err(StepError::PromptLength { slot, prompt_len, tokens: tokens.len() });
        }
        let is_prompt = prompt_len as usize == tokens.len();
        let pooling = match Pooling::try_from(pooling) {
            Ok(kind) if kind == Pooling::None || is_prompt => kind,
            _ => return Err(StepError::Pooling { slot, pooling, tokens: tokens.len(), prompt_len }),
        };
        let sampling = sampling.as_ref().ok_or(StepError::NoSampling { slot })?;
        place.sampling = sampling::check(sampling, vocab).map_err(|of| {
            let (field, value) = (of.field, of.value);
            StepError::Sampling { slot, field, value }
        })?;
        place.tokens.extend_from_slice(tokens);
        place.prompt_len = prompt_len as usize;
        place.pooling = pooling;
        Ok(())
    }

    fn row(&mut self, row: &Row, batch: &mut Batch) -> Result<(), StepError> {
        let Row { slot, ref new_blocks, sample, ref allowed, score, .. } = *row;
        let (start, count) = (row.start as usize, row.count as usize);
        let (limits, steps, vocab) = (self.limits, self.steps, self.vocab);
        let place = self.taken(slot)?;
        if place.last_row == steps {
            return Err(StepError::SecondRow { slot });
        }
        place.last_row = steps;
        if place.refused.is_some() {
            return Ok(());
        }

        if count == 0 {
            return Err(StepError::EmptyRow { slot });
        }
        let (end, known) = (start.saturating_add(count), place.tokens.len());
        if end > known || end > limits.max_sequence_tokens {
            let limit = known.min(limits.max_sequence_tokens);
            return Err(StepError::UnknownPositions { slot, start, end, limit });
        }
        if sample && end != known {
            return Err(StepError::SampleInside { slot, end, known });
        }
        if sample && place.pooling != Pooling::None {
            return Err(StepError::SamplePooled { slot });
        }
        if count > limits.max_step_tokens - batch.tokens.len() {
            return Err(StepError::TooManyTokens { limit: limits.max_step_tokens });
        }

        if let Some(&block) = new_blocks.iter().find(|block| **block as usize >= limits.num_blocks) {
            return Err(StepError::UnknownBlock { slot, block, blocks: limits.num_blocks });
        }
        let (blocks, needed) = (place.blocks.len() + new_blocks.len(), end.div_ceil(limits.block_size));
        if blocks < needed || blocks > limits.table_blocks() {
            return Err(StepError::BlockCount { slot, blocks, needed, limit: limits.table_blocks() });
        }
        let is_choice = allowed.is_empty() || sample && is_mask(allowed, vocab);
        if !is_choice {
            return Err(StepError::Mask { slot, words: allowed.len(), vocab });
        }
        let scored = match score {
            Some(_) => place.prompt_len.min(end + 1).saturating_sub(start + 1),
            None => 0,
        };
        let top_n = score.unwrap_or_default();
        if score.is_some() && (scored == 0 || top_n as usize > vocab.min(MAX_TOP_N)) {
            return Err(StepError::Score { slot, start, top_n, vocab });
        }
        place.allowed.clear();
        place.allowed.extend_from_slice(allowed);
        place.blocks.extend_from_slice(new_blocks);
        let decodes = sample && count == 1 && start >= place.prompt_len;
        let row = BatchRow { slot: slot as usize, start, count, sample, decodes, scored, top_n };
        batch.push(row, &place.tokens[start..end]);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
