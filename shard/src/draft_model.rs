//! The draft model: a smaller model with the same tokens, whose guesses the model verifies.
//!
//! Before a step, the draft model reads what it has not read of the sequences that are to have
//! drafts, and guesses one token after the other (Leviathan et al., "Fast Inference from
//! Transformers via Speculative Decoding", 2023). It samples with the parameters and the random
//! numbers of the sequence, so its guess is the model's token wherever their distributions are
//! alike enough. Its keys and values are in a pool of its own, in blocks with the numbers of the
//! model's.
//!
//! A head that predicts further tokens (multi-token prediction) is a draft model of one layer,
//! which reads the model's states beside the tokens. It reads every sequence, because a state is
//! there only when the model has computed it.

use std::iter::Peekable;
use std::mem;
use std::time::{Duration, Instant};

use millrace_backend::{Backend, SampleRow, SampledRows, SamplingParams, SeqRow, StepInput};
use millrace_model::memory_plan::DraftRequest;
use millrace_model::{
    Count, DecoderSpec, MAX_DRAFT_READ, Model, QuantizeRequest, ShardLimits, StorageError, WeightSource,
    WeightStorage,
};
use millrace_numbers::DType;
use millrace_proto::PromptHandling;

use crate::Error;
use crate::decoder::{Decoder, Weights};
use crate::head_states::HeadStates;
use crate::prompt_handling::prompt_handling;
use crate::reused::emptied;
use crate::state::{Batch, DraftPassRow, SlotTable};

/// A draft model whose weights have not been loaded.
pub(crate) struct UnloadedDraft {
    /// The part of the memory plan.
    pub(crate) request: DraftRequest,
    /// Where its weights come from.
    pub(crate) source: Box<dyn WeightSource>,
}

impl UnloadedDraft {
    /// Checks that `draft` can guess for a model on `ranks` ranks, and chooses the formats of its
    /// weights.
    ///
    /// # Errors
    /// If it cannot. The text says why.
    pub(crate) fn new<B: Backend>(
        draft: Model,
        ranks: usize,
        dtype: Option<DType>,
        quantize: QuantizeRequest,
        backend: &B,
    ) -> Result<Self, Error> {
        draft.warnings.log(dtype);
        let spec = &draft.spec;
        let reason = match prompt_handling(spec) {
            _ if ranks > 1 => "is computed by one shard, not by several; use --num-shard 1",
            _ if spec.reads_states => "",
            _ if spec.head.is_absent => "generates no text",
            PromptHandling::Shared => "",
            PromptHandling::Unshared => "has recurrent layers, which cannot go back after a wrong guess",
            PromptHandling::Whole => "attends to the tokens after a token",
        };
        if !reason.is_empty() {
            let model_type = &spec.model_type;
            return Err(Error::Unsupported(format!("the draft model, of type {model_type}, {reason}")));
        }
        let dtype = dtype.unwrap_or(draft.dtype);
        let weights = match WeightStorage::choose(dtype, quantize, &draft, backend) {
            // The flag is about the model, whose checkpoint may be quantized otherwise.
            Err(StorageError::Quantize(_)) => {
                WeightStorage::choose(dtype, QuantizeRequest { layers: None, ..quantize }, &draft, backend)?
            }
            chosen => chosen?,
        };
        let Model { spec, weights: source, .. } = draft;
        Ok(UnloadedDraft { request: DraftRequest { spec, weights }, source })
    }

    /// Returns the draft model in words.
    pub(crate) fn describe(&self) -> String {
        let DraftRequest { spec, weights } = &self.request;
        let parameters = Count(spec.parameters());
        let format = weights.quantization().unwrap_or(weights.dtype.name());
        let what = if spec.reads_states { "the MTP head of " } else { "" };
        format!("{what}{}, {parameters} parameters, {format}", spec.model_type)
    }
}

/// A draft model without a KV pool.
pub(crate) struct LoadedDraft<B: Backend> {
    pub(crate) spec: DecoderSpec,
    pub(crate) weights: Weights<B>,
    /// The limits that it keeps to.
    pub(crate) limits: ShardLimits,
}

/// Number of tokens of the warm-up.
const WARM_UP_TOKENS: usize = 16;

/// How long a draft model takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DraftTimes {
    /// The time of a guess.
    pub(crate) guess: Duration,
    /// The time of each further token that is read before it.
    pub(crate) read: Duration,
}

/// A draft model on the device of the model.
pub(crate) struct DraftModel<B: Backend> {
    decoder: Decoder<B>,
    queue: B::Queue,
    limits: ShardLimits,
    /// The states that a head reads.
    states: Option<HeadStates<B>>,
    /// The guesses of a pass.
    guessed: SampledRows,
    tokens: Vec<u32>,
    outputs: Vec<u32>,
    /// Empty between calls. They are kept for their allocations.
    rows: Vec<SeqRow<'static>>,
    samples: Vec<SampleRow<'static>>,
}

impl<B: Backend> DraftModel<B> {
    /// Allocates the KV pool and the buffers.
    ///
    /// # Errors
    /// If the device has not enough memory.
    pub(crate) fn new(backend: &B, loaded: LoadedDraft<B>) -> Result<Self, Error> {
        let LoadedDraft { spec, weights, limits } = loaded;
        let reads_states = spec.reads_states.then_some((limits.max_sequences, spec.hidden));
        let states = reads_states.map(|(sequences, hidden)| HeadStates::new(backend, sequences, hidden));
        let decoder = Decoder::new(backend, spec, weights, &limits, None)?;
        let queue = decoder.queue(backend, &limits)?;
        Ok(DraftModel {
            decoder,
            queue,
            limits,
            states: states.transpose()?,
            guessed: SampledRows::with_capacity(limits.max_sequences),
            tokens: Vec::with_capacity(limits.max_step_tokens),
            outputs: Vec::with_capacity(limits.max_sequences),
            rows: Vec::with_capacity(limits.max_sequences),
            samples: Vec::with_capacity(limits.max_sequences),
        })
    }

    /// Has `slots` accept rows for which the draft model guesses tokens.
    pub(crate) fn accept_rows(&self, slots: &mut SlotTable) {
        match self.states {
            Some(_) => slots.accept_head_drafts(self.limits.max_sequence_tokens),
            None => slots.accept_model_drafts(self.limits.max_sequence_tokens, MAX_DRAFT_READ),
        }
    }

    /// Computes short sequences, so that the first request does not wait for cold caches. Returns
    /// the times of a guess and of each further token that is read before it.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn warm_up(&mut self, backend: &B) -> Result<DraftTimes, Error> {
        let ShardLimits { max_sequence_tokens, max_step_tokens, .. } = self.limits;
        let longest = WARM_UP_TOKENS.min(max_sequence_tokens).min(max_step_tokens);
        self.time(backend, longest)?;
        let (guess, long) = (self.time(backend, 1)?, self.time(backend, longest)?);
        let more = long.saturating_sub(guess) / (longest.saturating_sub(1)).max(1) as u32;
        // A head has read a sequence before it guesses.
        Ok(DraftTimes { guess, read: if self.states.is_some() { Duration::ZERO } else { more } })
    }

    /// Returns the time of a pass that reads `count` tokens and guesses the next one.
    fn time(&mut self, backend: &B, count: usize) -> Result<Duration, Error> {
        let since = Instant::now();
        let params = SamplingParams::default();
        let tokens = vec![0; count];
        let blocks: Vec<u32> = (0..count.div_ceil(self.limits.block_size) as u32).collect();
        let sample = SampleRow { params: &params, tokens: &tokens, prompt_len: count, allowed: None };
        let input = StepInput {
            tokens: &tokens,
            rows: &[SeqRow::prefill(0, 0..count, &blocks)],
            outputs: &[count as u32 - 1],
            samples: &[sample],
            ..StepInput::EMPTY
        };
        self.compute(backend, &input)?;
        self.guessed.drain_rows(|_| ());
        Ok(since.elapsed())
    }

    /// Computes a pass, and appends its guesses to `guessed`.
    fn compute(&mut self, backend: &B, input: &StepInput<'_>) -> Result<(), Error> {
        let DraftModel { decoder, queue, guessed, .. } = self;
        let open = decoder.compute(backend, queue, input)?;
        let computed = decoder.sample(backend, open, input.samples)?;
        let finished = backend.finish(computed)?;
        Ok(backend.collect(queue, finished, guessed)?)
    }

    /// Guesses the drafts of a step, and returns the time that this took. `model` has computed the
    /// step before.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn guess(
        &mut self,
        backend: &B,
        model: &Decoder<B>,
        slots: &mut SlotTable,
        batch: &mut Batch,
    ) -> Result<Duration, Error> {
        let since = Instant::now();
        for pass in 0..batch.draft_passes() {
            self.run_pass(backend, model, slots.draft_pass(batch, pass))?;
            let guessed = self.guessed.tokens().iter().map(|guess| guess.token);
            slots.set_drafts(batch, pass, guessed);
            self.guessed.drain_rows(|_| ());
        }
        Ok(since.elapsed())
    }

    /// Reads the states of a step of `model`, or keeps them, if this is a head that reads states.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn read_states(
        &mut self,
        backend: &B,
        model: &Decoder<B>,
        slots: &SlotTable,
        batch: &Batch,
    ) -> Result<(), Error> {
        self.run_pass(backend, model, slots.step_pass(batch))?;
        match &mut self.states {
            Some(states) => batch.step_states().iter().try_for_each(|row| states.keep(backend, model, row)),
            None => Ok(()),
        }
    }

    /// Computes a pass, in as many steps as its rows need.
    fn run_pass<'a>(
        &mut self,
        backend: &B,
        model: &Decoder<B>,
        rows: impl Iterator<Item = DraftPassRow<'a>>,
    ) -> Result<(), Error> {
        let mut rows = rows.peekable();
        while rows.peek().is_some() {
            self.run_step(backend, model, &mut rows)?;
        }
        Ok(())
    }

    /// Computes a step with as many of `rest` as it has room for.
    fn run_step<'a>(
        &mut self,
        backend: &B,
        model: &Decoder<B>,
        rest: &mut Peekable<impl Iterator<Item = DraftPassRow<'a>>>,
    ) -> Result<(), Error> {
        let mut rows = emptied(mem::take(&mut self.rows));
        let mut samples = emptied(mem::take(&mut self.samples));
        let (mut tokens, mut outputs) = (mem::take(&mut self.tokens), mem::take(&mut self.outputs));
        tokens.clear();
        outputs.clear();
        let vocab = self.decoder.spec().vocab;
        let most = self.limits.max_step_tokens;
        while let Some(of_row) =
            rest.next_if(|row| tokens.is_empty() || tokens.len() + row.tokens.len() <= most)
        {
            if let Some(states) = &self.states {
                let place = (of_row.row.slot, of_row.row.count);
                states.give(backend, &mut self.decoder, model, place, of_row.states, tokens.len())?;
            }
            // Checkpoints of one family may differ in the number of unused tokens at the end.
            tokens
                .extend(of_row.tokens.iter().map(|&token| if (token as usize) < vocab { token } else { 0 }));
            rows.push(of_row.row);
            if let Some(sample) = of_row.sample {
                outputs.push(tokens.len() as u32 - 1);
                samples.push(sample);
            }
        }
        let input = StepInput {
            tokens: &tokens,
            rows: &rows,
            outputs: &outputs,
            samples: &samples,
            ..StepInput::EMPTY
        };
        self.compute(backend, &input)?;
        if let Some(states) = &mut self.states {
            let mut end = 0;
            for row in &rows {
                end += row.count;
                states.keep_own(backend, &self.decoder, end - 1, row.slot)?;
            }
        }
        (self.rows, self.samples) = (emptied(rows), emptied(samples));
        (self.tokens, self.outputs) = (tokens, outputs);
        Ok(())
    }
}
