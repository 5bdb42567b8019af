//! A shard that computes nothing: it answers each step with made-up tokens, at once or after a fixed time. What is left
//! to measure is the router.

use std::thread;
use std::time::{Duration, Instant};

use millrace_proto::{
    Pooled, Pooling, PromptToken, Ready, Row, Sampled, Sampling, Scored, Step, StepOutput, TokenLogprob,
    from_shard,
};

use crate::Error;
use crate::connection::Router;
use crate::model::Model;
use crate::options::ShardOptions;
use crate::serve::answer;
use crate::state::StepError;

/// Announces the model of `open` without reading its weights, and answers each step after `pace`. The KV cache takes no memory, so it has
/// room for every sequence unless the options say less.
///
/// # Errors
/// If the configuration cannot be read, a step names slots that there are not, or the router goes away.
pub(crate) fn serve(
    router: &Router,
    options: &ShardOptions,
    pace: Duration,
    open: impl FnOnce() -> Result<Model, Error>,
) -> Result<(), Error> {
    let Model { spec, dtype, .. } = open()?;
    let ShardOptions { max_sequences, max_step_tokens, block_size, .. } = *options;
    let longest = options.max_total_tokens.unwrap_or(usize::MAX).min(spec.max_positions);
    let pool = options.max_batch_total_tokens.unwrap_or_else(|| longest.saturating_mul(max_sequences));
    let longest = longest.min(pool);
    let size = |size: usize| u32::try_from(size).unwrap_or(u32::MAX);
    let ready = Ready {
        model_type: spec.model_type.clone(),
        dtype: options.dtype.unwrap_or(dtype).name().into(),
        kv_cache_dtype: options.kv_cache_dtype.unwrap_or(dtype).name().into(),
        device: "null".into(),
        world_size: size(options.world_size),
        parameters: spec.parameters() as u64,
        vocab_size: size(spec.vocab),
        hidden_size: size(spec.hidden),
        max_sequence_tokens: size(longest),
        block_size: size(block_size),
        num_blocks: size(pool.div_ceil(block_size.max(1))),
        max_sequences: size(max_sequences),
        max_step_tokens: size(max_step_tokens),
        ..Ready::default()
    };
    router.send(from_shard::Message::Ready(ready))?;
    let slots = vec![Slot::default(); max_sequences];
    let mut made_up = MadeUp { vocab: size(spec.vocab), hidden: spec.hidden, slots, pace };
    answer(router, options.rank, |step| {
        made_up.step(step).map_err(|source| Error::Step { id: step.id, source })
    })
}

/// Makes tokens up. Each is a function of its sequence's seed and its position, as a sampled token would be, so that a
/// restart does not change them.
struct MadeUp {
    vocab: u32,
    hidden: usize,
    slots: Vec<Slot>,
    /// Time that a step takes.
    pace: Duration,
}

#[derive(Debug, Clone, Default)]
struct Slot {
    sampling: Sampling,
    prompt_len: u32,
    pooled: bool,
}

impl MadeUp {
    fn step(&mut self, step: &Step) -> Result<StepOutput, StepError> {
        let since = Instant::now();
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
            let Slot { sampling, prompt_len, pooled: is_pooled } =
                self.slots.get(row.slot as usize).ok_or(unknown(row.slot))?;
            scored.extend(row.score.map(|top_n| self.score(row, *prompt_len, top_n)));
            if *is_pooled && row.start + row.count == *prompt_len {
                pooled.push(Pooled { slot: row.slot, values: vec![1.0; self.hidden] });
            }
            if !row.sample {
                continue;
            }
            let position = u64::from(row.start) + u64::from(row.count);
            let token = |rank: u32| {
                let made_up = self.token(sampling.seed, position.wrapping_add(u64::from(rank) << 32));
                nearest(made_up, &row.allowed)
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
        thread::sleep(self.pace.saturating_sub(since.elapsed()));
        let step_micros = since.elapsed().as_micros() as u64;
        Ok(StepOutput { step: step.id, sampled, scored, pooled, step_micros, ..StepOutput::default() })
    }

    /// Every token of a prompt is as likely as the next.
    fn score(&self, row: &Row, prompt_len: u32, top_n: u32) -> Scored {
        let tokens = prompt_len.min(row.start + row.count + 1).saturating_sub(row.start + 1);
        let top =
            (0..top_n).map(|n| TokenLogprob { token: self.token(0, n.into()), logprob: -1.0 - n as f32 });
        let token = PromptToken { logprob: -0.5, rank: 1, top: top.collect() };
        Scored { slot: row.slot, tokens: vec![token; tokens as usize] }
    }

    /// From the middle half of the vocabulary: marks, such as the one that ends a text, are at either end.
    fn token(&self, seed: u64, position: u64) -> u32 {
        let mixed = (seed ^ position.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let half = (self.vocab / 2).max(1);
        // The high bits are mixed best; the remainder is below `half`.
        (self.vocab / 4 + ((mixed >> 32) % u64::from(half)) as u32).min(self.vocab.saturating_sub(1))
    }
}

/// The first token from this one on that is allowed, around the end if need be; itself if all are.
fn nearest(token: u32, allowed: &[u32]) -> u32 {
    let words = allowed.len() as u32;
    // The token's own word comes twice: from its bit on, and in the end up to it.
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

    fn tokens(seed: u64, starts: impl Iterator<Item = u32>) -> Vec<u32> {
        let mut made_up =
            MadeUp { vocab: 1000, hidden: 8, slots: vec![Slot::default(); 2], pace: Duration::ZERO };
        let sampling = Some(Sampling { seed, ..Sampling::default() });
        made_up
            .step(&Step {
                admit: vec![Admission { slot: 1, sampling, ..Default::default() }],
                ..Default::default()
            })
            .unwrap();
        let row = |start| Row { slot: 1, start, count: 1, sample: true, ..Default::default() };
        let mut step = |start| made_up.step(&Step { rows: vec![row(start)], ..Default::default() }).unwrap();
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
    fn only_what_is_allowed_is_made_up() {
        assert_eq!(nearest(7, &[]), 7);
        assert_eq!(nearest(7, &[1 << 7]), 7);
        assert_eq!(nearest(7, &[1 << 9 | 1 << 3]), 9);
        assert_eq!(nearest(10, &[1 << 9 | 1 << 3]), 3);
        assert_eq!(nearest(40, &[1, 1]), 0);
        assert_eq!(nearest(40, &[2, 1 << 31]), 63);
        assert_eq!(nearest(900, &[0, 1 << 5]), 37);
    }

    #[test]
    fn slots_that_there_are_not_are_refused() {
        let mut made_up =
            MadeUp { vocab: 1000, hidden: 8, slots: vec![Slot::default(); 2], pace: Duration::ZERO };
        let row = Row { slot: 2, count: 1, sample: true, ..Default::default() };
        let step = Step { rows: vec![row], ..Default::default() };
        assert_eq!(made_up.step(&step), Err(StepError::UnknownSlot { slot: 2, slots: 2 }));
    }
}
