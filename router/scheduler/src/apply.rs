//! Applying the answer to a step.

use std::collections::HashMap;

use millrace_proto::{PromptToken, RowError, Sampled, StepOutput};

use super::draft_source::DraftSource;
use super::id::SeqId;
use super::in_flight::{FinalResult, MalformedAnswer, RowInFlight};
use super::output::{DraftCounts, RowFailure, SequenceEvent, SequenceOutput};
use super::request::Finish;
use super::sequence::{Accepted, Sequence};
use super::state::Scheduler;

/// The effect of a row of an answer on its sequence.
struct AppliedRow {
    /// Number of positions of the sequence that are computed now.
    computed: usize,
    /// `None` if the row has no token, or if the sequence has ended or was cancelled before the
    /// answer came.
    accepted: Option<Accepted>,
    /// Number of drafts that were right; `None` if the row has no token.
    right: Option<usize>,
}

impl Scheduler {
    /// Applies the answer to the oldest step in flight.
    ///
    /// # Errors
    /// [`MalformedAnswer`] if `output` is not such an answer. The scheduler has not changed then.
    pub fn apply(&mut self, output: StepOutput) -> Result<Vec<SequenceOutput>, MalformedAnswer> {
        let expected = self.in_flight.front().ok_or(MalformedAnswer::NoStepInFlight(output.step))?;
        expected.check(&output, self.limits.vocab_size)?;
        let Some(mut step) = self.in_flight.pop_front() else { return Ok(Vec::new()) };
        step.drop_drafts(&output.undrafted);
        self.apply_copies(&step, &output);
        let StepOutput { sampled, scored, pooled, errors, step_micros, .. } = output;
        let StepOutput { disk_micros, draft_micros, .. } = output;
        let has_read_more = !output.undrafted.is_empty();
        // The load of the step has drafts that were not run.
        if !step.rows.is_empty() && !has_read_more {
            self.costs.observe(&step.load, step_micros.saturating_sub(disk_micros + draft_micros));
        }
        let mut errors: HashMap<u32, RowError> =
            errors.into_iter().map(|error| (error.slot, error)).collect();
        let applied = self.accept_rows(step.step, &step.rows, &sampled, &errors);
        let right = applied.iter().map(|row| row.as_ref().and_then(|row| row.right));
        self.note_model_drafts(&step.rows, right, draft_micros, has_read_more);

        let mut outputs = Vec::with_capacity(sampled.len());
        let (mut sampled, mut scored, mut pooled) =
            (sampled.into_iter(), scored.into_iter(), pooled.into_iter());
        for (row, applied) in step.rows.iter().zip(applied) {
            let Some(applied) = applied else {
                let error = errors.remove(&row.slot.0);
                outputs.extend(error.and_then(|error| self.fail(row.sequence, error)));
                continue;
            };
            let scored = if row.scores.is_empty() { None } else { scored.next() };
            if scored.is_some() || row.final_result == Some(FinalResult::Prompt) {
                let tokens = scored.map_or_else(Vec::new, |scored| scored.tokens);
                outputs.extend(self.receive_prompt(row, tokens));
            }
            if row.final_result == Some(FinalResult::Vector) {
                let vector = pooled.next().map(|pooled| pooled.values);
                outputs.extend(vector.and_then(|values| self.receive_vector(row.sequence, values)));
            }
            let count = row.tokens_at_start(sampled.as_slice());
            let mut tokens = sampled.by_ref().take(count);
            if let Some(accepted) = applied.accepted {
                outputs.extend(self.report_tokens(row, &mut tokens, accepted));
            }
            // The tokens after the end of the sequence.
            tokens.for_each(drop);
            self.leave_quarantine(row.sequence, applied.computed);
        }
        Ok(outputs)
    }

    /// Accepts the tokens of all rows and publishes the blocks that they have computed. The result
    /// is `None` for a row with an error.
    ///
    /// This precedes everything else, because the failure of one row may make blocks of other rows
    /// impossible to find.
    fn accept_rows(
        &mut self,
        step: u64,
        rows: &[RowInFlight],
        sampled: &[Sampled],
        errors: &HashMap<u32, RowError>,
    ) -> Vec<Option<AppliedRow>> {
        let mut rest = sampled;
        let accept = |row: &RowInFlight| {
            if errors.contains_key(&row.slot.0) {
                row.saves.into_iter().for_each(|checkpoint| self.cache.give_back(checkpoint));
                return None;
            }
            let tokens = rest.split_off(..row.tokens_at_start(rest)).unwrap_or_default();
            Some(self.accept_row(step, row, tokens))
        };
        rows.iter().map(accept).collect()
    }

    /// Accepts the tokens of one row, if it has any, and publishes the blocks that the row has
    /// completed.
    fn accept_row(&mut self, step: u64, row: &RowInFlight, sampled: &[Sampled]) -> AppliedRow {
        let has_tokens = !sampled.is_empty();
        // A preempted sequence accepts tokens as well: they are valid wherever they were computed.
        let accepted = has_tokens.then(|| {
            let tokens = sampled.iter().map(|sampled| sampled.token);
            self.update(row.sequence, |sequence| sequence.accept(tokens))
        });
        let accepted = accepted.flatten();
        let tokens = accepted.map_or(0, |accepted| accepted.count);
        self.charge(row.sequence, tokens);
        let right = tokens.saturating_sub(1);
        self.drafted_tokens += row.drafts.len() as u64;
        self.accepted_drafts += right as u64;
        let rewinds = has_tokens && right < row.drafts.len() && self.limits.keeps_states();
        // A deferred row has computed its position, which the next row computes again.
        let computed = match rewinds {
            true => row.start,
            false => row.computed + right - usize::from(row.deferred),
        };
        if row.mask_follows && has_tokens {
            self.update(row.sequence, |sequence| sequence.note_mask_in_time());
        }
        if let Some(index) = self.position(row.sequence) {
            let running = &mut self.running[index];
            // A row from before a preemption was computed in other blocks. A wrong block in the
            // tree would harm every sequence that shares it.
            if running.first_step <= step {
                if row.drafts.of_model() > 0 {
                    running.note_read(row.computed);
                }
                match rewinds {
                    true => running.rewind(row.start),
                    false => running.add_positions(right),
                }
                let Sequence { block_hashes, tokens, .. } = &running.sequence;
                self.cache.publish(&mut running.table, block_hashes, tokens, computed);
            }
        }
        if let Some(checkpoint) = row.saves {
            self.note_saved(row.sequence, step, checkpoint, computed);
        }
        AppliedRow { computed, accepted, right: sampled.len().checked_sub(1) }
    }

    /// Notes which drafts of the draft model were right in the answer to a step. `right` has the
    /// number of right drafts of each row that has tokens. The draft model took `micros`
    /// microseconds, and if it `has_read_more`, not for guesses alone.
    fn note_model_drafts(
        &mut self,
        rows: &[RowInFlight],
        right: impl Iterator<Item = Option<usize>>,
        micros: u64,
        has_read_more: bool,
    ) {
        if !self.limits.has_draft_model {
            return;
        }
        let passes = rows.iter().map(|row| row.drafts.len()).max().unwrap_or(0);
        match passes {
            0 => self.model_drafts.fade(),
            _ if has_read_more || micros == 0 => {}
            _ => self.model_drafts.note_passes(passes, micros),
        }
        for (row, right) in rows.iter().zip(right) {
            let (count, Some(right)) = (row.drafts.len(), right) else { continue };
            self.model_drafts.note_drafts(count, right);
            let source = |source: &mut DraftSource| source.note_drafts(count, right);
            self.update(row.sequence, |sequence| sequence.draft_source.as_mut().map(source));
        }
    }

    /// Reports accepted tokens and removes the sequence if it has ended.
    fn report_tokens(
        &mut self,
        row: &RowInFlight,
        sampled: impl Iterator<Item = Sampled>,
        Accepted { count, finish }: Accepted,
    ) -> impl Iterator<Item = SequenceOutput> {
        let sequence = row.sequence;
        if finish.is_some() {
            self.cancel(sequence);
        }
        let (verified, accepted) = (row.drafts.len() as u32, count.saturating_sub(1) as u32);
        sampled.take(count).enumerate().map(move |(index, sampled)| SequenceOutput {
            sequence,
            event: SequenceEvent::Token(sampled),
            drafts: if index == 0 { DraftCounts { verified, accepted } } else { DraftCounts::default() },
            finish: finish.filter(|_| index + 1 == count),
        })
    }

    /// Reports the scores of a part of the prompt, or the end of a sequence that generates nothing.
    /// Scores that are known already, and scores of a sequence that has been cancelled, are
    /// ignored.
    fn receive_prompt(&mut self, row: &RowInFlight, mut tokens: Vec<PromptToken>) -> Option<SequenceOutput> {
        let known = self.update(row.sequence, |sequence| sequence.take_scores(&row.scores))?;
        tokens.drain(..known.min(tokens.len()));
        let finish = (row.final_result == Some(FinalResult::Prompt)).then_some(Finish::Length);
        if finish.is_some() {
            self.cancel(row.sequence);
        }
        let is_new = finish.is_some() || !tokens.is_empty();
        is_new.then_some(SequenceOutput {
            sequence: row.sequence,
            event: SequenceEvent::Prompt(tokens),
            drafts: DraftCounts::default(),
            finish,
        })
    }

    /// Reports the vector of a prompt, which ends its sequence.
    fn receive_vector(&mut self, id: SeqId, values: Vec<f32>) -> Option<SequenceOutput> {
        self.update(id, |_| ())?;
        self.cancel(id);
        let (event, finish) = (SequenceEvent::Vector(values), Some(Finish::Length));
        Some(SequenceOutput { sequence: id, event, drafts: DraftCounts::default(), finish })
    }

    /// Fails a sequence for which the shards have no result. A sequence that has ended meanwhile is
    /// ignored.
    fn fail(&mut self, id: SeqId, error: RowError) -> Option<SequenceOutput> {
        let failure = RowFailure::new(error);
        let sequence = self.get(id)?;
        if let (RowFailure::NotFinite(_), Some(&first)) = (&failure, sequence.block_hashes.as_slice().first())
        {
            // The keys and values of earlier positions may be wrong as well, and some of them may
            // come from the cache.
            self.cache.forget(first);
        }
        self.cancel(id);
        let (event, drafts) = (SequenceEvent::Failed(failure), DraftCounts::default());
        Some(SequenceOutput { sequence: id, event, drafts, finish: None })
    }
}
