//! A shard that computes nothing: it answers each step with made-up tokens, immediately or after a
//! modelled time. It serves to measure the router alone, and to test how it divides its work into
//! steps.

mod step_log;
mod step_time;

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use millrace_model::memory_plan::usual_state_checkpoints;
use millrace_model::{DecoderSpec, Model};
use millrace_proto::{
    Masks, Pooled, Pooling, PromptToken, Ready, Row, RowMask, Sampled, Sampling, Scored, Step, StepOutput,
    TokenLogprob,
};

use crate::Error;
use crate::null::step_log::StepLog;
use crate::null::step_time::step_time;
use crate::options::{NullCosts, ShardOptions};
use crate::prompt_handling::prompt_handling;
use crate::state::StepError;
use crate::step_engine::{AwaitedMasks, ReadAdapter, StepEngine};

/// Describes `model` to the router without reading its weights.
///
/// The KV cache takes no memory, so that it has room for every sequence unless the options limit
/// it.
pub(crate) fn announcement(model: &Model, world_size: usize, options: &ShardOptions) -> Ready {
    let Model { spec, dtype, .. } = model;
    let ShardOptions { max_sequences, max_step_tokens, block_size, state_checkpoints, .. } = *options;
    let usual_checkpoints = usual_state_checkpoints(spec, max_sequences);
    let longest = options.max_total_tokens.unwrap_or(usize::MAX).min(spec.max_positions);
    let pool = options.max_batch_total_tokens.unwrap_or_else(|| longest.saturating_mul(max_sequences));
    let longest = longest.min(pool);
    Ready {
        model_type: spec.model_type.clone(),
        dtype: options.dtype.unwrap_or(*dtype).name().into(),
        kv_cache_dtype: options.kv_cache_dtype.unwrap_or((*dtype).into()).name().into(),
        device: "null".into(),
        world_size: clamped(world_size),
        parameters: spec.parameters() as u64,
        vocab_size: clamped(spec.vocab),
        hidden_size: clamped(spec.hidden),
        headless: spec.head.is_absent,
        prompt_handling: prompt_handling(spec).into(),
        classes: spec.head.classifier.map_or(0, |plan| plan.classes) as u32,
        second_token_type: spec.embedding.has_second_type(),
        max_positions: clamped(spec.max_positions),
        max_sequence_tokens: clamped(longest),
        block_size: clamped(block_size),
        num_blocks: clamped(pool.div_ceil(block_size.max(1))),
        max_sequences: clamped(max_sequences),
        max_step_tokens: clamped(max_step_tokens),
        state_checkpoints: clamped(state_checkpoints.unwrap_or(usize::MAX).min(usual_checkpoints)),
        adapters: clamped(options.adapters.places),
        max_loaded_adapters: clamped(options.adapters.max_loaded),
        ..Ready::default()
    }
}

fn clamped(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

/// An engine that makes up tokens. Each token is a function of its sequence's seed and its
/// position, like a sampled token, so that a restart does not change the tokens.
pub(crate) struct NullEngine {
    vocab: u32,
    hidden: usize,
    slots: Vec<NullSlot>,
    costs: NullCosts,
    log: Option<StepLog>,
    /// The last step and the time that it takes, if it waits for its masks.
    waiting: Option<(Step, Duration)>,
    /// The answer to the step that was submitted last.
    output: Option<StepOutput>,
}

impl StepEngine for NullEngine {
    fn steps_ahead(&self) -> usize {
        1
    }

    fn submit(&mut self, step: &Step) -> Result<(), Error> {
        let since = Instant::now();
        let modelled = step_time(&self.costs, step);
        if let Some(log) = &mut self.log {
            log.add(step, modelled).map_err(Error::StepLog)?;
        }
        if step.rows.iter().any(|row| row.mask_follows) {
            thread::sleep(modelled);
            self.waiting = Some((step.clone(), self.reported_time(modelled, since)));
            return Ok(());
        }
        let output = self.step(step, &[]).map_err(|source| Error::Step { id: step.id, source })?;
        thread::sleep(modelled.saturating_sub(since.elapsed()));
        self.output = Some(timed(output, self.reported_time(modelled, since)));
        Ok(())
    }

    fn awaited_masks(&mut self) -> Result<Option<AwaitedMasks>, Error> {
        Ok(self.waiting.as_ref().map(|(step, _)| AwaitedMasks { step: step.id, is_forward_done: true }))
    }

    fn add_masks(&mut self, masks: Option<&Masks>) -> Result<(), Error> {
        let (step, took) = self.waiting.take().ok_or(Error::OutOfPlace)?;
        let masks = masks.map_or(&[][..], |masks| &masks.rows);
        let output = self.step(&step, masks).map_err(|source| Error::Step { id: step.id, source })?;
        self.output = Some(timed(output, took));
        Ok(())
    }

    fn is_done(&mut self) -> Result<bool, Error> {
        Ok(self.output.is_some())
    }

    fn collect(&mut self) -> Result<StepOutput, Error> {
        self.output.take().ok_or(Error::OutOfPlace)
    }

    fn set_adapter(&mut self, _: usize, _: Option<ReadAdapter<'_>>) -> Result<(), Error> {
        Ok(())
    }
}

/// The parameters of an admitted sequence.
#[derive(Debug, Clone, Default)]
struct NullSlot {
    sampling: Sampling,
    prompt_len: u32,
    pooled: bool,
    /// Position of the next token to be sampled.
    next: u64,
}

impl NullEngine {
    /// Makes up tokens of the vocabulary of `spec`, and writes its steps to the file `log`.
    ///
    /// # Errors
    /// If the log cannot be opened.
    pub(crate) fn new(
        spec: &DecoderSpec,
        max_sequences: usize,
        costs: NullCosts,
        log: Option<&Path>,
    ) -> Result<Self, Error> {
        Ok(NullEngine {
            vocab: clamped(spec.vocab),
            hidden: spec.hidden,
            slots: vec![NullSlot::default(); max_sequences],
            costs,
            log: log.map(StepLog::open).transpose().map_err(Error::StepLog)?,
            waiting: None,
            output: None,
        })
    }

    /// Returns the time that the router learns for a step that began at `since`.
    ///
    /// The router learns the modelled time, even if the machine took longer to wake this thread, so
    /// that a test on a busy machine sees what a test on a quiet one sees.
    fn reported_time(&self, modelled: Duration, since: Instant) -> Duration {
        if self.costs == NullCosts::default() { since.elapsed() } else { modelled }
    }

    /// Makes up the answer to a step. `masks` are those that came after the step.
    fn step(&mut self, step: &Step, masks: &[RowMask]) -> Result<StepOutput, StepError> {
        let slots = self.slots.len();
        let unknown = |slot: u32| StepError::UnknownSlot { slot, slots };
        for admission in &step.admit {
            let slot = self.slots.get_mut(admission.slot as usize).ok_or(unknown(admission.slot))?;
            slot.sampling =
                admission.sampling.clone().ok_or(StepError::NoSampling { slot: admission.slot })?;
            slot.prompt_len = admission.prompt_len;
            slot.pooled = admission.pooling() != Pooling::None;
        }
        let mut sampled = Vec::with_capacity(step.rows.len());
        let (mut scored, mut pooled) = (Vec::new(), Vec::new());
        for row in &step.rows {
            let mask = masks.iter().find(|mask| mask.slot == row.slot);
            if row.mask_follows && mask.is_none() {
                continue;
            }
            let allowed = mask.map_or(&row.allowed, |mask| &mask.allowed);
            let slot = self.slots.get_mut(row.slot as usize).ok_or(unknown(row.slot))?;
            if !row.mask_follows {
                slot.next = u64::from(row.start) + u64::from(row.count);
            }
            let position = slot.next;
            slot.next += u64::from(row.sample);
            let NullSlot { sampling, prompt_len, pooled: is_pooled, .. } = &self.slots[row.slot as usize];
            scored.extend(row.score.map(|top_n| self.score(row, *prompt_len, top_n)));
            if *is_pooled && row.start + row.count == *prompt_len {
                pooled.push(Pooled { slot: row.slot, values: vec![1.0; self.hidden] });
            }
            if !row.sample {
                continue;
            }
            let token = |rank: u32| {
                let made_up = self.token(sampling.seed, position.wrapping_add(u64::from(rank) << 32));
                next_allowed(made_up, allowed)
            };
            let logprob = |rank: u32| -0.5 - rank as f32;
            let top = (0..sampling.top_n).map(|n| TokenLogprob { token: token(n), logprob: logprob(n) });
            sampled.push(Sampled {
                slot: row.slot,
                token: token(0),
                logprob: logprob(0),
                top: top.collect(),
            });
        }
        Ok(StepOutput { step: step.id, sampled, scored, pooled, ..StepOutput::default() })
    }

    /// Scores the prompt tokens of a row: all are equally likely.
    fn score(&self, row: &Row, prompt_len: u32, top_n: u32) -> Scored {
        let tokens = prompt_len.min(row.start + row.count + 1).saturating_sub(row.start + 1);
        let top =
            (0..top_n).map(|n| TokenLogprob { token: self.token(0, n.into()), logprob: -1.0 - n as f32 });
        let token = PromptToken { logprob: -0.5, rank: 1, top: top.collect() };
        Scored { slot: row.slot, tokens: vec![token; tokens as usize] }
    }

    /// Returns a token from the middle half of the vocabulary. Special tokens, such as the end of a
    /// text, are at either end.
    fn token(&self, seed: u64, position: u64) -> u32 {
        let mixed = (seed ^ position.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let half = (self.vocab / 2).max(1);
        // The high bits are mixed best.
        (self.vocab / 4 + ((mixed >> 32) % u64::from(half)) as u32).min(self.vocab.saturating_sub(1))
    }
}

/// Returns `output` as the answer to a step that took `took`.
fn timed(output: StepOutput, took: Duration) -> StepOutput {
    let micros = took.as_micros() as u64;
    StepOutput { step_micros: micros, forward_micros: micros, ..output }
}

/// Returns the first allowed token from `token` on, continuing at 0 after the last one. An empty
/// mask allows all tokens.
fn next_allowed(token: u32, allowed: &[u32]) -> u32 {
    let words = allowed.len() as u32;
    // The token's own word is searched twice: first from its bit on, and at the end as a whole.
    let candidates = (0..=words).map(|n| {
        let at = (token / 32 + n) % words.max(1);
        let from = if n == 0 && token / 32 < words { u32::MAX << (token % 32) } else { u32::MAX };
        (at, allowed.get(at as usize).copied().unwrap_or(0) & from)
    });
    let found =
        candidates.filter(|(_, word)| *word != 0).map(|(at, word)| 32 * at + word.trailing_zeros()).next();
    found.unwrap_or(token)
}

#[cfg(test)]
mod tests {
    use millrace_proto::{Admission, Row};

    use super::*;

    /// An engine with two slots.
    fn engine(costs: NullCosts) -> NullEngine {
        let slots = vec![NullSlot::default(); 2];
        NullEngine { vocab: 1000, hidden: 8, slots, costs, log: None, waiting: None, output: None }
    }

    fn tokens(seed: u64, starts: impl Iterator<Item = u32>) -> Vec<u32> {
        let mut engine = engine(NullCosts::default());
        let sampling = Some(Sampling { seed, ..Sampling::default() });
        engine
            .step(
                &Step {
                    admit: vec![Admission { slot: 1, sampling, ..Default::default() }],
                    ..Default::default()
                },
                &[],
            )
            .unwrap();
        let row = |start| Row { slot: 1, start, count: 1, sample: true, ..Default::default() };
        let mut step =
            |start| engine.step(&Step { rows: vec![row(start)], ..Default::default() }, &[]).unwrap();
        starts.map(|start| step(start).sampled[0].token).collect()
    }

    #[test]
    fn tokens_depend_on_seed_and_position_only() {
        let whole = tokens(7, 0..50);
        assert_eq!(tokens(7, 20..50), whole[20..]);
        assert_ne!(tokens(8, 0..50), whole);
        assert!(whole.iter().all(|token| (250..750).contains(token)), "{whole:?}");
    }

    #[test]
    fn made_up_tokens_are_allowed_by_the_mask() {
        assert_eq!(next_allowed(7, &[]), 7);
        assert_eq!(next_allowed(7, &[1 << 7]), 7);
        assert_eq!(next_allowed(7, &[1 << 9 | 1 << 3]), 9);
        assert_eq!(next_allowed(10, &[1 << 9 | 1 << 3]), 3);
        assert_eq!(next_allowed(40, &[1, 1]), 0);
        assert_eq!(next_allowed(40, &[2, 1 << 31]), 63);
        assert_eq!(next_allowed(900, &[0, 1 << 5]), 37);
    }

    #[test]
    fn unknown_slots_are_refused() {
        let mut engine = engine(NullCosts::default());
        let row = Row { slot: 2, count: 1, sample: true, ..Default::default() };
        let step = Step { rows: vec![row], ..Default::default() };
        assert_eq!(engine.step(&step, &[]), Err(StepError::UnknownSlot { slot: 2, slots: 2 }));
    }

    #[test]
    fn the_reported_time_is_the_modelled_one() {
        let token = Duration::from_micros(700);
        let mut engine = engine(NullCosts { token, ..NullCosts::default() });
        let row = Row { slot: 1, count: 3, ..Row::default() };
        let since = Instant::now();
        engine.submit(&Step { id: 5, rows: vec![row], ..Step::default() }).unwrap();
        assert!(since.elapsed() >= Duration::from_micros(2100));
        let output = engine.collect().unwrap();
        assert_eq!((output.step, output.step_micros, output.forward_micros), (5, 2100, 2100));
    }
}
