//! A sequence that has a slot and blocks.

use millrace_proto::rules::mask_words;
use millrace_proto::{self as proto, Admission, Row};

use super::cache::{BlockHash, BlockTable, CheckpointId};
use super::cost_model::StepLoad;
use super::draft_source::{DraftSource, RowDrafts};
use super::frame_budget::{FrameBudget, RowBytes, RowContent};
use super::id::SlotId;
use super::in_flight::{FinalResult, RowInFlight};
use super::limits::SchedulerLimits;
use super::message_size;
use super::prompt_shares::PromptNeed;
use super::request::Pooling;
use super::sequence::Sequence;

/// A running sequence, and the row that is being planned for it.
#[derive(Debug)]
pub(super) struct RunningSequence {
    pub(super) sequence: Sequence,
    pub(super) slot: SlotId,
    pub(super) table: BlockTable,
    /// The step that admitted the sequence.
    pub(super) first_step: u64,
    /// The last step that had a row of the sequence.
    pub(super) last_step: u64,
    /// Whether the sequence has no row in the step being planned, because its tenant has others.
    pub(super) held: bool,
    /// Number of blocks of the table that have been sent to the shards.
    sent_blocks: usize,
    /// Number of tokens with which the sequence was admitted. They are computed as fast as the
    /// steps allow; later tokens wait for their turn, and perhaps for a mask.
    admitted_len: usize,
    /// Number of positions that were in the cache when the sequence was admitted.
    cached: usize,
    /// Number of positions that are in the cache when the planned steps have run.
    computed: usize,
    /// Number of tokens that the sequence runs in the step being planned.
    planned: usize,
    /// Number of positions that the draft model is taken to have read: those from the cache, and
    /// those before its last guesses.
    draft_read: usize,
    /// The drafts after these tokens.
    drafts: RowDrafts,
    /// The recurrent states with which the sequence begins.
    restored: Option<CheckpointId>,
    /// The positions at which its states are to be saved, in ascending order, until the answer to
    /// the row that ends there.
    save_positions: Vec<usize>,
    /// The checkpoint that the planned row saves.
    saves: Option<CheckpointId>,
    /// The checkpoint for the states before a row with drafts, once the sequence had one.
    kept: Option<CheckpointId>,
    /// Whether states have been kept in it.
    has_kept: bool,
    /// Whether the next row begins with the kept states, because a draft after them was wrong.
    rewound: bool,
}

impl RunningSequence {
    /// A sequence whose first `cached` positions are in its blocks already.
    pub(super) fn new(
        sequence: Sequence,
        slot: SlotId,
        table: BlockTable,
        cached: usize,
        first_step: u64,
    ) -> Self {
        RunningSequence {
            admitted_len: sequence.len(),
            sequence,
            slot,
            table,
            first_step,
            last_step: first_step,
            held: false,
            cached,
            computed: cached,
            sent_blocks: 0,
            planned: 0,
            draft_read: cached,
            drafts: RowDrafts::default(),
            restored: None,
            save_positions: Vec::new(),
            saves: None,
            kept: None,
            has_kept: false,
            rewound: false,
        }
    }

    /// Begins with the states of `restored`, and saves states at `positions`, in ascending order.
    pub(super) fn with_checkpoints(self, restored: Option<CheckpointId>, positions: Vec<usize>) -> Self {
        RunningSequence { restored, save_positions: positions, ..self }
    }

    /// The first position at which the states of the sequence are to be saved and have not been.
    pub(super) fn next_save(&self) -> Option<usize> {
        self.save_positions.first().copied()
    }

    /// Whether the planned row ends where the states are to be saved.
    pub(super) fn wants_checkpoint(&self) -> bool {
        self.planned > 0 && self.save_positions.contains(&(self.computed + self.planned))
    }

    /// Saves the states after the planned row in `checkpoint`, or not at all if there is none.
    pub(super) fn save_in(&mut self, checkpoint: Option<CheckpointId>) {
        if checkpoint.is_none() {
            self.end_save(self.computed + self.planned);
        }
        self.saves = checkpoint;
    }

    /// Notes that the row that ends at `position` has been answered.
    pub(super) fn end_save(&mut self, position: usize) {
        self.save_positions.retain(|&other| other != position);
    }

    /// The checkpoint in which states are kept before rows with drafts.
    pub(super) fn kept(&self) -> Option<CheckpointId> {
        self.kept
    }

    /// Keeps states in `checkpoint` before rows with drafts from now on.
    pub(super) fn keep_in(&mut self, checkpoint: CheckpointId) {
        self.kept = Some(checkpoint);
    }

    /// Whether the planned row is the first one before which states are kept.
    pub(super) fn is_first_keep(&self) -> bool {
        self.kept.is_some() && !self.has_kept && !self.drafts.is_empty()
    }

    /// Maximum number of tokens of the next row.
    fn most(&self) -> usize {
        let mut ahead = self.save_positions.iter().filter(|&&position| position > self.computed);
        ahead.next().map_or(usize::MAX, |position| position - self.computed)
    }

    /// The hashes of the full blocks of the tokens with which the sequence was admitted.
    pub(super) fn admitted_hashes(&self, limits: &SchedulerLimits) -> &[BlockHash] {
        let hashes = self.sequence.block_hashes.as_slice();
        &hashes[..hashes.len().min(self.admitted_len / limits.block_size)]
    }

    /// Whether a token was generated since the sequence was admitted. Before that, its prefill
    /// would be computed in vain if it left.
    pub(super) fn has_new_token(&self) -> bool {
        self.sequence.tokens.len() > self.admitted_len
    }

    /// Number of positions that were in the cache when the sequence was admitted.
    pub(super) fn cached(&self) -> usize {
        self.cached
    }

    pub(super) fn admission(&self) -> Admission {
        Admission {
            slot: self.slot.0,
            tokens: self.sequence.tokens.clone(),
            prompt_len: self.sequence.prompt_len as u32,
            sampling: Some(self.sequence.sampling.clone()),
            pooling: match self.sequence.pooling {
                None => proto::Pooling::None,
                Some(Pooling::Last) => proto::Pooling::Last,
                Some(Pooling::Mean) => proto::Pooling::Mean,
                Some(Pooling::First) => proto::Pooling::First,
                Some(Pooling::Classes) => proto::Pooling::Classes,
                Some(Pooling::Max) => proto::Pooling::Max,
                Some(Pooling::WeightedMean) => proto::Pooling::WeightedMean,
            }
            .into(),
            pooling_start: self.sequence.pooling_start,
            restore_state: self.restored.map(|checkpoint| checkpoint.0),
            adapter: self.sequence.adapter.map(|adapter| adapter.0),
            second_type_start: self.sequence.second_type_start,
        }
    }

    /// Number of tokens that can be run next: 1 for a sequence that decodes, more during prefill,
    /// and 0 for a sequence that waits for answers or for its mask.
    pub(super) fn remaining(&self) -> usize {
        let wanted = self.sequence.len().min(self.sequence.max_positions());
        if self.sequence.can_continue() { wanted - self.computed } else { 0 }
    }

    /// Minimum number of tokens of the next row: the prompt, if it cannot be divided and has not
    /// been computed.
    pub(super) fn least(&self, limits: &SchedulerLimits) -> usize {
        let whole = limits.needs_whole_prompts() && self.computed == 0;
        if whole { self.sequence.prompt_len } else { 1 }
    }

    /// The needs of the sequence in the next step.
    pub(super) fn prompt_need(&self, limits: &SchedulerLimits) -> PromptNeed {
        PromptNeed {
            remaining: self.remaining().min(self.most()),
            least: self.least(limits),
            tenant_tokens: 0,
        }
    }

    /// Whether the sequence has something to run and no row yet in the step being planned.
    pub(super) fn is_prefill(&self) -> bool {
        self.planned == 0 && !self.held && self.remaining() > 0
    }

    /// Whether the sequence has run its whole prompt and is to generate a token in each step. It
    /// may have to wait for answers or for its mask first.
    pub(super) fn is_decoding(&self) -> bool {
        let sequence = &self.sequence;
        sequence.max_new_tokens > 0
            && self.computed >= sequence.prompt_len
            && sequence.len() <= self.computed + 1
    }

    /// Adds the row of a sequence that decodes to a load.
    pub(super) fn add_decode(&self, load: &mut StepLoad) {
        load.add(self.computed, 1, true);
    }

    /// Adds the draft after so many others to a load.
    pub(super) fn add_draft(&self, others: usize, load: &mut StepLoad) {
        load.add(self.computed + 1 + others, 1, true);
    }

    /// Adds the positions to a load that are run again if the draft after so many others is the
    /// first wrong one.
    pub(super) fn add_rerun(&self, others: usize, load: &mut StepLoad) {
        load.add(self.computed, 1 + others, false);
    }

    /// The chance of a draft after the last token, if the sequence can have drafts. If the step
    /// `is_planned`, no other row of it may be in flight. `usual` is the chance of guesses of the
    /// draft model.
    pub(super) fn confidence(&self, is_planned: bool, usual: f64) -> Option<f64> {
        let is_known = !is_planned || self.sequence.len() == self.sequence.tokens.len();
        let source = self.sequence.draft_source.as_ref().filter(|_| is_known && self.most_drafts() > 0)?;
        source.confidence(&self.sequence.tokens, usual)
    }

    /// Number of tokens that the draft model has still to read, and the most tokens that may
    /// follow.
    pub(super) fn unread(&self) -> (usize, usize) {
        let unread = self.computed.saturating_sub(self.draft_read);
        (unread, self.sequence.max_positions().saturating_sub(self.computed))
    }

    /// Notes that the draft model has guessed behind `position`.
    pub(super) fn note_read(&mut self, position: usize) {
        self.draft_read = position;
    }

    /// Maximum number of drafts after the next token: the last token of the sequence is never run,
    /// and there may be fewer guesses.
    pub(super) fn most_drafts(&self) -> usize {
        let guesses = self.sequence.draft_source.as_ref().map_or(0, DraftSource::most_guesses);
        self.sequence.max_positions().saturating_sub(self.computed + 1).min(guesses)
    }

    /// Takes the bytes of `count` drafts of the planned row from the budget. Returns false if they
    /// do not fit.
    pub(super) fn take_draft_bytes(&self, count: usize, budget: &mut FrameBudget) -> bool {
        let answer = count * message_size::sampled_token(self.sequence.sampling.top_n as usize);
        budget.take(RowBytes { step: message_size::drafts(count), answer })
    }

    /// Adds `count` drafts to the planned row.
    pub(super) fn plan_drafts(&mut self, count: usize) {
        if let Some(source) = &self.sequence.draft_source {
            self.drafts = source.drafts(&self.sequence.tokens, count);
        }
    }

    /// Number of tokens that the planned row takes from the token budget of the step.
    pub(super) fn planned_tokens(&self) -> usize {
        self.planned
    }

    /// Number of positions that the block table must cover before `count` more tokens can be run.
    pub(super) fn positions_after(&self, count: usize) -> usize {
        self.computed + count
    }

    /// The properties that determine the size of a row of `count` tokens.
    fn content(&self, count: usize, limits: &SchedulerLimits) -> RowContent {
        let sequence = &self.sequence;
        let complete = self.computed + count == sequence.len();
        let samples = complete && sequence.max_new_tokens > 0;
        RowContent {
            mask_words: match samples {
                // Masks that follow are together no longer than a step.
                true if sequence.mask_follows() => mask_words(limits.vocab_size),
                true => sequence.allowed().len(),
                false => 0,
            },
            top_n: if samples { sequence.sampling.top_n as usize } else { 0 },
            scores: sequence.scores(&(self.computed..self.computed + count)).len(),
            score_top_n: sequence.prompt_logprobs.unwrap_or(0) as usize,
            features: if complete && sequence.pooling.is_some() { limits.max_vector_len } else { 0 },
        }
    }

    /// Plans up to `count` tokens, as many as fit the messages of the step, and takes their bytes
    /// from the budget. If the whole row does not fit, a row without the last token may fit,
    /// because only the last token can have a mask, alternatives or a vector. A prompt that cannot
    /// be divided is never planned in part.
    pub(super) fn plan(&mut self, count: usize, limits: &SchedulerLimits, budget: &mut FrameBudget) {
        self.planned = 0;
        let count = count.min(self.most());
        let content = self.content(count, limits);
        let scorable = budget.answer_left() / message_size::scored_token(content.score_top_n);
        let shorter = count.saturating_sub(1).min(if content.scores > 0 { scorable } else { count });
        for count in [count, shorter] {
            if count >= self.least(limits) && budget.take(self.content(count, limits).bytes()) {
                self.planned = count;
                return;
            }
        }
    }

    /// Returns the planned row and its expected results, if a row is planned. The row samples if it
    /// runs the last tokens of the sequence.
    pub(super) fn take_row(&mut self) -> Option<(Row, RowInFlight)> {
        let (start, count) = (self.computed, std::mem::take(&mut self.planned));
        if count == 0 {
            return None;
        }
        let scores = self.sequence.scores(&(start..start + count));
        let complete = start + count == self.sequence.len();
        let ends = complete && self.sequence.max_new_tokens == 0;
        let final_result =
            ends.then(|| self.sequence.pooling.map_or(FinalResult::Prompt, |_| FinalResult::Vector));
        let sample = complete && !ends;
        let allowed = if sample { self.sequence.allowed().to_vec() } else { Vec::new() };
        let mask_follows = sample && self.sequence.mask_follows();
        if sample {
            self.sequence.expect_token();
        }
        self.computed += count;
        let new_blocks = self.table.blocks[self.sent_blocks..].iter().map(|block| block.0).collect();
        self.sent_blocks = self.table.blocks.len();
        let score = self.sequence.prompt_logprobs.filter(|_| !scores.is_empty());
        let (sequence, slot, computed) = (self.sequence.id, self.slot, self.computed);
        let drafts = std::mem::take(&mut self.drafts);
        let saves = self.saves.take();
        let keeps = self.kept.filter(|_| !drafts.is_empty());
        self.has_kept |= keeps.is_some();
        let restores = self.kept.filter(|_| std::mem::take(&mut self.rewound));
        let row = Row {
            slot: slot.0,
            start: start as u32,
            count: count as u32,
            new_blocks,
            sample,
            allowed,
            score,
            mask_follows,
            save_state: saves.map(|checkpoint| checkpoint.0),
            drafts: drafts.tokens().to_vec(),
            model_drafts: drafts.of_model() as u32,
            keep_state: keeps.map(|checkpoint| checkpoint.0),
            restore_state: restores.map(|checkpoint| checkpoint.0),
        };
        let deferred = false;
        let in_flight = RowInFlight {
            sequence,
            slot,
            start,
            computed,
            samples: sample,
            drafts,
            mask_follows,
            deferred,
            scores,
            final_result,
            saves,
        };
        Some((row, in_flight))
    }

    /// Notes that so many drafts were right, so their positions are computed.
    pub(super) fn add_positions(&mut self, drafts: usize) {
        self.computed += drafts;
    }

    /// Goes back to the kept states, from before the row at `position`, because a draft of it was
    /// wrong. The next row runs its right drafts again.
    pub(super) fn rewind(&mut self, position: usize) {
        self.computed = position;
        self.rewound = true;
    }

    /// Takes back the position of a deferred row, which the next row computes again.
    pub(super) fn take_back_position(&mut self) {
        self.computed -= 1;
    }
}
