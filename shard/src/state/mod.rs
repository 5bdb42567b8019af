//! The slot table: tokens, block table and sampling parameters of every admitted sequence.
//!
//! The table checks every number of a step before it is used, because a bug in the router must not
//! make the device read or write outside its memory.
//!
//! A device that runs ahead gets a step before the host knows the tokens that the previous step has
//! sampled. [`SlotTable::expect`] reserves a place for such a token, and [`SlotTable::fill`] stores
//! its value later. The checks of a step need only the number of tokens, not their values.
//!
//! A sequence with invalid content is refused: it keeps its slot until it is released, and none of
//! its rows is computed. Steps that the router sent before it knew of the refusal may still name
//! the slot. Each rank decides this from the steps alone, so that the tables of all ranks stay
//! equal.

mod batch;
mod draft_reads;
mod drafts;
mod error;
mod kept_states;
mod masks;
mod sampling;

use std::ops::Range;

use millrace_backend::{SampleRow, Sampled, SamplingParams, SeqRow, SequencePrefix, StateCopy};
use millrace_model::{ClassifierKind, PrefixRule, ShardLimits};
use millrace_proto::rules::{MAX_TOP_N, is_mask, mask_words};
use millrace_proto::{Admission, Pooling, Row, Step};

pub use batch::{Batch, DraftPassRow, PassStates, PooledRow, Scoring, StepStates};
use batch::{BatchRow, ExpectedToken};
use draft_reads::DraftReads;
pub use error::StepError;
use kept_states::KeptStates;

/// The table of every sequence that the router has admitted, by slot.
pub struct SlotTable {
    limits: ShardLimits,
    vocab: usize,
    slots: Vec<SequenceSlot>,
    /// Number of steps applied so far. It tells whether a slot already has a row in the current
    /// step.
    steps: u64,
    /// The part of a prompt whose tokens attend to each other, if there is one. The first row of
    /// each sequence must cover its prompt then.
    prefix: Option<PrefixRule>,
    /// Whether the rows of a sequence must compute each position once, in order.
    in_order: bool,
    /// The kind of the model's classifier, if it has one.
    classifier: Option<ClassifierKind>,
    /// Whether tokens may have the second type.
    has_second_type: bool,
    /// The position at which the states of each checkpoint were saved.
    checkpoints: Vec<Option<usize>>,
    /// The number of the adapter in each place of the pools.
    adapters: Vec<Option<u32>>,
    /// The positions that the draft model has read, if there is one.
    draft_reads: Option<DraftReads>,
    /// The positions whose states are kept for a head that guesses, if there is one.
    kept_states: Option<KeptStates>,
}

/// The placeholder for a token that only the device knows so far.
const UNKNOWN: u32 = u32::MAX;

/// One slot and the sequence that holds it.
struct SequenceSlot {
    taken: bool,
    /// Number of sequences that the slot has held.
    sequences: u64,
    /// Prompt and generated tokens, and the drafts of a row in flight. The capacity is one more
    /// than the tokens that can be computed, because the last token is only reported.
    tokens: Vec<u32>,
    /// Number of drafts at the end of `tokens`.
    drafts: usize,
    prompt_len: usize,
    /// Number of positions that rows have covered, or that are covered by a checkpoint.
    covered: usize,
    /// The checkpoint with whose states the sequence begins, until its first row.
    restored: Option<usize>,
    /// The first tokens of the prompt, if they attend to each other.
    prefix: SequencePrefix,
    /// The adapter that the sequence is computed with.
    adapter: Option<usize>,
    /// Block b holds positions `[b * block_size, (b + 1) * block_size)`.
    blocks: Vec<u32>,
    sampling: SamplingParams,
    pooling: Pooling,
    /// Number of states at the beginning of the prompt that are not pooled.
    pooling_start: usize,
    /// Position from which on tokens have the second type, if some have it.
    second_type_start: Option<usize>,
    /// The tokens that the row of this step may sample, as in [`SampleRow::allowed`]; empty for
    /// all.
    allowed: Vec<u32>,
    /// Whether the mask of the row of this step follows and has not come.
    awaits_mask: bool,
    /// Number of rows of the sequence that were deferred because their masks came late.
    deferrals: usize,
    /// The last step in which the slot had a row.
    last_row: u64,
    /// The reason why the sequence is refused. None of its rows is computed then.
    refused: Option<StepError>,
}

impl SlotTable {
    /// Creates an empty table for token ids below `vocab`. It allocates everything that it may ever
    /// hold.
    pub fn new(limits: ShardLimits, vocab: usize) -> Self {
        let slot = || SequenceSlot {
            taken: false,
            sequences: 0,
            tokens: Vec::with_capacity(limits.max_sequence_tokens + 1),
            drafts: 0,
            prompt_len: 0,
            covered: 0,
            restored: None,
            prefix: SequencePrefix::default(),
            adapter: None,
            blocks: Vec::with_capacity(limits.table_blocks()),
            sampling: SamplingParams::default(),
            pooling: Pooling::None,
            pooling_start: 0,
            second_type_start: None,
            allowed: Vec::with_capacity(mask_words(vocab)),
            awaits_mask: false,
            deferrals: 0,
            last_row: 0,
            refused: None,
        };
        let slots = (0..limits.max_sequences).map(|_| slot()).collect();
        SlotTable {
            limits,
            vocab,
            slots,
            steps: 0,
            prefix: None,
            in_order: false,
            classifier: None,
            has_second_type: false,
            checkpoints: vec![None; limits.state_checkpoints],
            adapters: vec![None; limits.adapters.count],
            draft_reads: None,
            kept_states: None,
        }
    }

    /// Sets the part of a prompt whose tokens attend to each other, if there is one. The first row
    /// of each sequence must cover its prompt then.
    #[must_use]
    pub fn with_prefixes(self, prefix: Option<PrefixRule>) -> Self {
        SlotTable { prefix, ..self }
    }

    /// Requires that the rows of a sequence compute each position once, in order, because layers
    /// have a recurrent state.
    #[must_use]
    pub fn with_rows_in_order(self, in_order: bool) -> Self {
        SlotTable { in_order, ..self }
    }

    /// Accepts sequences to be classified, if the model has a classifier.
    #[must_use]
    pub fn with_classifier(self, classifier: Option<ClassifierKind>) -> Self {
        SlotTable { classifier, ..self }
    }

    /// Accepts prompts with tokens of the second type, if the model has such a type.
    #[must_use]
    pub fn with_second_type(self, has_second_type: bool) -> Self {
        SlotTable { has_second_type, ..self }
    }

    /// Applies a step's releases, admissions and rows, in this order. Puts the rows to be computed
    /// into `batch`, and lists there the rows whose sequences are refused.
    ///
    /// # Errors
    /// If the step contradicts the table or the limits in a way that is not the fault of
    /// one sequence. The table must not be used any more then.
    pub fn apply(&mut self, step: &Step, batch: &mut Batch) -> Result<(), StepError> {
        self.steps += 1;
        batch.clear();
        // A row of a refused sequence counts as well: the router sends the masks of this step in
        // any case.
        batch.awaits_masks = step.rows.iter().any(|row| row.mask_follows);
        if let Some(reads) = &mut self.draft_reads {
            reads.begin_step();
            step.disk_reads.iter().for_each(|read| reads.forget(read.block));
        }
        if let Some(kept) = &mut self.kept_states {
            step.disk_reads.iter().for_each(|read| kept.forget_block(read.block));
        }
        for &slot in &step.release {
            self.taken(slot)?.taken = false;
        }
        for admission in &step.admit {
            let admitted = self.admit(admission);
            self.unless_refused(admission.slot, admitted)?;
            if let Some(kept) = &mut self.kept_states {
                kept.forget(admission.slot as usize);
            }
        }
        for row in &step.rows {
            let accepted = self.row(row, batch);
            self.unless_refused(row.slot, accepted)?;
            let slot = row.slot as usize;
            if let Some(error) = &self.slots[slot].refused {
                batch.refused.push((slot, error.clone()));
            }
        }
        batch.order_draft_rows();
        Ok(())
    }

    /// Turns an error that concerns one sequence into the refusal of the sequence in `slot`.
    fn unless_refused(&mut self, slot: u32, result: Result<(), StepError>) -> Result<(), StepError> {
        match result {
            Err(error) if error.is_refusal() => {
                self.slot(slot)?.refused = Some(error);
                Ok(())
            }
            other => other,
        }
    }

    /// Notes the number of the adapter that is in a place of the pools from now on, or that the
    /// place is free.
    pub fn set_adapter(&mut self, place: usize, adapter: Option<u32>) {
        if let Some(held) = self.adapters.get_mut(place) {
            *held = adapter;
        }
    }

    fn adapter_place(&self, slot: u32, adapter: u32) -> Result<usize, StepError> {
        let place = self.adapters.iter().position(|held| *held == Some(adapter));
        place.ok_or(StepError::UnknownAdapter { slot, adapter })
    }

    /// Tells whether the sequence in this slot is refused.
    pub fn is_refused(&self, slot: usize) -> bool {
        self.slots[slot].refused.is_some()
    }

    /// Returns the rows of `batch` in the terms of the backend, with block tables that end with the
    /// row's last token.
    pub fn seq_rows<'a>(&'a self, batch: &'a Batch) -> impl Iterator<Item = SeqRow<'a>> {
        batch.rows.iter().map(|row| {
            let blocks = (row.start + row.count).div_ceil(self.limits.block_size);
            let &BatchRow { slot, start, count, decodes, .. } = row;
            let SequenceSlot { prefix, adapter, second_type_start, blocks: ref all, .. } = self.slots[slot];
            let blocks = &all[..blocks];
            let row = if decodes {
                SeqRow::decode(slot, start, blocks)
            } else {
                SeqRow::prefill(slot, start..start + count, blocks)
            };
            row.with_prefix(prefix).with_adapter(adapter).with_second_type_start(second_type_start)
        })
    }

    /// Returns the sampling inputs of `batch`, in the order of its outputs.
    pub fn sample_rows<'a>(&'a self, batch: &'a Batch) -> impl Iterator<Item = SampleRow<'a>> {
        batch.rows.iter().filter(|row| row.sample).flat_map(|row| {
            let slot = &self.slots[row.slot];
            // A draft counts as a token of the sequence for the places after it.
            (0..=row.drafts).rev().map(|later| SampleRow {
                params: &slot.sampling,
                tokens: &slot.tokens[..slot.tokens.len() - later],
                prompt_len: slot.prompt_len,
                allowed: (!slot.allowed.is_empty()).then_some(&slot.allowed),
            })
        })
    }

    /// Returns the prompt tokens to be scored after `batch`, in the order of its rows.
    pub fn scorings<'a>(&'a self, batch: &'a Batch) -> impl Iterator<Item = Scoring<'a>> {
        batch.rows().filter(|(_, row)| row.scored > 0).map(|(at, row)| {
            let BatchRow { slot, start, scored, top_n, .. } = *row;
            let tokens = &self.slots[slot].tokens[start + 1..][..scored];
            Scoring { slot, states: at..at + scored, tokens, top_n }
        })
    }

    /// Returns the rows of `batch` whose sequences are pooled, in their order.
    pub fn pooled<'a>(&'a self, batch: &'a Batch) -> impl Iterator<Item = PooledRow> + 'a {
        batch.rows().filter_map(|(at, row)| {
            let slot = &self.slots[row.slot];
            let &SequenceSlot { pooling, pooling_start, prompt_len, .. } = slot;
            let (start, end) = (row.start, row.start + row.count);
            let is_complete = end == prompt_len;
            let pooled = match pooling {
                Pooling::None => return None,
                Pooling::Last => prompt_len - 1..prompt_len,
                Pooling::First => pooling_start..pooling_start + 1,
                Pooling::Classes if self.averages() => 0..prompt_len,
                Pooling::Classes => 0..1,
                Pooling::Mean | Pooling::Max | Pooling::WeightedMean => pooling_start..prompt_len,
            };
            // The positions that are pooled and in this row.
            let positions = pooled.start.clamp(start, end)..pooled.end.clamp(start, end);
            let states = at + (positions.start - start)..at + (positions.end - start);
            // Pooling of the last state keeps nothing between rows.
            let begins = start == 0 || pooling == Pooling::Last;
            Some(PooledRow {
                slot: row.slot,
                pooling,
                begins,
                states,
                position: positions.start,
                is_complete,
            })
        })
    }

    /// Returns whether the classifier reads the mean of all states.
    fn averages(&self) -> bool {
        self.classifier.is_some_and(ClassifierKind::averages)
    }

    /// Returns the tokens of a sequence, and its sampling parameters.
    pub fn sequence(&self, slot: usize) -> (&[u32], &SamplingParams) {
        (&self.slots[slot].tokens, &self.slots[slot].sampling)
    }

    /// Reserves places for the tokens that `batch` samples.
    pub fn expect(&mut self, batch: &mut Batch) {
        for row in batch.rows.iter().filter(|row| row.sample) {
            let slot = &mut self.slots[row.slot];
            let known = slot.tokens.len() - row.drafts;
            for place in 0..=row.drafts {
                batch.expected.push(ExpectedToken {
                    slot: row.slot,
                    sequence: slot.sequences,
                    position: (!row.deferred).then_some(known + place),
                    draft: slot.tokens.get(known + place).copied(),
                    dropped: row.deferred,
                });
            }
            if !row.deferred {
                slot.tokens.push(UNKNOWN);
            }
        }
    }

    /// Stores the sampled tokens in the reserved places of sequences that still hold their slots.
    /// The tokens of deferred rows and the tokens after a wrong draft are dropped.
    pub fn fill(&mut self, batch: &mut Batch, sampled: &[Sampled]) {
        let mut rejected = None;
        for (place, sampled) in batch.expected.iter_mut().zip(sampled) {
            place.dropped |= rejected == Some(place.slot);
            let Some(position) = place.position.filter(|_| !place.dropped) else { continue };
            let is_wrong = place.draft.is_some_and(|draft| draft != sampled.token);
            rejected = is_wrong.then_some(place.slot);
            let slot = &mut self.slots[place.slot];
            if slot.sequences != place.sequence {
                continue;
            }
            slot.tokens[position] = sampled.token;
            if is_wrong {
                slot.tokens.truncate(position + 1);
            }
            if is_wrong || place.draft.is_none() {
                slot.drafts = 0;
            }
        }
    }

    fn slot(&mut self, slot: u32) -> Result<&mut SequenceSlot, StepError> {
        let slots = self.slots.len();
        self.slots.get_mut(slot as usize).ok_or(StepError::UnknownSlot { slot, slots })
    }

    fn taken(&mut self, slot: u32) -> Result<&mut SequenceSlot, StepError> {
        let place = self.slot(slot)?;
        if place.taken { Ok(place) } else { Err(StepError::FreeSlot { slot }) }
    }

    fn admit(&mut self, admission: &Admission) -> Result<(), StepError> {
        let Admission { slot, ref tokens, prompt_len, ref sampling, pooling, pooling_start, .. } = *admission;
        let (limits, vocab, classifies) = (self.limits, self.vocab, self.classifier.is_some());
        let has_second_type = self.has_second_type;
        let restore_state = admission.restore_state;
        let adapter = admission.adapter.map(|number| self.adapter_place(slot, number));
        let saved = restore_state.map(|id| self.saved_position(slot, id)).transpose()?;
        let prefix = self.prefix;
        let place = self.slot(slot)?;
        if place.taken {
            return Err(StepError::TakenSlot { slot });
        }
        // The sequence holds the slot even if it is refused below; it has no tokens then.
        place.taken = true;
        place.sequences += 1;
        place.covered = saved.unwrap_or(0);
        place.restored = restore_state.map(|id| id as usize);
        place.tokens.clear();
        place.drafts = 0;
        place.blocks.clear();
        place.refused = None;
        (place.awaits_mask, place.deferrals) = (false, 0);
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
        let adapter = adapter.transpose()?;
        let is_prompt = prompt_len as usize == tokens.len();
        let pooling = match Pooling::try_from(pooling) {
            Ok(Pooling::None) => Pooling::None,
            Ok(kind)
                if is_prompt && pooling_start < prompt_len && (kind != Pooling::Classes || classifies) =>
            {
                kind
            }
            _ => return Err(StepError::Pooling { slot, pooling, tokens: tokens.len(), prompt_len }),
        };
        let second_type_start = admission.second_type_start;
        let may_have_types = has_second_type && pooling != Pooling::None;
        if let Some(start) = second_type_start.filter(|&start| !may_have_types || start >= prompt_len) {
            return Err(StepError::TokenTypes { slot, start, prompt_len });
        }
        let sampling = sampling.as_ref().ok_or(StepError::NoSampling { slot })?;
        place.sampling = sampling::check(sampling, vocab).map_err(|of| {
            let (field, value) = (of.field, of.value);
            StepError::Sampling { slot, field, value }
        })?;
        place.tokens.extend_from_slice(tokens);
        place.prompt_len = prompt_len as usize;
        place.adapter = adapter;
        // Generated tokens that a sequence is admitted with are behind the prefix.
        place.prefix = prefix.map(|rule| rule.of(&tokens[..prompt_len as usize])).unwrap_or_default();
        (place.pooling, place.pooling_start) = (pooling, pooling_start as usize);
        place.second_type_start = second_type_start.map(|start| start as usize);
        Ok(())
    }

    /// Returns the position at which the states of a checkpoint were saved, with which the sequence
    /// in `slot` is to begin.
    fn saved_position(&self, slot: u32, id: u32) -> Result<usize, StepError> {
        let saved = self.checkpoints.get(id as usize).copied().flatten();
        saved.ok_or(StepError::EmptyCheckpoint { slot, checkpoint: id })
    }

    /// Notes the copies of states before and after a row at these positions.
    fn copy_states(&mut self, row: &Row, positions: Range<usize>, batch: &mut Batch) {
        let place_of = |checkpoint: usize| self.limits.max_sequences + checkpoint;
        let slot = row.slot as usize;
        let restored = row.restore_state.map(|id| id as usize);
        if let Some(checkpoint) = self.slots[slot].restored.take().or(restored) {
            batch.restored_states.push(StateCopy { from: place_of(checkpoint), to: slot });
        }
        if let Some(checkpoint) = row.keep_state.map(|id| id as usize) {
            batch.kept_states.push(StateCopy { from: slot, to: place_of(checkpoint) });
            self.checkpoints[checkpoint] = Some(positions.start);
        }
        if let Some(checkpoint) = row.save_state.map(|id| id as usize) {
            batch.saved_states.push(StateCopy { from: slot, to: place_of(checkpoint) });
            self.checkpoints[checkpoint] = Some(positions.end);
        }
    }

    fn row(&mut self, row: &Row, batch: &mut Batch) -> Result<(), StepError> {
        let Row { slot, ref new_blocks, sample, ref allowed, score, mask_follows, save_state, .. } = *row;
        if row.model_drafts > 0 && self.draft_reads.is_none() && self.kept_states.is_none() {
            return Err(StepError::NoDraftModel { slot: row.slot });
        }
        let checkpoints = self.checkpoints.len();
        let kept = row.restore_state.map(|id| self.saved_position(slot, id)).transpose()?;
        let count = row.count as usize;
        let (limits, steps, vocab) = (self.limits, self.steps, self.vocab);
        let (whole_prompts, in_order) = (self.prefix.is_some(), self.in_order);
        let place = self.taken(slot)?;
        if place.last_row == steps {
            return Err(StepError::SecondRow { slot });
        }
        place.last_row = steps;
        if place.refused.is_some() {
            return Ok(());
        }

        let start = place.start_of(row)?;
        place.check_positions(row, start, &limits)?;
        place.check_drafts(row, start, vocab, &limits)?;
        let drafts = row.draft_count();
        let count = count + drafts;
        if drafts > 0 && (whole_prompts || batch.drafts() + drafts > limits.max_drafts) {
            return Err(StepError::TooManyDrafts { limit: limits.max_drafts });
        }
        if in_order && (drafts > 0) != row.keep_state.is_some() {
            return Err(StepError::KeptStates { slot, drafts });
        }
        if count > limits.max_step_tokens - batch.tokens.len() {
            return Err(StepError::TooManyTokens { limit: limits.max_step_tokens });
        }
        let end = start + count;
        // Before the first row of a sequence it has no blocks.
        if whole_prompts && place.blocks.is_empty() && (start > 0 || end < place.prompt_len) {
            return Err(StepError::PartOfPrompt { slot, start, end, prompt_len: place.prompt_len });
        }
        let expected = kept.unwrap_or(place.covered);
        if in_order && (start != expected || expected > place.covered) {
            return Err(StepError::OutOfOrder { slot, start, expected });
        }
        place.check_blocks(slot, end, new_blocks, &limits)?;
        let is_choice = allowed.is_empty() || sample && is_mask(allowed, vocab);
        if !is_choice {
            return Err(StepError::Mask { slot, words: allowed.len(), vocab });
        }
        let written = [save_state, row.keep_state];
        if let Some(checkpoint) = written.into_iter().flatten().find(|&id| id as usize >= checkpoints) {
            return Err(StepError::UnknownCheckpoint { slot, checkpoint, checkpoints });
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
        place.awaits_mask = mask_follows;
        place.blocks.extend_from_slice(new_blocks);
        let drafts = self.draft(row, start, batch);
        let (count, end) = (row.count as usize + drafts, start + row.count as usize + drafts);
        let place = &mut self.slots[slot as usize];
        place.covered = end;
        place.drafts = drafts;
        let decodes = sample && count == 1 && start >= place.prompt_len;
        let (slot, deferred) = (slot as usize, false);
        let of_batch =
            BatchRow { slot, start, count, sample, decodes, drafts, mask_follows, deferred, scored, top_n };
        batch.push(of_batch, &place.tokens[start..end]);
        self.copy_states(row, start..end, batch);
        Ok(())
    }
}

impl SequenceSlot {
    /// Checks that the row's positions can be computed, and that the row may be sampled after.
    fn check_positions(&self, row: &Row, start: usize, limits: &ShardLimits) -> Result<(), StepError> {
        let Row { slot, sample, .. } = *row;
        let count = row.count as usize;
        if count == 0 {
            return Err(StepError::EmptyRow { slot });
        }
        let (end, known) = (start.saturating_add(count), self.tokens.len());
        if end > known || end > limits.max_sequence_tokens {
            let limit = known.min(limits.max_sequence_tokens);
            return Err(StepError::UnknownPositions { slot, start, end, limit });
        }
        if sample && end != known {
            return Err(StepError::SampleInside { slot, end, known });
        }
        if sample && self.pooling != Pooling::None {
            return Err(StepError::SamplePooled { slot });
        }
        Ok(())
    }

    /// Checks that the new blocks exist, and that the slot's blocks cover `end` tokens.
    fn check_blocks(
        &self,
        slot: u32,
        end: usize,
        new_blocks: &[u32],
        limits: &ShardLimits,
    ) -> Result<(), StepError> {
        if let Some(&block) = new_blocks.iter().find(|block| **block as usize >= limits.num_blocks) {
            return Err(StepError::UnknownBlock { slot, block, blocks: limits.num_blocks });
        }
        let (blocks, needed) = (self.blocks.len() + new_blocks.len(), end.div_ceil(limits.block_size));
        if blocks < needed || blocks > limits.table_blocks() {
            return Err(StepError::BlockCount { slot, blocks, needed, limit: limits.table_blocks() });
        }
        Ok(())
    }
}

#[cfg(test)]
mod draft_tests;
#[cfg(test)]
mod mask_tests;
#[cfg(test)]
mod tests;
