//! One step after the other: check, compute, sample.

use std::mem;
use std::time::Instant;

use millrace_kernels::{Backend, SampleRow, Sampled, ScoreRow, SeqRow, StepInput};
use millrace_proto::{self as proto, Admission, PromptToken, Row, Sampling, Step, StepOutput, TokenLogprob};

use crate::decoder::Decoder;
use crate::pool::Sums;
use crate::state::{Batch, Scoring, SlotTable, StepError};
use crate::{Error, Limits};

/// Tokens of the warm-up: enough to touch every weight as a prefill does, few enough not to be noticed.
const WARM_UP_TOKENS: usize = 16;

/// A decoder with the state of its sequences. In steady state a step allocates only the parts of its messages, and what a
/// backend's sampler returns.
pub(crate) struct Worker<B: Backend> {
    backend: B,
    decoder: Decoder<B>,
    limits: Limits,
    slots: SlotTable,
    batch: Batch,
    sums: Sums,
    chosen: Vec<Sampled>,
    /// Empty between steps, but for their allocations.
    seq_rows: Vec<SeqRow<'static>>,
    sample_rows: Vec<SampleRow<'static>>,
}

impl<B: Backend> Worker<B> {
    pub(crate) fn new(backend: B, decoder: Decoder<B>, limits: Limits) -> Self {
        Worker {
            backend,
            slots: SlotTable::new(limits, decoder.spec().vocab),
            sums: Sums::new(decoder.spec().hidden, limits.max_sequences),
            decoder,
            limits,
            batch: Batch::new(&limits),
            chosen: Vec::with_capacity(limits.max_sequences),
            seq_rows: Vec::with_capacity(limits.max_sequences),
            sample_rows: Vec::with_capacity(limits.max_sequences),
        }
    }

    /// Computes a short sequence, so that the first request does not pay for cold caches and lazy allocations.
    pub(crate) fn warm_up(&mut self) -> Result<(), Error> {
        let Limits { max_step_tokens, max_sequence_tokens, block_size, .. } = self.limits;
        let count = WARM_UP_TOKENS.min(max_step_tokens).min(max_sequence_tokens);
        let sampling = Sampling { repetition_penalty: 1.0, ..Sampling::default() };
        let (slot, start, sample) = (0, 0, true);
        let tokens = vec![0; count];
        let new_blocks = (0..count.div_ceil(block_size) as u32).collect();
        let count = count as u32;
        let admit = vec![Admission { slot, tokens, prompt_len: count, sampling: Some(sampling), pooling: 0 }];
        let rows = vec![Row { slot, start, count, new_blocks, sample, ..Row::default() }];
        self.step(&Step { admit, rows, ..Step::default() })?;
        self.step(&Step { release: vec![slot], ..Step::default() })?;
        Ok(())
    }

    /// Runs one step and answers it.
    ///
    /// # Errors
    /// If the step is malformed or the device fails; the worker is then of no further use.
    pub(crate) fn step(&mut self, step: &Step) -> Result<StepOutput, Error> {
        let received = Instant::now();
        let wrong = |source: StepError| Error::Step { id: step.id, source };
        self.slots.apply(step, &mut self.batch).map_err(wrong)?;

        let forward = Instant::now();
        if !self.batch.tokens.is_empty() {
            let mut rows = emptied(mem::take(&mut self.seq_rows));
            rows.extend(self.slots.seq_rows(&self.batch));
            let Batch { tokens, outputs, .. } = &self.batch;
            self.decoder.forward(&self.backend, &StepInput { tokens, rows: &rows, outputs })?;
            self.seq_rows = emptied(rows);
        }
        let forward_micros = forward.elapsed().as_micros() as u64;

        self.chosen.clear();
        if !self.batch.outputs.is_empty() {
            let mut rows = emptied(mem::take(&mut self.sample_rows));
            rows.extend(self.slots.sample_rows(&self.batch));
            self.decoder.sample(&self.backend, &rows, &mut self.chosen)?;
            self.sample_rows = emptied(rows);
        }
        self.slots.append(&self.batch, &self.chosen);

        let scored = self.score()?;
        let pooled = self.pool()?;
        let sampled = self.batch.sampling_slots().zip(self.chosen.drain(..)).map(answer).collect();
        let step_micros = received.elapsed().as_micros() as u64;
        let collective_micros = self.decoder.take_collective_time().as_micros() as u64;
        Ok(StepOutput {
            step: step.id,
            sampled,
            scored,
            pooled,
            step_micros,
            forward_micros,
            collective_micros,
            idle_micros: 0,
        })
    }

    /// What the model makes of the tokens of prompts that the step asks for; nothing on a rank that does not answer.
    fn score(&mut self) -> Result<Vec<proto::Scored>, Error> {
        let scorings = || self.slots.scorings(&self.batch);
        let rows: Vec<ScoreRow> = scorings()
            .flat_map(|of| of.tokens.iter().map(move |&token| ScoreRow { token, top_n: of.top_n }))
            .collect();
        let mut scored = Vec::with_capacity(rows.len());
        self.decoder.score(&self.backend, scorings().map(|of| of.states), &rows, &mut scored)?;
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

    /// The vectors of the prompts that the step has completed; nothing on a rank that does not answer.
    fn pool(&mut self) -> Result<Vec<proto::Pooled>, Error> {
        if !self.decoder.speaks() {
            return Ok(Vec::new());
        }
        let Worker { backend, decoder, slots, batch, sums, .. } = self;
        let rows = || slots.pooled(batch);
        rows().filter(|row| row.begins).for_each(|row| sums.begin(row.slot));
        let mut owners = rows().flat_map(|row| std::iter::repeat_n(row.slot, row.states.len()));
        decoder.for_states(backend, rows().map(|row| row.states), |state| {
            if let Some(slot) = owners.next() {
                sums.add(slot, state);
            }
        })?;
        let complete = rows().filter_map(|row| Some((row.slot, row.complete?)));
        let pooled =
            complete.map(|(slot, count)| proto::Pooled { slot: slot as u32, values: sums.mean(slot, count) });
        Ok(pooled.collect())
    }
}

fn answer((slot, Sampled { token, logprob, top }): (usize, Sampled)) -> proto::Sampled {
    proto::Sampled { slot: slot as u32, token, logprob, top: alternatives(top) }
}

fn alternatives(top: Vec<(u32, f32)>) -> Vec<TokenLogprob> {
    top.into_iter().map(|(token, logprob)| TokenLogprob { token, logprob }).collect()
}

/// The allocation of `used`, for elements that differ only in what they borrow. (Collecting a vector's own iterator
/// happens in place.)
fn emptied<A, B>(mut used: Vec<A>) -> Vec<B> {
    used.clear();
    used.into_iter().map(|_| -> B { unreachable!("the vector was cleared") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emptied_vector_keeps_its_allocation() {
        let used: Vec<SeqRow<'_>> = Vec::with_capacity(7);
        let (at, capacity) = (used.as_ptr().addr(), used.capacity());
        let reused: Vec<SeqRow<'static>> = emptied(used);
        assert_eq!((reused.as_ptr().addr(), reused.capacity()), (at, capacity));
    }
}
