//! Drafts: which rows may have some, and those that the draft model guesses.

use std::ops::Range;

use millrace_backend::{SampleRow, SeqRow};
use millrace_model::ShardLimits;
use millrace_proto::{Pooling, Row};

use super::batch::{Batch, DraftPassRow, DraftRow, PassStates, StepStates};
use super::draft_reads::DraftReads;
use super::kept_states::{KeptStates, RowStates};
use super::{SequenceSlot, SlotTable, StepError, UNKNOWN};

impl SlotTable {
    /// Accepts rows for which a draft model of `positions` positions guesses tokens, from now on.
    /// It reads up to `most` tokens of all sequences in a step before it guesses, beside one for
    /// each.
    pub fn accept_model_drafts(&mut self, positions: usize, most: usize) {
        self.draft_reads = Some(DraftReads::new(&self.limits, positions, most));
    }

    /// Accepts rows for which a head of `positions` positions guesses tokens, from now on. It reads
    /// the states of the model.
    pub fn accept_head_drafts(&mut self, positions: usize) {
        self.kept_states = Some(KeptStates::new(&self.limits, positions));
    }

    /// Adds the drafts of a row that begins at `start` to its sequence, and returns their number.
    /// Those of the draft model have no values yet.
    pub(super) fn draft(&mut self, row: &Row, start: usize, batch: &mut Batch) -> usize {
        let SlotTable { slots, draft_reads, .. } = self;
        let (slot, drafts) = (row.slot as usize, row.model_drafts as usize);
        let SequenceSlot { tokens, blocks, .. } = &mut slots[slot];
        tokens.extend_from_slice(&row.drafts);
        if self.kept_states.is_some() {
            return self.draft_by_head(row, start, batch);
        }
        let Some(reads) = draft_reads else { return row.drafts.len() };
        reads.replace_from(start, blocks);
        if drafts == 0 {
            return row.drafts.len();
        }
        let end = start + row.count as usize;
        let read = reads.read(end, drafts, blocks);
        let drafts = read.as_ref().map_or(0, |read| if read.end == end { drafts } else { 0 });
        if drafts == 0 {
            batch.undrafted.push(row.slot);
        }
        let at = batch.tokens.len() + row.count as usize;
        batch.draft_rows.extend(read.map(|read| DraftRow { slot, from: 0, read, drafts, ahead: 0, at }));
        tokens.extend(std::iter::repeat_n(0, drafts));
        drafts
    }

    /// The same with a head that reads states.
    fn draft_by_head(&mut self, row: &Row, start: usize, batch: &mut Batch) -> usize {
        let SlotTable { slots, kept_states, .. } = self;
        let slot = row.slot as usize;
        let SequenceSlot { tokens, blocks, pooling, .. } = &mut slots[slot];
        let Some(kept) = kept_states.as_mut().filter(|_| *pooling == Pooling::None) else { return 0 };
        let mut drafts = row.model_drafts as usize;
        if drafts > 0 && !kept.can_guess(slot, start, drafts) {
            batch.undrafted.push(row.slot);
            drafts = 0;
        }
        tokens.extend(std::iter::repeat_n(0, drafts));
        let count = row.count as usize + row.drafts.len() + drafts;
        let positions = start..start + count;
        let RowStates { from, before, with_step, kept } =
            kept.note_row(slot, positions.clone(), row.drafts.len() + drafts, blocks);
        let first = batch.tokens.len();
        if !before.is_empty() {
            let at = first + row.count as usize;
            batch.draft_rows.push(DraftRow { slot, from, read: before, drafts, ahead: 1, at });
        }
        batch.step_states.push(StepStates { slot, at: first, positions, from, read: with_step, kept });
        row.drafts.len() + drafts
    }

    /// Returns the rows of the step that a head reads with the step.
    pub fn step_pass<'a>(&'a self, batch: &'a Batch) -> impl Iterator<Item = DraftPassRow<'a>> {
        batch.step_states.iter().filter(|row| !row.read.is_empty()).map(|row| {
            let StepStates { slot, at, ref positions, from, ref read, .. } = *row;
            let SequenceSlot { tokens, blocks, .. } = &self.slots[slot];
            let states = PassStates::OfStep(at + read.start - positions.start);
            let tokens = &tokens[read.start + 1..read.end + 1];
            let row = self.row_from(from, slot, read.clone(), blocks);
            DraftPassRow { row, states, tokens, sample: None }
        })
    }

    /// Returns the part of a pass of the draft model that each row of `batch` has, in the order of
    /// the rows of the pass. In the first pass the draft model reads what it has not read and
    /// guesses a token, in each later one it reads its last guess and guesses the next token.
    pub fn draft_pass<'a>(&'a self, batch: &'a Batch, pass: usize) -> impl Iterator<Item = DraftPassRow<'a>> {
        batch.draft_rows.iter().filter(move |row| pass == 0 || row.drafts > pass).map(move |row| {
            let DraftRow { slot, from, ref read, drafts, ahead, .. } = *row;
            let SequenceSlot { tokens, blocks, sampling, prompt_len, .. } = &self.slots[slot];
            let read = if pass == 0 { read.clone() } else { read.end + pass - 1..read.end + pass };
            let mut row = self.row_from(from, slot, read.clone(), blocks);
            if drafts > 0 && read.len() == 1 {
                row = SeqRow::decode(slot, row.start, row.blocks);
            }
            let known = &tokens[..read.end + ahead];
            let sample =
                SampleRow { params: sampling, tokens: known, prompt_len: *prompt_len, allowed: None };
            let states = if pass == 0 { PassStates::Kept(read.start) } else { PassStates::Own };
            let tokens = &tokens[read.start + ahead..read.end + ahead];
            DraftPassRow { row, states, tokens, sample: (drafts > 0).then_some(sample) }
        })
    }

    /// Returns the row of these positions of a sequence with these blocks, as if the sequence began
    /// at position `from`, with which a block begins.
    fn row_from<'a>(&self, from: usize, slot: usize, read: Range<usize>, blocks: &'a [u32]) -> SeqRow<'a> {
        let block_size = self.limits.block_size;
        let blocks = &blocks[from / block_size..read.end.div_ceil(block_size)];
        SeqRow::prefill(slot, read.start - from..read.end - from, blocks)
    }

    /// Sets the tokens that a pass of the draft model has guessed, in the order of its rows with a
    /// guess. A guess that is no token of the model becomes a wrong one.
    pub fn set_drafts(&mut self, batch: &mut Batch, pass: usize, guessed: impl Iterator<Item = u32>) {
        let Batch { draft_rows, tokens, .. } = batch;
        for (row, guess) in draft_rows.iter().filter(|row| row.drafts > pass).zip(guessed) {
            let token = if (guess as usize) < self.vocab { guess } else { 0 };
            self.slots[row.slot].tokens[row.read.end + row.ahead + pass] = token;
            tokens[row.at + pass] = token;
        }
    }
}

impl SequenceSlot {
    /// Checks that the row may have its drafts, and that no drafts of the sequence are in flight.
    pub(super) fn check_drafts(
        &self,
        row: &Row,
        start: usize,
        vocab: usize,
        limits: &ShardLimits,
    ) -> Result<(), StepError> {
        let Row { slot, ref drafts, model_drafts, .. } = *row;
        if self.drafts > 0 {
            return Err(StepError::UnverifiedDrafts { slot });
        }
        let count = row.draft_count();
        if count == 0 {
            return Ok(());
        }
        let is_decode = row.sample && row.count == 1 && start >= self.prompt_len;
        let is_free = row.allowed.is_empty() && !row.mask_follows;
        let fits = start.saturating_add(1 + count) <= limits.max_sequence_tokens;
        let has_source = drafts.is_empty() || model_drafts == 0;
        let is_known = self.tokens.last() != Some(&UNKNOWN);
        let are_tokens = drafts.iter().all(|&draft| (draft as usize) < vocab);
        if is_decode && is_free && fits && is_known && are_tokens && has_source {
            Ok(())
        } else {
            Err(StepError::Drafts { slot, start, drafts: count })
        }
    }
}
