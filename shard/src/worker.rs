//! The engine of a shard with a model: checks steps, submits them to the decoder, and answers them.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::time::{Duration, Instant};

use millrace_backend::{
    Backend, ComputedStep, OpenStep, SampleRow, Sampled, SampledRows, ScoreRow, SeqRow, StepInput,
    UnmaskedStep,
};
use millrace_model::{Bytes, ShardLimits, WeightSource};
use millrace_proto::rules::MAX_ROW_ERROR;
use millrace_proto::{
    self as proto, Admission, Masks, PromptToken, Row, RowError, RowErrorKind, Sampling, Step, StepOutput,
    TokenLogprob,
};

use crate::Error;
use crate::classifier::Classifier;
use crate::decoder::Decoder;
use crate::disk_cache::{CopyResults, DiskCache};
use crate::draft_model::{DraftModel, DraftTimes};
use crate::pooling::PooledStates;
use crate::reused::emptied;
use crate::state::{Batch, Scoring, SlotTable, StepError};
use crate::step_engine::{AwaitedMasks, ReadAdapter, StepEngine};

/// Tokens of the warm-up: enough to read every weight as a prefill does, and few enough to take no
/// notable time.
const WARM_UP_TOKENS: usize = 16;

/// A decoder with the state of its sequences, and the steps that are not answered.
///
/// The steps are those of the device's queue ([`StepQueue`](millrace_backend::StepQueue)), each
/// beside the [`StepProgress`] that the queue does not know. In steady state a step allocates only
/// the parts of its messages and the lists of most likely tokens that the backend returns.
pub(crate) struct Worker<B: Backend> {
    queue: B::Queue,
    model: LoadedModel<B>,
    limits: ShardLimits,
    /// The source of weights that the device reads in each step.
    source: Option<Box<dyn WeightSource>>,
    /// The blocks on disk, if there is to be a disk cache.
    disk: Option<DiskCache>,
    /// The last step, if it waits for its masks. The device has no part in a step without tokens.
    waiting: Option<(StepProgress, Option<UnmaskedStep>)>,
    /// Steps that were submitted with their masks and not answered, oldest first.
    in_flight: VecDeque<(StepProgress, Option<B::FinishedStep>)>,
    /// Batches that are not in use.
    spare: Vec<Batch>,
    sampled: SampledRows,
    /// The time at which the last step was answered.
    answered: Instant,
}

/// A model on its device, with the sequences that it computes.
struct LoadedModel<B: Backend> {
    backend: B,
    decoder: Decoder<B>,
    slots: SlotTable,
    pooled: PooledStates,
    /// The model that guesses tokens, if there is one.
    draft_model: Option<DraftModel<B>>,
    /// Empty between calls. It is kept for its allocation, as is `sample_rows`.
    seq_rows: Vec<SeqRow<'static>>,
    sample_rows: Vec<SampleRow<'static>>,
}

/// The worker's part of a step that was submitted and not answered.
struct StepProgress {
    id: u64,
    batch: Batch,
    submitted: Instant,
    /// The host's time in the forward pass; zero if a recorded graph computes it.
    forward: Duration,
    /// The time of the draft model.
    drafting: Duration,
    scored: Vec<proto::Scored>,
    pooled: Vec<proto::Pooled>,
    copies: CopyResults,
}

impl<B: Backend> Worker<B> {
    /// Creates the engine. `source` is where the device reads weights in each step, if it does.
    ///
    /// # Errors
    /// If the device has not enough memory for the queue of steps.
    pub(crate) fn new(
        backend: B,
        decoder: Decoder<B>,
        limits: ShardLimits,
        source: Option<Box<dyn WeightSource>>,
        classifier: Option<Classifier>,
    ) -> Result<Self, Error> {
        let depth = backend.steps_ahead();
        let queue = decoder.queue(&backend, &limits)?;
        let model = LoadedModel {
            slots: SlotTable::new(limits, decoder.spec().vocab)
                .with_prefixes(decoder.spec().is_bidirectional().then_some(decoder.spec().prefix))
                .with_rows_in_order(decoder.spec().is_recurrent())
                .with_classifier(decoder.spec().head.classifier.map(|plan| plan.kind))
                .with_second_type(decoder.spec().embedding.has_second_type()),
            pooled: PooledStates::new(decoder.spec().hidden, limits.max_sequences, classifier),
            draft_model: None,
            backend,
            decoder,
            seq_rows: Vec::with_capacity(limits.max_sequences),
            sample_rows: Vec::with_capacity(limits.max_outputs()),
        };
        Ok(Worker {
            queue,
            model,
            limits,
            source,
            disk: None,
            waiting: None,
            in_flight: VecDeque::with_capacity(depth),
            spare: (0..depth).map(|_| Batch::new(&limits)).collect(),
            sampled: SampledRows::with_capacity(limits.max_outputs()),
            answered: Instant::now(),
        })
    }

    /// Opens a disk cache with `open`, and uses it from now on. Returns what `open` returns beside
    /// the cache.
    ///
    /// # Errors
    /// If `open` fails.
    pub(crate) fn open_disk<T>(
        &mut self,
        open: impl FnOnce(&B, &mut Decoder<B>) -> Result<(DiskCache, T), Error>,
    ) -> Result<T, Error> {
        let LoadedModel { backend, decoder, .. } = &mut self.model;
        let (disk, beside) = open(backend, decoder)?;
        self.disk = Some(disk);
        Ok(beside)
    }

    /// Has `draft_model` guess tokens from now on. Returns how long it takes.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn add_draft_model(&mut self, mut draft_model: DraftModel<B>) -> Result<DraftTimes, Error> {
        let LoadedModel { backend, slots, draft_model: place, .. } = &mut self.model;
        let times = draft_model.warm_up(backend)?;
        draft_model.accept_rows(slots);
        *place = Some(draft_model);
        Ok(times)
    }

    /// Does the copies of a step between the KV cache and the disk cache.
    fn copy_blocks(&mut self, step: &Step) -> Result<CopyResults, Error> {
        let Worker { model: LoadedModel { backend, decoder, .. }, disk, limits, .. } = self;
        match disk {
            Some(disk) => disk.copy(step, limits.num_blocks, backend, decoder),
            None => DiskCache::check_none(step, limits.num_blocks),
        }
    }

    /// Returns the backend.
    pub(crate) fn backend(&self) -> &B {
        &self.model.backend
    }

    /// Returns the limits that everything was allocated for.
    pub(crate) fn limits(&self) -> ShardLimits {
        self.limits
    }

    /// Computes a short sequence, so that the first request does not wait for cold caches and lazy
    /// allocations. Returns the number of its tokens.
    pub(crate) fn warm_up(&mut self) -> Result<usize, Error> {
        let ShardLimits { max_step_tokens, max_sequence_tokens, block_size, .. } = self.limits;
        let count = WARM_UP_TOKENS.min(max_step_tokens).min(max_sequence_tokens);
        let sampling = Sampling { repetition_penalty: 1.0, ..Sampling::default() };
        let (slot, start, sample) = (0, 0, true);
        let tokens = vec![0; count];
        let new_blocks = (0..count.div_ceil(block_size) as u32).collect();
        let warmed_up = count;
        let count = count as u32;
        let admit = vec![Admission {
            slot,
            tokens,
            prompt_len: count,
            sampling: Some(sampling),
            ..Admission::default()
        }];
        let rows = vec![Row { slot, start, count, new_blocks, sample, ..Row::default() }];
        for step in [Step { admit, rows, ..Step::default() }, Step { release: vec![slot], ..Step::default() }]
        {
            self.submit(&step)?;
            self.collect()?;
        }
        Ok(warmed_up)
    }

    /// Removes the tokens that a step has sampled, for its answer.
    fn take_sampled(&mut self, batch: &Batch) -> Vec<proto::Sampled> {
        let mut slots = batch.kept_tokens();
        let mut sampled = Vec::with_capacity(self.sampled.len());
        self.sampled.drain_rows(|tokens| {
            if let Some((slot, true)) = slots.next() {
                sampled.extend(tokens.map(|token| answer(slot, token)));
            }
        });
        sampled
    }

    /// Keeps a step that has all its masks until it is answered.
    fn keep(&mut self, mut progress: StepProgress, finished: Option<B::FinishedStep>) {
        self.model.slots.expect(&mut progress.batch);
        self.in_flight.push_back((progress, finished));
    }

    /// Records decode steps of these numbers of rows as graphs, if the device has graphs. A step
    /// uses the smallest graph that has enough rows. Sizes of 0 are ignored. Returns whether
    /// anything was recorded.
    pub(crate) fn record(&mut self, sizes: Option<&[usize]>) -> Result<bool, Error> {
        let most = self.limits.max_sequences.min(self.limits.max_step_tokens);
        let mut sizes = sizes.map_or_else(|| usual_sizes(most), <[usize]>::to_vec);
        sizes.retain(|size| (1..=most).contains(size));
        sizes.sort_unstable();
        sizes.dedup();
        let Worker { queue, model: LoadedModel { backend, decoder, .. }, .. } = self;
        let (since, free) = (Instant::now(), backend.free_bytes());
        for &rows in &sizes {
            if !decoder.record(backend, queue, rows)? {
                return Ok(false);
            }
        }
        let taken = free.zip(backend.free_bytes()).map(|(before, after)| before.saturating_sub(after));
        let taken = taken.map_or_else(|| "memory unknown".to_owned(), |bytes| Bytes(bytes).to_string());
        tracing::debug!(
            "recorded decode steps of {sizes:?} rows: {} ms, {taken}",
            since.elapsed().as_millis()
        );
        Ok(!sizes.is_empty())
    }
}

impl<B: Backend> LoadedModel<B> {
    /// Has the draft model guess the drafts of a step, if there are any. Returns its time.
    fn guess(&mut self, batch: &mut Batch) -> Result<Duration, Error> {
        let LoadedModel { backend, decoder, slots, draft_model, .. } = self;
        match draft_model {
            Some(draft_model) => draft_model.guess(backend, decoder, slots, batch),
            None => Ok(Duration::ZERO),
        }
    }

    /// Asks the device for the forward pass of a step.
    fn compute<'q>(
        &mut self,
        queue: &'q mut B::Queue,
        batch: &Batch,
    ) -> Result<OpenStep<'q, B::Queue>, Error> {
        let LoadedModel { backend, decoder, slots, .. } = self;
        let mut rows = emptied(mem::take(&mut self.seq_rows));
        rows.extend(slots.seq_rows(batch));
        let mut samples = emptied(mem::take(&mut self.sample_rows));
        samples.extend(slots.sample_rows(batch));
        let Batch { tokens, outputs, restored_states, kept_states, saved_states, .. } = batch;
        let input = StepInput {
            tokens,
            rows: &rows,
            outputs,
            samples: &samples,
            restored_states,
            kept_states,
            saved_states,
        };
        let step = decoder.compute(backend, queue, &input)?;
        (self.seq_rows, self.sample_rows) = (emptied(rows), emptied(samples));
        Ok(step)
    }

    /// Gives the device the masks of a step, which have come since the step began.
    fn set_masks<'q>(
        &mut self,
        queue: &'q mut B::Queue,
        step: UnmaskedStep,
        batch: &Batch,
    ) -> Result<OpenStep<'q, B::Queue>, Error> {
        let mut samples = emptied(mem::take(&mut self.sample_rows));
        samples.extend(self.slots.sample_rows(batch));
        let step = self.backend.set_masks(queue, step, &samples)?;
        self.sample_rows = emptied(samples);
        Ok(step)
    }

    /// Samples the rows of a step, computes what it answers about prompts, and ends it.
    fn complete(
        &mut self,
        step: OpenStep<'_, B::Queue>,
        progress: &mut StepProgress,
    ) -> Result<B::FinishedStep, Error> {
        let batch = &progress.batch;
        let mut samples = emptied(mem::take(&mut self.sample_rows));
        samples.extend(self.slots.sample_rows(batch));
        let mut step = self.decoder.sample(&self.backend, step, &samples)?;
        self.sample_rows = emptied(samples);
        // The states are there until the next step is submitted.
        progress.scored = self.score(&mut step, batch)?;
        progress.pooled = self.pool(batch)?;
        if let Some(draft_model) = &mut self.draft_model {
            draft_model.read_states(&self.backend, &self.decoder, &self.slots, batch)?;
        }
        // The step is done when the device has computed the scores too. Otherwise a rank that only
        // waits for its tokens would be ahead of one that still has to compute scores.
        Ok(self.backend.finish(step)?)
    }

    /// Scores the prompt tokens that the step asks for. Returns nothing on a rank that does not
    /// answer.
    fn score(
        &mut self,
        step: &mut ComputedStep<'_, B::Queue>,
        batch: &Batch,
    ) -> Result<Vec<proto::Scored>, Error> {
        let LoadedModel { backend, decoder, slots, .. } = self;
        let scorings = || slots.scorings(batch);
        let rows: Vec<ScoreRow> = scorings()
            .flat_map(|of| of.tokens.iter().map(move |&token| ScoreRow { token, top_n: of.top_n }))
            .collect();
        let mut scored = Vec::with_capacity(rows.len());
        decoder.score(backend, step, scorings().map(|of| of.states), &rows, &mut scored)?;
        let mut scored = scored.into_iter().map(|of| PromptToken {
            logprob: of.logprob,
            rank: of.rank,
            top: alternatives(of.top),
        });
        let of_row = |of: Scoring<'_>| proto::Scored {
            slot: of.slot as u32,
            tokens: scored.by_ref().take(of.tokens.len()).collect(),
        };
        Ok(scorings().map(of_row).collect())
    }

    /// Returns the vectors of the pooled prompts that the step completes; nothing on a rank that
    /// does not answer.
    fn pool(&mut self, batch: &Batch) -> Result<Vec<proto::Pooled>, Error> {
        let LoadedModel { backend, decoder, slots, pooled, .. } = self;
        if !decoder.samples() {
            return Ok(Vec::new());
        }
        let rows = || slots.pooled(batch);
        rows().filter(|row| row.begins).for_each(|row| pooled.begin(row.slot, row.pooling));
        let mut owners = rows().flat_map(|row| {
            (row.position..).take(row.states.len()).map(move |position| (row.slot, row.pooling, position))
        });
        decoder.for_states(backend, rows().map(|row| row.states), |state| {
            if let Some((slot, pooling, position)) = owners.next() {
                pooled.add(slot, pooling, position, state);
            }
        })?;
        let complete = rows().filter(|row| row.is_complete);
        let vectors = complete
            .map(|row| proto::Pooled { slot: row.slot as u32, values: pooled.vector(row.slot, row.pooling) });
        Ok(vectors.collect())
    }
}

/// Returns the default sizes of graphs. They are few, because a padding row costs little, and each
/// is not much larger than the one before.
fn usual_sizes(most: usize) -> Vec<usize> {
    [1, 2, 4].into_iter().chain((8..most).step_by(8)).chain([most]).collect()
}

impl<B: Backend> StepEngine for Worker<B> {
    fn steps_ahead(&self) -> usize {
        self.model.backend.steps_ahead()
    }

    fn submit(&mut self, step: &Step) -> Result<(), Error> {
        let submitted = Instant::now();
        let copies = self.copy_blocks(step)?;
        let Worker { queue, model, .. } = self;
        let mut batch = self.spare.pop().unwrap_or_else(|| Batch::new(&self.limits));
        let wrong = |source: StepError| Error::Step { id: step.id, source };
        model.slots.apply(step, &mut batch).map_err(wrong)?;
        for admission in &step.admit {
            let slot = admission.slot as usize;
            if model.slots.is_refused(slot) {
                continue;
            }
            let (tokens, params) = model.slots.sequence(slot);
            model.backend.admit(queue, slot, tokens, params)?;
        }
        let (forward, drafting, scored, pooled) = Default::default();
        let mut progress =
            StepProgress { id: step.id, batch, submitted, forward, drafting, scored, pooled, copies };
        let mut open = None;
        if !progress.batch.tokens.is_empty() {
            progress.drafting = model.guess(&mut progress.batch)?;
            let since = Instant::now();
            let step = model.compute(queue, &progress.batch)?;
            if !step.is_replayed() {
                progress.forward = since.elapsed();
            }
            open = Some(step);
        }
        if progress.batch.awaits_masks() {
            let unmasked = open.map(|step| model.backend.await_masks(step)).transpose()?;
            self.waiting = Some((progress, unmasked));
            return Ok(());
        }
        let finished = open.map(|step| model.complete(step, &mut progress)).transpose()?;
        self.keep(progress, finished);
        Ok(())
    }

    fn awaited_masks(&mut self) -> Result<Option<AwaitedMasks>, Error> {
        let Some((StepProgress { id, .. }, unmasked)) = &self.waiting else { return Ok(None) };
        let is_forward_done = match unmasked {
            Some(unmasked) => self.model.backend.is_forward_done(&self.queue, unmasked)?,
            None => true,
        };
        Ok(Some(AwaitedMasks { step: *id, is_forward_done }))
    }

    fn add_masks(&mut self, masks: Option<&Masks>) -> Result<(), Error> {
        let Worker { queue, model, .. } = self;
        let (mut progress, unmasked) = self.waiting.take().ok_or(Error::OutOfPlace)?;
        let (awaited, given) = (progress.id, masks.map_or(progress.id, |masks| masks.step));
        let wrong = |source: StepError| Error::Step { id: awaited, source };
        if given != awaited {
            return Err(wrong(StepError::OtherMasks { given, awaited }));
        }
        let rows = masks.map_or(&[][..], |masks| &masks.rows);
        model.slots.set_masks(rows, &mut progress.batch).map_err(wrong)?;
        let mut finished = None;
        if let Some(unmasked) = unmasked {
            let step = model.set_masks(queue, unmasked, &progress.batch)?;
            finished = Some(model.complete(step, &mut progress)?);
        }
        self.keep(progress, finished);
        Ok(())
    }

    fn is_done(&mut self) -> Result<bool, Error> {
        match self.in_flight.front() {
            Some((_, Some(step))) => Ok(self.model.backend.is_done(&self.queue, step)?),
            Some(_) => Ok(true),
            None => Ok(false),
        }
    }

    fn collect(&mut self) -> Result<StepOutput, Error> {
        let (progress, finished) = self.in_flight.pop_front().ok_or(Error::OutOfPlace)?;
        let StepProgress { id, mut batch, submitted, forward, drafting, scored, pooled, copies } = progress;
        if let Some(step) = finished {
            self.model.backend.collect(&mut self.queue, step, &mut self.sampled)?;
            self.model.decoder.check_ranks()?;
        }
        // A part of a file that could not be read counts as zeros, which would give wrong tokens.
        if let Some(source) = &self.source {
            source.check_readable()?;
        }
        self.model.slots.fill(&mut batch, self.sampled.tokens());
        let sampled = self.take_sampled(&batch);
        let refused = batch.refused().map(refusal).collect();
        let undrafted = batch.undrafted().to_vec();
        self.spare.push(batch);
        // A step that was submitted early starts when the one before it ends.
        let begun = submitted.max(self.answered);
        self.answered = Instant::now();
        let whole = self.answered - begun;
        // A device that runs ahead computes the forward pass and samples while the host does
        // something else.
        let forward = if self.model.backend.steps_ahead() > 1 { whole } else { forward };
        Ok(without_broken_rows(StepOutput {
            step: id,
            sampled,
            scored,
            pooled,
            errors: refused,
            step_micros: whole.as_micros() as u64,
            forward_micros: forward.as_micros() as u64,
            collective_micros: self.model.decoder.take_collective_time().as_micros() as u64,
            idle_micros: 0,
            failed_disk_reads: copies.failed_reads,
            failed_disk_writes: copies.failed_writes,
            disk_micros: copies.elapsed.as_micros() as u64,
            draft_micros: drafting.as_micros() as u64,
            undrafted,
        }))
    }

    fn set_adapter(&mut self, place: usize, adapter: Option<ReadAdapter<'_>>) -> Result<(), Error> {
        let LoadedModel { backend, decoder, slots, .. } = &mut self.model;
        slots.set_adapter(place, None);
        decoder.set_adapter(backend, place, adapter.map(|adapter| adapter.weights))?;
        slots.set_adapter(place, adapter.map(|adapter| adapter.number));
        Ok(())
    }
}

/// Returns the error of a row that was not computed because its sequence is refused.
fn refusal((slot, error): (usize, &StepError)) -> RowError {
    row_error(slot as u32, RowErrorKind::Refused, error.to_string())
}

fn row_error(slot: u32, kind: RowErrorKind, mut message: String) -> RowError {
    let end = (0..=MAX_ROW_ERROR.min(message.len())).rev().find(|&end| message.is_char_boundary(end));
    message.truncate(end.unwrap_or(0));
    RowError { slot, kind: kind.into(), message }
}

/// Replaces the results of rows with a value that is not finite by errors.
///
/// A NaN or an infinity among the logits makes the log-probability of the sampled or scored token a
/// NaN on every device. Only the rank that answers knows the values. All ranks continue with the
/// same tokens until the router releases the slot.
fn without_broken_rows(mut output: StepOutput) -> StepOutput {
    let sampled = output.sampled.iter().filter(|of| !of.logprob.is_finite()).map(|of| (of.slot, LOGITS));
    let is_broken = |of: &&proto::Scored| of.tokens.iter().any(|token| !token.logprob.is_finite());
    let scored = output.scored.iter().filter(is_broken).map(|of| (of.slot, LOGITS));
    let is_broken = |of: &&proto::Pooled| of.values.iter().any(|value| !value.is_finite());
    let pooled = output.pooled.iter().filter(is_broken).map(|of| (of.slot, STATES));
    let broken: BTreeMap<u32, &str> = sampled.chain(scored).chain(pooled).collect();
    if broken.is_empty() {
        return output;
    }
    output.sampled.retain(|of| !broken.contains_key(&of.slot));
    output.scored.retain(|of| !broken.contains_key(&of.slot));
    output.pooled.retain(|of| !broken.contains_key(&of.slot));
    let errors = broken.into_iter().map(|(slot, what)| row_error(slot, RowErrorKind::NotFinite, what.into()));
    output.errors.extend(errors);
    output
}

const LOGITS: &str = "the model produced logits that are not finite";
const STATES: &str = "the model produced states that are not finite";

fn answer(slot: usize, Sampled { token, logprob, top }: Sampled) -> proto::Sampled {
    proto::Sampled { slot: slot as u32, token, logprob, top: alternatives(top) }
}

fn alternatives(top: Vec<(u32, f32)>) -> Vec<TokenLogprob> {
    top.into_iter().map(|(token, logprob)| TokenLogprob { token, logprob }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_with_a_value_that_is_not_finite_has_an_error_and_nothing_else() {
        let sampled = |slot, logprob| proto::Sampled { slot, token: 1, logprob, top: Vec::new() };
        let token = |logprob| PromptToken { logprob, rank: 1, top: Vec::new() };
        let scored = |slot, last| proto::Scored { slot, tokens: vec![token(-1.0), token(last)] };
        let pooled = |slot, last| proto::Pooled { slot, values: vec![0.5, last] };
        let output = StepOutput {
            sampled: vec![
                sampled(0, -0.5),
                sampled(1, f32::NAN),
                sampled(2, -1.0),
                sampled(3, f32::NEG_INFINITY),
            ],
            scored: vec![scored(0, -2.0), scored(2, f32::NAN), scored(4, -1.0)],
            pooled: vec![pooled(5, 1.0), pooled(6, f32::INFINITY)],
            errors: vec![row_error(7, RowErrorKind::Refused, "é".repeat(100))],
            ..StepOutput::default()
        };
        let got = without_broken_rows(output);
        assert_eq!(got.sampled, [sampled(0, -0.5)]);
        assert_eq!(got.scored, [scored(0, -2.0), scored(4, -1.0)]);
        assert_eq!(got.pooled, [pooled(5, 1.0)]);
        let errors: Vec<_> = got.errors.iter().map(|error| (error.slot, error.kind())).collect();
        let broken = [1, 2, 3, 6].map(|slot| (slot, RowErrorKind::NotFinite));
        assert_eq!(errors, [&[(7, RowErrorKind::Refused)][..], &broken].concat());
        assert_eq!(got.errors[0].message.len(), MAX_ROW_ERROR);
    }
}
